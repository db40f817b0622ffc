"""Models written as ONNX files, verified in onnxruntime, and quantised.

PyTorch's exporter writes a mean over all locations as a general `ReduceMean`, and a flattening as a
`Reshape` to explicit sizes. Runtimes for small devices, and quantisers, know these as
`GlobalAveragePool` and `Flatten`, so files get those.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from skipless._install import not_installed
from skipless.torch.example import require_example
from skipless.torch.fold import fold
from skipless.torch.trace import silence_logging

from .graph import read, require_file
from .run import open_session, run_session

if TYPE_CHECKING:
    import onnx

_TOLERANCE = 1e-4  # of an ONNX file, relative to its largest output
_Shapes = Mapping[str, list[int | str]]


def require_place(path: str | Path) -> Path:
    """The path of a file that can be written."""
    named = isinstance(path, str | Path) and Path(path).name and "\0" not in str(path)
    if not named or Path(path).is_dir():
        raise TypeError(f"path must be that of a file to write, such as 'a.onnx', got {path!r}")
    if not (place := Path(path).parent).is_dir():
        raise FileNotFoundError(f"There is no folder {place}. Make it first: mkdir -p {place}")
    return Path(path)


def export(model: nn.Module, example: Tensor, path: str | Path) -> Path:
    """Write the folded `model` as an ONNX file for batches of any size; returns its path.

    The model maps one tensor, whose first dimension is the batch, to one tensor. The file is run
    in onnxruntime on `example` and on a batch of twice its size, and must agree with `model` in
    evaluation mode to within 1e-4 of the largest output.
    """
    require_example(model, example, several=False)
    path = require_place(path)
    # Written elsewhere until it is verified, so that a wrong file does not replace an older one.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unverified-") as folder:
        _write_verified(model, example, Path(folder) / path.name)
        for part in sorted(Path(folder).iterdir(), reverse=True):  # the data before the graph
            part.replace(path.parent / part.name)
    return path


def _write_verified(model: nn.Module, example: Tensor, path: Path) -> None:
    require_onnx()
    model_name, evaluated = type(model).__name__, copy.deepcopy(model).eval()
    require_batch(evaluated, example, model_name)
    twice = torch.cat([example, example])  # a batch of 1 would be taken for a constant
    write(fold(model, example), twice, path)
    rewrite_pools(path)
    try:
        session = open_session(path, threads=0)
    except Exception as refused:  # onnxruntime's errors have no other base
        reason = " ".join(str(refused).split())[:300].rstrip(".")
        raise RuntimeError(
            f"onnxruntime cannot read {path.name}, which torch.onnx wrote of {model_name}: "
            f"{reason}. Remove the operation that it names from the network."
        ) from refused
    for batch in (example, twice):
        with torch.no_grad():
            expected = evaluated(batch).cpu()
        try:
            found = torch.from_numpy(run_session(session, batch.cpu().numpy()))
        except Exception as refused:
            raise RuntimeError(
                f"onnxruntime cannot run {path.name} on a batch of {len(batch)}: {refused}. Remove "
                "operations that count the samples, such as `unbind`, from the network."
            ) from refused
        error, largest = (float(t.abs().max()) for t in (found - expected, expected))
        if not error <= _TOLERANCE * largest:
            raise RuntimeError(
                f"{path.name} differs from {model_name} by {error:.2g} on a batch of {len(batch)}, "
                f"where the largest output is {largest:.2g}. Compare fold(model) with the model: "
                "if they agree, the export of an operation is wrong."
            )


def require_batch(model: nn.Module, example: Tensor, name: str) -> None:
    """Raise unless twice the samples of `example` give twice the numbers."""
    hint = (
        "The first dimension must be the batch: for one sample pass sample.unsqueeze(0). If the "
        "network has a fixed batch size, as in `view(2, 4)`, put -1 there."
    )
    if example.ndim == 0:
        raise ValueError(f"{name} must take batches of any size, got an example of rank 0. {hint}")
    if not example.numel():
        raise ValueError(f"The example must hold a sample, got the shape {tuple(example.shape)}.")
    what = f"{name} must take batches of any size, but on twice its example {tuple(example.shape)}"
    with torch.no_grad():
        try:
            once = model(example)
        except Exception as error:
            raise ValueError(
                f"{name} raises {type(error).__name__} on its example, {example.dtype} of shape "
                f"{tuple(example.shape)}: {error}"
            ) from error
        try:
            twice = model(torch.cat([example, example]))
        except Exception as error:
            raise ValueError(f"{what} it raises {type(error).__name__}: {error}. {hint}") from error
    if not isinstance(once, Tensor):
        raise ValueError(
            f"{name} must return one tensor, got {type(once).__name__}. Wrap it in a module that "
            "returns one of them, or torch.cat of them."
        )
    if twice.numel() != 2 * once.numel():
        raise ValueError(
            f"{what} it returns {tuple(twice.shape)}, and {tuple(once.shape)} on the example "
            f"itself. {hint}"
        )


def write(model: nn.Module, batch: Tensor, path: Path) -> None:
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
                external_data=large,  # a single file holds at most 2 GB
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        lines = [line.strip() for line in str(error.__cause__ or error).splitlines()]
        reason = " ".join(line for line in lines if line)[:300]
        raise RuntimeError(
            f"torch.onnx cannot write {path.name} for batches of any size: {reason}. If the "
            "network has a fixed batch size, as in `view(2, 4)`, put -1 there; if an operation is "
            "unknown to ONNX, use another."
        ) from error


@contextlib.contextmanager
def _quiet_export() -> Iterator[None]:
    """Silences PyTorch's notes on its own parts; failures are raised as well."""
    names = (name for name in tuple(logging.root.manager.loggerDict) if name.startswith("torch."))
    loggers = [logging.getLogger(name) for name in ("torch", *names)]
    # Loggers that someone turned up, as by TORCH_LOGS, stay.
    levels = {own: own.level for own in loggers if not 0 < own.level < logging.WARNING}
    for own in levels:
        own.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            # Of an LSTM, which lists its weights again; the file is verified.
            warnings.filterwarnings("ignore", "The tensor attribute.* assigned during export")
            yield
    finally:
        for own, level in levels.items():
            own.setLevel(level)


