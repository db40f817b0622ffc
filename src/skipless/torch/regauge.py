"""The graph of a shaped network rewritten, node by node, in the gauges that were found for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from .activations import ShapedActivation
from .gauges import SAME, Gauge, Unknown, slot
from .roles import Affine, Opaque, Plus, Role, Shaped, Times, argument, inputs, module, parameter

_NATIVE: dict[str, Callable[..., nn.Module]] = {
    "celu": nn.CELU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU("tanh"),
    "hard_sigmoid": nn.Hardsigmoid,
    "hard_swish": nn.Hardswish,
    "hard_tanh": nn.Hardtanh,
    "identity": nn.Identity,
    "log_sigmoid": nn.LogSigmoid,
    "mish": nn.Mish,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "soft_shrink": nn.Softshrink,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "tanh": nn.Tanh,
    "tanh_shrink": nn.Tanhshrink,
}
_MEMBER = re.compile(r"(\w+)(?:\((\w+)=([-+.e\d]+)\))?")  # such as elu(alpha=0.3)
_PROBE = torch.linspace(-30.0, 30.0, 241, dtype=torch.float64)


@dataclass
class Rewriting:
    """A graph on its way from the shaped network to the plain one, node by node."""

    model: fx.GraphModule
    roles: Mapping[fx.Node, Role]
    gauges: Mapping[Unknown, Gauge]
    remaining: list[str] = field(default_factory=list[str])
    converted: dict[tuple[fx.Node, float, float], fx.Node] = field(default_factory=dict)
    dropped: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])
    done: set[str] = field(default_factory=set[str])

    def visit(self, node: fx.Node) -> None:
        role = self.roles[node]
        for source in dict.fromkeys(inputs(role)):
            wanted = self.gauges[slot(node, role, source)]
            node.replace_input_with(source, self._in_gauge(source, wanted, node))
        match role:
            case Affine() if role.weight not in self.done:
                self._absorb(role)
                self.done.add(role.weight)
            case Shaped() if (path := str(node.target)) not in self.done:
                self._replace_activation(path, role.activation)
                self.done.add(path)
            case Times() | Plus():
                self._renumber(node, role)
            case Opaque() if isinstance(module(self.model, node), ShapedActivation):
                why = "for a scale of it is not positive"
                self.remaining.append(f"{node.target} keeps its constants, {why}")
            case _:
                pass
        if isinstance(role, Affine) and node.op != "call_module":
            self._connect_bias(node, role.bias)

    def _in_gauge(self, source: fx.Node, wanted: Gauge, reader: fx.Node) -> fx.Node:
        """`source` as `reader` wants it, which takes explicit operations if they disagree."""
        written = self.gauges[source]
        factor = written.scale / wanted.scale
        number = (written.shift - wanted.shift) / wanted.scale
        scaled, shifted = abs(factor - 1.0) > SAME, abs(number) > SAME
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

    def _absorb(self, layer: Affine) -> None:
        """Give `layer` the weights that read one gauge and write another."""
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
        """Pass a bias that was made by `_absorb` to a layer that is a function."""
        if argument(node, 2, "bias") is not None or parameter(self.model, bias) is None:
            return
        with self.model.graph.inserting_before(node):
            made = self.model.graph.get_attr(bias)
        if len(node.args) > 2:
            node.update_arg(2, made)
        else:
            node.update_kwarg("bias", made)

    def _replace_activation(self, path: str, shaped: ShapedActivation) -> None:
        plain = _native(shaped)
        if plain is None:
            plain = ShapedActivation(shaped.function)
            self.remaining.append(f"{path} stays a ShapedActivation of {shaped.name}, unscaled")
        self.model.set_submodule(path, plain.eval())

    def _renumber(self, node: fx.Node, role: Times | Plus) -> None:
        """Change the number in a multiplication or addition, and drop it if it does nothing."""
        read, write = self.gauges[role.input], self.gauges[node]
        if isinstance(role, Times):
            function, nothing, before = torch.mul, 1.0, role.factor
            number = role.factor * read.scale / write.scale
        else:
            function, nothing, before = torch.add, 0.0, role.number
            number = (read.shift + role.number - write.shift) / write.scale
        if abs(number - nothing) <= SAME:
            self.dropped[node] = role.input
        elif abs(number - before) > SAME:
            # The node stays the same one, for its readers know their sources by identity.
            node.op, node.target = "call_function", function
            node.args, node.kwargs = (role.input, number), {}

    def finish(self) -> None:
        """Take out what does nothing any more."""
        for node, source in self.dropped.items():
            node.replace_all_uses_with(source)
            self.model.graph.erase_node(node)
        for node in reversed(self.model.graph.nodes):
            if node.op == "get_attr" and not node.users:
                self.model.graph.erase_node(node)


def _label(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _native(shaped: ShapedActivation) -> nn.Module | None:
    """PyTorch's module of the plain φ, if there is one that gives the same values."""
    slope = shaped.constants.get("negative_slope")
    if slope is not None:
        return nn.LeakyReLU(slope) if slope != 0.0 else nn.ReLU()
    member = _MEMBER.fullmatch(shaped.name)
    if member is None or member[1] not in _NATIVE:
        return None
    native = _NATIVE[member[1]](**({member[2]: float(member[3])} if member[2] else {}))
    # The name may be that of a function of the user's own.
    same = torch.allclose(native(_PROBE), shaped.function(_PROBE), rtol=0.0, atol=1e-8)
    return native if same else None


def _response_to_ones(weight: Tensor, transposed_groups: int | None) -> Tensor:
    """What a layer without bias gives for an input of ones, far from any padding."""
    if transposed_groups is None:
        return weight.flatten(1).sum(1)
    grouped = weight.unflatten(0, (transposed_groups, -1)).flatten(3)
    return grouped.sum((1, 3)).flatten()
