"""`fold`: constants and BatchNorms of a shaped network moved into its weights.

`gauges` decides where each constant goes; here BatchNorms are absorbed and the graph is rewritten.
"""

import contextlib
import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp, TensorMetadata
from torch.nn.modules.batchnorm import _BatchNorm

from skipless.core.activations import activation as core_activation

from . import operations as ops
from .activations import ShapedActivation, TrainableTReLU
from .gauges import (
    TOLERANCE,
    AffineLayer,
    Gauge,
    Opaque,
    Role,
    ScaleBy,
    ShapedLayer,
    ShiftBy,
    Unknown,
    is_plain_layer,
    module,
    parameter,
    read_roles,
    slot,
    solve_gauges,
)

_NATIVE: dict[str, Callable[..., nn.Module]] = {
    "celu": nn.CELU, "elu": nn.ELU, "gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, "tanh"),
    "hard_sigmoid": nn.Hardsigmoid, "hard_swish": nn.Hardswish, "hard_tanh": nn.Hardtanh,
    "identity": nn.Identity, "log_sigmoid": nn.LogSigmoid, "mish": nn.Mish, "relu": nn.ReLU,
    "relu6": nn.ReLU6, "selu": nn.SELU, "sigmoid": nn.Sigmoid, "silu": nn.SiLU,
    "soft_shrink": nn.Softshrink, "softplus": nn.Softplus, "softsign": nn.Softsign,
    "tanh": nn.Tanh, "tanh_shrink": nn.Tanhshrink,
}  # fmt: skip
_PROBE = torch.linspace(-30.0, 30.0, 241, dtype=torch.float64)
_VIEWS = {*ops.VIEWS, nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout2d}


def fold(model: nn.Module, example: Tensor | None = None) -> fx.GraphModule:
    r"""A plain network with the same outputs, its constants folded into the layers around them.

    Of $s_o\,(\varphi(s_i x + b_i) + b_o)$ only φ remains, as PyTorch's own module: `nn.LeakyReLU`
    for a `TReLU`. The layer before absorbs $s_i$ and $b_i$, the layers after it $s_o$ and $b_o$,
    through reshapes, pools, sums, concatenations and factors in between; the scale of a rectifier
    may go either way. The layer right before a BatchNorm absorbs it, if nothing else reads that
    layer. Parameters keep their names; layers without a bias may gain one.

    `folded.meta["remaining"]` lists what could not be folded: a constant before a reader that needs
    the tensor unchanged, such as the network's output, or differently in two calls; a shift before
    a convolution that pads with zeros, or before most transposed ones; an activation for which
    PyTorch has no module; and a BatchNorm after a sum, as in a pre-activation (v2) ResNet.

    Args:
        model: Left as it is; the result is a copy in evaluation mode.
        example: A batch of inputs. A BatchNorm after an `nn.Linear` is folded if this shows that it
            normalises the last dimension.

    >>> from skipless.torch.activations import TReLU
    >>> folded = fold(nn.Sequential(nn.Linear(3, 3), TReLU(0.5), nn.Linear(3, 1)))
    >>> folded.get_submodule("1"), folded.meta["remaining"]
    (LeakyReLU(negative_slope=0.5), ())
    """
    if not isinstance(model, nn.Module) or not isinstance(example, Tensor | None):
        raise TypeError(
            "Expected a model, and a tensor as its example if any, got "
            f"({type(model).__name__}, {type(example).__name__})"
        )
    traced = _trace(model)
    if example is not None:
        _record_shapes(traced, example)
    _remove_in_place(traced)
    norms = absorb_batch_norms_(traced)
    roles = read_roles(traced)
    rewriter = _Rewriter(traced, roles, solve_gauges(roles))
    for node in roles:
        rewriter.visit(node)
    rewriter.finish()
    folded = fx.GraphModule(traced, traced.graph, type(model).__name__)
    folded.meta["remaining"] = (*norms, *rewriter.remaining)
    return folded


def _trace(model: nn.Module) -> fx.GraphModule:
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
            f"torch.fx failed on {type(model).__name__}: {error}. Fold the result of `convert`, "
            "which is a graph already, or remove decisions that depend on the input's values or "
            "shape from `forward`."
        ) from error
    return fx.GraphModule(tracer.root, graph, type(model).__name__)