def require_onnx() -> None:
    """Raise unless all that ONNX files need is installed."""
    try:
        import_module("onnx")  # torch.onnx needs this and the next
        import_module("onnxscript")
        import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise ImportError(not_installed("ONNX export", error.name, "deploy")) from error


def rewrite_pools(path: Path) -> None:
    """Rewrite means over all locations, and flattenings, in the file at `path`."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    shapes = {
        v.name: [size.dim_param or size.dim_value for size in v.type.tensor_type.shape.dim]
        for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)
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
    model.graph.ClearField("node")
    model.graph.ClearField("initializer")
    model.graph.node.extend(rewritten)
    model.graph.initializer.extend(kept)
    onnx.save(model, path)


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
    """Whether all dimensions but the batch become one."""
    before, after = shapes.get(node.input[0], []), shapes.get(node.output[0], [])
    return len(before) > 1 and len(after) == 2 and before[0] == after[0] != 0


def _flatten(source: str, node: onnx.NodeProto) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node("Flatten", [source], node.output, node.name, axis=1)


def _checked(batch: np.ndarray, shape: Sequence[int | str]) -> np.ndarray:
    """The batch, if a file whose input has that `shape` can read it."""
    fits = isinstance(batch, np.ndarray) and batch.dtype == np.float32 and batch.ndim == len(shape)
    known = {axis: size for axis, size in enumerate(shape) if isinstance(size, int)}
    if not fits or any(batch.shape[axis] != size for axis, size in known.items()):
        got = f"{batch.dtype} {batch.shape}" if isinstance(batch, np.ndarray) else repr(batch)
        raise ValueError(f"batches must be float32 arrays of shape {tuple(shape)}, got {got}")
    if not batch.size or not np.isfinite(batch).all():
        what = "numbers that are not finite" if batch.size else f"the shape {batch.shape}"
        raise ValueError(f"batches must hold samples to measure activations on, got {what}")
    return batch


def quantize(path: str | Path, output: str | Path, batches: Iterable[np.ndarray]) -> Path:
    """Write the network at `path` to `output` with 8-bit weights and activations; returns `output`.

    Each channel of a weight has its own scale; the scale of an activation follows from its smallest
    and largest value in `batches`. Both are unsigned: with signed weights, processors without VNNI
    instructions would clip sums of two products, or weights could use 7 bits only.
    """
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path, output = require_file(path), require_place(output)
    read(path)  # which says so if it is no ONNX file
    given = open_session(path).get_inputs()[0]
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a sequence of arrays, got {batches!r}")
    feeds = ({given.name: _checked(batch, given.shape)} for batch in batches)
    if (first := next(feeds, None)) is None:
        raise ValueError("batches must have at least one, to measure activations on, got none")
    feeds = chain([first], feeds)
    reader: Any = SimpleNamespace(get_next=lambda: next(feeds, None))
    # Next to the output, which it replaces when it is complete. Notes on defaults are silenced.
    unfinished = tempfile.TemporaryDirectory(dir=output.parent, prefix=".unfinished-")
    with unfinished as folder, silence_logging(logging.WARNING):
        prepared, written = Path(folder) / "prepared.onnx", Path(folder) / output.name
        # quant_pre_process would go on without optimising where it cannot write.
        optimized = Path(folder) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(optimized)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.log_severity_level = 3  # errors only
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # PyTorch's exporter has written the shapes already.
        quant_pre_process(optimized, prepared, skip_optimization=True, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            written,
            reader,
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QUInt8,
            extra_options={"WeightSymmetric": True},
        )
        written.replace(output)
    return output
