"""A shaped network as a plain one: constants folded into weights, and an ONNX file of it.

`gauges` decides where each constant goes; here the graph is rewritten accordingly.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from .activations import ShapedActivation
from .batchnorm import absorb_batch_norms_
from .gauges import solve_gauges
from .onnx_plain import rewrite_pools
from .operations import operation, out_of_place
from .regauge import Rewriting
from .roles import module, plain_operation, read_roles

# What may give the memory of its input again, under another shape.
_VIEWS = {
    *("view", "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze", "contiguous"),
    *("detach", "alias", "expand", "slice", "select", "narrow", "getitem", "chunk", "split"),
    *("dropout", nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout2d),
}
_TOLERANCE = 1e-4  # of an ONNX file, relative to its largest output


def fold(model: nn.Module, example: Tensor | None = None) -> fx.GraphModule:
    r"""A plain network of the same outputs, its constants folded into the layers around them.

    Of $s_o\,(\varphi(s_i x + b_i) + b_o)$ only φ is left, as a module of PyTorch's own: a `TReLU`
    becomes `nn.LeakyReLU`. The layer before takes $s_i$ and $b_i$, the layers after it $s_o$ and
    $b_o$, through reshapes, pools, sums, concatenations and factors in between; the scale of a
    rectifier may go either way. A BatchNorm is taken in by the layer right before it, if nothing
    else reads that. Parameters keep their names; layers without a bias may gain one.
    The model itself is left as it is, and the result is in evaluation mode. A BatchNorm behind an
    `nn.Linear` is folded if an `example` of the input shows that it normalises the last dimension.

    `folded.meta["remaining"]` lists what could not be folded. That is a constant between a tensor
    and a reader that needs it as it is, such as the network's output, or a layer whose two calls
    need it differently; a shift before a convolution that pads with zeros, or before most
    transposed ones, as its effect differs at the border; an activation that PyTorch has no module
    for; and a BatchNorm behind a sum, as in a ResNet V2, where the shortcut needs what it reads.

    >>> from skipless.torch.activations import TReLU
    >>> folded = fold(nn.Sequential(nn.Linear(3, 3), TReLU(0.5), nn.Linear(3, 1)))
    >>> folded.get_submodule("1"), folded.meta["remaining"]
    (LeakyReLU(negative_slope=0.5), ())
    """
    traced = _traced(model)
    if example is not None:
        _note_shapes(traced, example)
    _write_out_of_place(traced)
    norms = absorb_batch_norms_(traced)
    roles = read_roles(traced)
    rewriting = Rewriting(traced, roles, solve_gauges(roles))
    for node in roles:
        rewriting.visit(node)
    rewriting.finish()
    folded = fx.GraphModule(traced, traced.graph, type(model).__name__)
    folded.meta["remaining"] = (*norms, *rewriting.remaining)
    return folded


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


def _traced(model: nn.Module) -> fx.GraphModule:
    """A copy of `model` as a graph, in evaluation mode."""
    model = copy.deepcopy(model).eval()
    if isinstance(model, fx.GraphModule):
        return model
    tracer = _Tracer()
    try:
        graph = tracer.trace(model)
    except (
        AssertionError,
        AttributeError,
        NameError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{type(model).__name__} was to be read by torch.fx, which failed: {error}. Fold what "
            "`convert` returns, which is a graph already, or take decisions that depend on the "
            "input's values or shape out of `forward`."
        ) from error
    return fx.GraphModule(tracer.root, graph, type(model).__name__)


def _note_shapes(traced: fx.GraphModule, example: Tensor) -> None:
    try:
        # ShapeProp prints the traceback of what it raises.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            ShapeProp(traced).propagate(example)
    except RuntimeError as error:
        raise ValueError(
            f"{type(traced).__name__} was to be folded with an example of shape "
            f"{tuple(example.shape)}, but cannot read it: {error.__cause__ or error}. Give it a "
            "batch of samples."
        ) from error


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, ShapedActivation) or super().is_leaf_module(m, module_qualified_name)


def _write_out_of_place(model: fx.GraphModule) -> None:
    """Let every operation give a new tensor, or raise if one that was overwritten is read again.

    Once a factor of 1 is dropped, what wrote into the product would write into its source.
    """
    position = {node: i for i, node in enumerate(model.graph.nodes)}
    memory: dict[fx.Node, fx.Node] = {}  # the first node to hold the numbers of each
    for node in model.graph.nodes:
        source = next(iter(node.all_input_nodes), node)
        in_place = source is not node and _writes_in_place(model, node)
        views = in_place or plain_operation(node) in _VIEWS or type(module(model, node)) in _VIEWS
        memory[node] = memory[source] if views else node
        if not in_place:
            continue
        for older in (older for older in memory if older is not node):
            late = [user for user in older.users if position[user] > position[node]]
            if late and memory[older] is memory[source]:
                raise ValueError(
                    f"fold was to move constants through the graph, but {node.name} overwrites "
                    f"{older.name}, which {late[0].name} reads afterwards. Write {node.name} out "
                    "of place (`inplace=False`, or without the trailing underscore)."
                )
        _make_functional(model, node)


def _writes_in_place(model: fx.GraphModule, node: fx.Node) -> bool:
    name = operation(node)
    named = name.endswith("_") and not name.endswith("__")
    called = node.op in ("call_function", "call_method")
    return (
        getattr(module(model, node), "inplace", False)
        or node.kwargs.get("inplace") is True
        or (called and named)
    )


def _make_functional(model: fx.GraphModule, node: fx.Node) -> None:
    """Replace an operation in place by the same out of place."""
    target, name = node.target, plain_operation(node)
    if (found := module(model, node)) is not None:
        found.inplace = False  # pyright: ignore[reportArgumentType]
    elif "inplace" in node.kwargs:
        node.update_kwarg("inplace", False)
    elif isinstance(target, torch._ops.OpOverload):
        node.target = out_of_place(target)
    elif isinstance(target, str):
        node.target = name
    else:
        node.target = getattr(torch, name, None) or getattr(F, name)


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
