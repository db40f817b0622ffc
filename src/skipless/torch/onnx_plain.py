"""What is usual in ONNX in place of what PyTorch's exporter writes.

A mean over all locations comes as a general `ReduceMean`, and a flattening as a `Reshape` to sizes
that are written out. Runtimes for small devices, and quantisers, know these as `GlobalAveragePool`
and `Flatten`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_Shapes = Mapping[str, list[int | str]]


def rewrite_pools(path: Path) -> None:
    """Let the file at `path` have pools and flattenings under these names."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    shapes = {
        v.name: [size.dim_param or size.dim_value for size in v.type.tensor_type.shape.dim]
        for v in values
    }
    numbers = {t.name: t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT64}
    rewritten = []
    for node in model.graph.node:
        axes = numbers.get(node.input[1]) if len(node.input) > 1 else None
        if node.op_type == "ReduceMean" and axes is not None:
            rewritten += _pool(node, onnx.numpy_helper.to_array(axes).tolist(), shapes)
        elif node.op_type == "Reshape" and _flattens(node, shapes):
            rewritten.append(_flatten(node.input[0], node))
        else:
            rewritten.append(node)
    used = {name for node in rewritten for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for field in ("node", "initializer"):
        plain.graph.ClearField(field)
    plain.graph.node.extend(rewritten)
    plain.graph.initializer.extend(kept)
    onnx.save(plain, path)


def _pool(node: onnx.NodeProto, axes: list[int], shapes: _Shapes) -> list[onnx.NodeProto]:
    """A mean as a pool, if it is one over all locations of a batch of images."""
    from onnx import helper

    source, rank = node.input[0], len(shapes.get(node.input[0], ()))
    if rank < 3 or sorted(axis % rank for axis in axes) != list(range(2, rank)):
        return [node]
    keeps = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
    if keeps:
        return [helper.make_node("GlobalAveragePool", [source], node.output, node.name)]
    pooled = f"{node.output[0]}_pooled"
    pool = helper.make_node("GlobalAveragePool", [source], [pooled], f"{node.name}_pool")
    return [pool, _flatten(pooled, node)]


def _flattens(node: onnx.NodeProto, shapes: _Shapes) -> bool:
    """Whether all but the batch becomes one dimension."""
    before, after = shapes.get(node.input[0], []), shapes.get(node.output[0], [])
    return len(before) > 1 and len(after) == 2 and before[0] == after[0] != 0


def _flatten(source: str, node: onnx.NodeProto) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node("Flatten", [source], node.output, node.name, axis=1)