def _record_shapes(traced: fx.GraphModule, example: Tensor) -> None:
    try:
        # ShapeProp prints the traceback of what it raises.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            ShapeProp(traced).propagate(example)
    except RuntimeError as error:
        raise ValueError(
            f"{type(traced).__name__} fails on the example of shape {tuple(example.shape)}: "
            f"{error.__cause__ or error}. Pass a batch of its inputs."
        ) from error


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, ShapedActivation) or super().is_leaf_module(m, module_qualified_name)


def _remove_in_place(model: fx.GraphModule) -> None:
    """Make every operation return a new tensor; raise if an overwritten one is read again.

    Once a factor of 1 is dropped, a write into the product would be a write into its source.
    """
    memory: dict[fx.Node, fx.Node] = {}  # the node whose memory each one shares
    for node in model.graph.nodes:
        source = next(iter(node.all_input_nodes), node)
        in_place = source is not node and _writes_in_place(model, node)
        called = module(model, node)
        kind = ops.plain_operation(node) if called is None else type(called)
        memory[node] = memory[source] if in_place or kind in _VIEWS else node
        if not in_place:
            continue
        for older in (older for older in memory if older is not node):
            late = [user for user in older.users if user > node]
            if late and memory[older] is memory[source]:
                raise ValueError(
                    f"Cannot fold: {node.name} overwrites {older.name} in place before "
                    f"{late[0].name} reads it. Use inplace=False, or the function without the "
                    "trailing underscore."
                )
        _make_functional(model, node)


def _writes_in_place(model: fx.GraphModule, node: fx.Node) -> bool:
    if (called := module(model, node)) is not None:
        return getattr(called, "inplace", False)
    name = ops.operation(node) if node.op in ("call_function", "call_method") else ""
    return node.kwargs.get("inplace") is True or (name.endswith("_") and not name.endswith("__"))


def _make_functional(model: fx.GraphModule, node: fx.Node) -> None:
    """Replace an in-place operation by its out-of-place variant."""
    name = ops.plain_operation(node)
    if (found := module(model, node)) is not None:
        found.inplace = False  # pyright: ignore[reportArgumentType]
    elif "inplace" in node.kwargs:
        node.update_kwarg("inplace", False)
    elif isinstance(node.target, torch._ops.OpOverload):
        node.target = ops.out_of_place(node)
    elif isinstance(node.target, str):
        node.target = name
    else:
        node.target = getattr(torch, name, None) or getattr(F, name)


