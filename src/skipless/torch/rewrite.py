"""Writes composite operations of an exported program as simple ones, so that all else knows these.

A `glu` becomes the product of its halves, `stack` a sum if it is added up, else a concatenation on
a new axis, `unbind` a selection, and a region of autocast what is computed inside.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from .operations import argument, operation, sizes

_ATEN = torch.ops.aten
_REGIONS = {"wrap_with_autocast", "wrap_with_set_grad_enabled"}


def write_out(program: ExportedProgram) -> None:
    """Write out the composite operations of `program`, in place."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and operation(node) in _REGIONS:
            _inline(program, node)
    for target, rule in _RULES.items():
        for node in graph.find_nodes(op="call_function", target=target):
            with graph.inserting_before(node):
                rule(_Writer(graph, node), node)


class _Writer:
    """Adds operations before `node`, with the origin of it."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self.graph, self.node = graph, node

    def __call__(self, target: Any, *arguments: object) -> fx.Node:
        new = self.graph.call_function(target, arguments)  # pyright: ignore[reportArgumentType]
        values = fx.map_arg(new.args, lambda a: a.meta["val"])
        new.meta = {**self.node.meta, "val": target(*values)}
        return new

    def replace_by(self, new: fx.Node) -> None:
        self.node.replace_all_uses_with(new)
        self.graph.erase_node(self.node)


def _glu(write: _Writer, node: fx.Node) -> None:
    halves = write(_ATEN.chunk.default, node.args[0], 2, argument(node, 1, "dim", -1))
    signal, logit = (write(operator.getitem, halves, place) for place in range(2))
    write.replace_by(write(_ATEN.mul.Tensor, signal, write(_ATEN.sigmoid.default, logit)))


def _stack(write: _Writer, node: fx.Node) -> None:
    rank = len(sizes(node))
    axis, parts = argument(node, 1, "dim", 0) % rank, node.args[0]
    assert isinstance(parts, Sequence)
    for user in list(node.users):
        along = [a % rank for a in argument(user, 1, "dim") or ()] if _adds(user) else []
        if along == [axis] and not argument(user, 2, "keepdim", False):
            with write.graph.inserting_before(user):
                _add_up(_Writer(write.graph, user), parts, mean=operation(user) == "mean")
    if node.users:
        layers = [write(_ATEN.unsqueeze.default, part, axis) for part in parts]
        write.replace_by(write(_ATEN.cat.default, layers, axis))
    else:
        write.graph.erase_node(node)


def _adds(node: fx.Node) -> bool:
    return node.target in (_ATEN.sum.dim_IntList, _ATEN.mean.dim)


def _add_up(write: _Writer, parts: Sequence[Any], *, mean: bool) -> None:
    total, *rest = parts
    for part in rest:
        total = write(_ATEN.add.Tensor, total, part)
    write.replace_by(write(_ATEN.div.Tensor, total, len(parts)) if mean else total)


def _unbind(write: _Writer, node: fx.Node) -> None:
    for user in list(node.users):
        if user.op == "call_function" and user.target is operator.getitem:
            axis = argument(node, 1, "dim", 0)
            user.replace_all_uses_with(write(_ATEN.select.int, node.args[0], axis, user.args[1]))
            write.graph.erase_node(user)
    if not node.users:
        write.graph.erase_node(node)


_RULES: dict[Any, Callable[[_Writer, fx.Node], None]] = {
    _ATEN.glu.default: _glu,
    _ATEN.stack.default: _stack,
    _ATEN.unbind.int: _unbind,
}


def _inline(program: ExportedProgram, node: fx.Node) -> None:
    """Put what a region computes in the place of its call, without the region."""
    graph = program.graph
    place = next(
        i for i, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr"
    )
    region: Any = node.args[place]
    inner: Any = getattr(program.graph_module, region.target)
    given = iter(node.args[place + 1 :])
    values: dict[fx.Node, Any] = {
        n: next(given) for n in inner.graph.nodes if n.op == "placeholder"
    }
    with graph.inserting_before(node):
        results = graph.graph_copy(inner.graph, values)
    for user in list(node.users):
        _, item = user.args
        user.replace_all_uses_with(results[item])  # pyright: ignore
        graph.erase_node(user)
    graph.erase_node(node)
    if not region.users:
        graph.erase_node(region)
