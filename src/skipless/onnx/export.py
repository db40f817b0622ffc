"""Write a model as an ONNX file, and check it in onnxruntime.

What is usual in ONNX in place of what PyTorch's exporter writes.

A mean over all locations comes as a general `ReduceMean`, and a flattening as a `Reshape` to sizes
that are written out. Runtimes for small devices, and quantisers, know these as `GlobalAveragePool`
and `Flatten`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from skipless.torch.fold import fold

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


_TOLERANCE = 1e-4  # of an ONNX file, relative to its largest output


def export_onnx(model: nn.Module, example: Tensor, path: str | Path) -> Path:
    """The path of an ONNX file of the folded `model`, for batches of any size.

    The model takes one tensor, whose first dimension is the batch, and gives one. The file is run
    in onnxruntime on `example` and on a batch of twice its size, and has to give what `model` gives
    in evaluation mode, to within 1e-4 of the largest output.
    """
    path = Path(path)
    # Until it is verified it has another place, so that an older file is not lost to a wrong one.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unverified-") as folder:
        written = _verified(model, example, Path(folder) / path.name)
        for part in sorted(written.parent.iterdir(), reverse=True):  # the data before the graph
            part.replace(path.parent / part.name)
    return path


def demand_batch(model: nn.Module, example: Tensor, name: str) -> None:
    """Raise if the first dimension of `example` is not a batch of samples to `model`.

    Then twice the samples would give twice the numbers.
    """
    asked = f"{name} was to read batches of any size, but "
    do = (
        "The first dimension is to be the batch: of one sample give sample.unsqueeze(0). If the "
        "network has a batch size written out, as in `view(2, 4)`, put -1 there."
    )
    if example.ndim == 0:
        raise ValueError(f"{asked}its example has no dimensions. {do}")
    shape = tuple(example.shape)
    with torch.no_grad():
        once = model(example)
        try:
            twice = model(torch.cat([example, example]))
        except Exception as error:
            raise ValueError(
                f"{asked}of twice its example, of shape {shape}, it raises "
                f"{type(error).__name__}: {error}. {do}"
            ) from error
    if twice.numel() != 2 * once.numel():
        raise ValueError(
            f"{asked}of twice its example, of shape {shape}, it gives {tuple(twice.shape)}, where "
            f"the example gives {tuple(once.shape)}. {do}"
        )


def _verified(model: nn.Module, example: Tensor, path: Path) -> Path:
    onnxruntime = demand_onnx()
    evaluated = copy.deepcopy(model).eval()
    demand_batch(evaluated, example, type(model).__name__)
    twice = torch.cat([example, example])  # a batch of 1 would be taken for a constant
    write_onnx(fold(model, example), twice, path)
    rewrite_pools(path)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as refused:  # the classes of onnxruntime's errors have no other base
        reason = " ".join(str(refused).split())[:300].rstrip(".")
        raise RuntimeError(
            f"{path.name} was to hold {type(model).__name__}, but onnxruntime cannot read what "
            f"torch.onnx wrote: {reason}. Take the operation that it names out of the network."
        ) from refused
    name = session.get_inputs()[0].name
    for batch in (example, twice):
        with torch.no_grad():
            expected = evaluated(batch).cpu()
        try:
            found = torch.from_numpy(session.run(None, {name: batch.cpu().numpy()})[0])
        except Exception as refused:
            raise RuntimeError(
                f"{path.name} was to read batches of any size, but onnxruntime refuses one of "
                f"{len(batch)}: {refused}. Take operations that count the samples, such as "
                "`unbind`, out of the network."
            ) from refused
        error, largest = (float(t.abs().max()) for t in (found - expected, expected))
        if not error <= _TOLERANCE * largest:
            raise RuntimeError(
                f"{path.name} was to give what {type(model).__name__} gives, but on a batch of "
                f"{len(batch)} differs from it by {error:.2g}, where the largest output is "
                f"{largest:.2g}. Compare fold(model) with the model: if they agree, it is the "
                "export of one of its operations that does not."
            )
    return path


def write_onnx(model: nn.Module, batch: Tensor, path: Path) -> None:
    """Write `model` as it is, without folding or verifying, for batches of any size."""
    large = sum(p.numel() * p.element_size() for p in model.parameters()) > 2**30
    try:
        with _quiet_export():
            torch.onnx.export(
                model,
                (batch,),
                path,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=large,  # for one file holds no more than 2 GB
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        lines = [line.strip() for line in str(error.__cause__ or error).splitlines()]
        reason = " ".join(line for line in lines if line)[:300]
        raise RuntimeError(
            f"{path.name} was to hold the network for batches of any size, but torch.onnx could "
            f"not write it: {reason}. If a batch size is written out in the network, as in "
            "`view(2, 4)`, put -1 there; if an operation is unknown to ONNX, take another."
        ) from error


@contextlib.contextmanager
def _quiet_export() -> Iterator[None]:
    """Keep what PyTorch says of its own parts to itself; what fails is raised as well."""
    names = (name for name in tuple(logging.root.manager.loggerDict) if name.startswith("torch."))
    loggers = [logging.getLogger(name) for name in ("torch", *names)]
    # Those that someone turned up, as by TORCH_LOGS, are wanted.
    levels = {own: own.level for own in loggers if not 0 < own.level < logging.WARNING}
    for own in levels:
        own.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            # Of an LSTM, which lists its weights anew; the file is verified.
            warnings.filterwarnings("ignore", "The tensor attribute.* assigned during export")
            yield
    finally:
        for own, level in levels.items():
            own.setLevel(level)


def demand_onnx() -> ModuleType:
    """onnxruntime, if it and all else that ONNX files take are installed."""
    try:
        import_module("onnx")  # which torch.onnx needs, as it does the next
        import_module("onnxscript")
        return import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"An ONNX file was asked for, which needs {error.name}, and that is not installed: "
            "pip install 'skipless[deploy]'"
        ) from error