@dataclass
class _Rewriter:
    """Rewrites the graph of a shaped network, node by node, in the gauges found for it."""

    model: fx.GraphModule
    roles: Mapping[fx.Node, Role]
    gauges: Mapping[Unknown, Gauge]
    remaining: list[str] = field(default_factory=list[str])
    converted: dict[tuple[fx.Node, float, float], fx.Node] = field(default_factory=dict)
    dropped: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])
    done: set[str] = field(default_factory=set[str])

    def visit(self, node: fx.Node) -> None:
        role = self.roles[node]
        for source in dict.fromkeys(role.inputs):
            wanted = self.gauges[slot(node, role, source)]
            node.replace_input_with(source, self._read_in_gauge(source, wanted, node))
        match role:
            case AffineLayer() if role.weight not in self.done:
                self._absorb(role)
                self.done.add(role.weight)
            case ShapedLayer() if (path := str(node.target)) not in self.done:
                plain = _native_module(role.activation)
                if plain is None:
                    name = role.activation.name
                    plain = ShapedActivation(role.activation.function)
                    self.remaining.append(f"{path} stays a ShapedActivation of {name}, unscaled")
                self.model.set_submodule(path, plain.eval())
                self.done.add(path)
            case ScaleBy() | ShiftBy():
                self._update_constant(node, role)
            case Opaque() if isinstance(module(self.model, node), ShapedActivation):
                self.remaining.append(
                    f"{node.target} keeps its constants: one of its scales is not positive"
                )
            case _:
                pass
        if isinstance(role, AffineLayer) and node.op != "call_module":
            self._connect_bias(node, role.bias)

    def _read_in_gauge(self, source: fx.Node, wanted: Gauge, reader: fx.Node) -> fx.Node:
        """`source` in the gauge that `reader` wants, by explicit operations if they disagree."""
        written = self.gauges[source]
        factor = written.scale / wanted.scale
        number = (written.shift - wanted.shift) / wanted.scale
        scaled, shifted = abs(factor - 1.0) > TOLERANCE, abs(number) > TOLERANCE
        if not (scaled or shifted):
            return source
        key = (source, factor, number)
        if key not in self.converted:
            words = [f"times {factor:.6g}"] * scaled + [f"plus {number:.6g}"] * shifted
            self.remaining.append(f"{_label(reader)} reads {_label(source)} {' '.join(words)}")
            result = source
            with self.model.graph.inserting_before(reader):
                if scaled:
                    result = self.model.graph.call_function(torch.mul, (result, factor))
                if shifted:
                    result = self.model.graph.call_function(torch.add, (result, number))
            self.converted[key] = result
        return self.converted[key]

    def _absorb(self, layer: AffineLayer) -> None:
        """Change the weights of `layer` to read and write its gauges."""
        read = self.gauges[(layer.weight, "input")]
        write = self.gauges[(layer.weight, "output")]
        weight = parameter(self.model, layer.weight)
        bias = parameter(self.model, layer.bias)
        assert weight is not None
        exact = weight.detach().to("cpu", torch.float64)
        added = read.shift * _response_to_ones(exact, layer.transposed_groups) - write.shift
        if bias is not None:
            added = added + bias.detach().to("cpu", torch.float64)
        if read != write or read.shift != 0.0:
            weight.data = (exact * (read.scale / write.scale)).to(weight)
        if bias is not None:
            bias.data = (added / write.scale).to(bias)
        elif added.any():
            owner, _, name = layer.bias.rpartition(".")
            new = nn.Parameter((added / write.scale).to(weight), weight.requires_grad)
            setattr(self.model.get_submodule(owner), name, new)

    def _connect_bias(self, node: fx.Node, bias: str) -> None:
        """Pass a bias that `_absorb` made to a layer that is a function."""
        if ops.argument(node, 2, "bias") is not None or parameter(self.model, bias) is None:
            return
        with self.model.graph.inserting_before(node):
            made = self.model.graph.get_attr(bias)
        if len(node.args) > 2:
            node.update_arg(2, made)
        else:
            node.update_kwarg("bias", made)

    def _update_constant(self, node: fx.Node, role: ScaleBy | ShiftBy) -> None:
        """Change the number in a multiplication or addition; drop it if it has no effect."""
        read, write = self.gauges[role.input], self.gauges[node]
        if isinstance(role, ScaleBy):
            function, nothing, before = torch.mul, 1.0, role.factor
            number = role.factor * read.scale / write.scale
        else:
            function, nothing, before = torch.add, 0.0, role.number
            number = (read.shift + role.number - write.shift) / write.scale
        if abs(number - nothing) <= TOLERANCE:
            self.dropped[node] = role.input
        elif abs(number - before) > TOLERANCE:
            # The node itself stays, because its readers know their sources by identity.
            node.op, node.target = "call_function", function
            node.args, node.kwargs = (role.input, number), {}

    def finish(self) -> None:
        """Remove nodes without effect."""
        for node, source in self.dropped.items():
            node.replace_all_uses_with(source)
            self.model.graph.erase_node(node)
        for node in reversed(self.model.graph.nodes):
            if node.op == "get_attr" and not node.users:
                self.model.graph.erase_node(node)


def _label(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _native_module(shaped: ShapedActivation) -> nn.Module | None:
    """PyTorch's module for the plain φ, if one has the same values."""
    if isinstance(shaped, TrainableTReLU):
        return shaped.native()
    slope = shaped.constants.get("negative_slope")
    if slope is not None:
        return nn.LeakyReLU(slope) if slope != 0.0 else nn.ReLU()
    try:
        phi = core_activation(shaped.name)
    except ValueError:  # a function of the user's own
        return None
    if (build := _NATIVE.get(phi.family or phi.name)) is None:
        return None
    native = build(**phi.family_arguments)
    # A function of the user's own may have the same name.
    same = torch.allclose(native(_PROBE), shaped.function(_PROBE), rtol=0.0, atol=1e-8)
    return native if same else None


def _response_to_ones(weight: Tensor, transposed_groups: int | None) -> Tensor:
    """The output of a layer without bias for an input of ones, far from any padding."""
    if transposed_groups is None:
        return weight.flatten(1).sum(1)
    grouped = weight.unflatten(0, (transposed_groups, -1)).flatten(3)
    return grouped.sum((1, 3)).flatten()


def absorb_batch_norms_(model: fx.GraphModule) -> list[str]:
    r"""Move BatchNorms into the layers before them; returns which ones stay, and why.

    A layer $Wx + b$ that only a BatchNorm reads, $\gamma\,(y - \mu) / \sigma + \beta$ becomes
    $\frac{\gamma}{\sigma} W x + \frac{\gamma}{\sigma} (b - \mu) + \beta$, computed in float64.
    Graph and layers of `model` are changed.

    >>> two = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)).eval()
    >>> one = fx.symbolic_trace(two)
    >>> absorb_batch_norms_(one), len(list(one.graph.nodes))  # input, layer, output
    ([], 3)
    >>> x = torch.eye(2)[None]
    >>> torch.allclose(one(x), two(x))
    True
    """
    remaining: list[str] = []
    for node in list(model.graph.nodes):
        norm = module(model, node)
        if node.op == "call_function" and ops.plain_operation(node) == "batch_norm":
            remaining.append(f"{node.name} stays a BatchNorm: it is a function, not a module")
        if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            continue
        assert isinstance(norm, _BatchNorm)
        layer = _layer_before(model, node, norm)
        if isinstance(layer, str):
            remaining.append(f"{node.target} stays a BatchNorm: {layer}")
            continue
        _absorb_(layer, norm)
        node.replace_all_uses_with(node.args[0])
        model.graph.erase_node(node)
    return remaining


def _layer_before(model: fx.GraphModule, node: fx.Node, norm: _BatchNorm) -> nn.Module | str:
    """The layer that can absorb `norm`, or why there is none."""
    if norm.running_mean is None or norm.running_var is None:
        return "it normalises by each batch's own statistics"
    source = node.args[0] if node.args else None
    layer = module(model, source) if isinstance(source, fx.Node) else None
    if not isinstance(source, fx.Node) or layer is None or not is_plain_layer(layer):
        return "no layer comes right before it"
    if len(source.users) > 1:
        return f"{source.target} has other readers"
    if norm.num_features != ops.layer_width(layer):
        return f"it does not normalise the outputs of {source.target}"
    # Of three dimensions, a linear layer changes the last, and BatchNorm the second.
    seen = source.meta.get("tensor_meta")  # if an example was run
    two = isinstance(seen, TensorMetadata) and len(seen.shape) == 2
    if isinstance(layer, nn.Linear) and not two:
        return f"it is not known to normalise the last dimension of {source.target}"
    if _is_used_elsewhere(model, layer):
        return f"the weights of {source.target} are used elsewhere"
    return layer


def _is_used_elsewhere(model: fx.GraphModule, layer: nn.Module) -> bool:
    nodes, own = list(model.graph.nodes), {id(p) for p in layer.parameters(recurse=False)}
    others = [p for m in model.modules() if m is not layer for p in m.parameters(recurse=False)]
    stored = [parameter(model, str(node.target)) for node in nodes if node.op == "get_attr"]
    calls = sum(module(model, node) is layer for node in nodes)
    return calls > 1 or any(id(p) in own for p in (*others, *stored))


def _absorb_(layer: nn.Module, norm: _BatchNorm) -> None:
    weight, bias = layer.get_parameter("weight"), layer._parameters.get("bias")
    exact = lambda t: t.detach().to("cpu", torch.float64)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        factor = factor * exact(norm.weight)
    added = -exact(norm.running_mean) if bias is None else exact(bias) - exact(norm.running_mean)
    added = added * factor
    if norm.bias is not None:
        added = added + exact(norm.bias)
    if type(layer) in ops.TRANSPOSED:  # whose weight is (inputs, outputs of a group, ...)
        groups: int = layer.groups  # pyright: ignore[reportAssignmentType]
        factor = factor.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, dim=0)
    factor = factor.reshape(*factor.shape, *[1] * (weight.ndim - factor.ndim))
    weight.data = (exact(weight) * factor).to(weight)
    layer.bias = nn.Parameter(added.to(weight), weight.requires_grad)
