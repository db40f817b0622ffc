"""What a model does with an example, recorded by running its code once on tensors without numbers.

This takes a tenth of the time of `torch.export`, which records more: it keeps composite operations
whole and guards what it assumes. It serves to prove that a model does what it was written for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import getitem
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind
from torch.nn.modules import module as hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .operations import plain_operation


@dataclass
class Replayed:
    """A record with what is read of `torch.export.ExportedProgram`; constants have no operation."""

    graph: fx.Graph
    graph_signature: SimpleNamespace
    call_spec: SimpleNamespace
    state_dict: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


def replay(
    model: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any] | None = None
) -> Replayed:
    """The operations of one call of `model`, without gradients and without computing anything."""
    state = {  # each place once, though a module may have two names
        f"{path}.{name}" if path else name: tensor
        for path, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = {id(tensor): mode.from_tensor(tensor) for tensor in state.values()}
    recorder = _Recorder(model)
    everything = (arguments, dict(named or {}))
    given = pytree.tree_map_only(torch.Tensor, mode.from_tensor, everything)
    for name, tensor in state.items():
        recorder.placeholder(name, fakes[id(tensor)], InputKind.PARAMETER)
    for place, leaf in enumerate(pytree.tree_leaves(given)):
        if isinstance(leaf, torch.Tensor):
            recorder.placeholder(f"input_{place}", leaf, InputKind.USER_INPUT)
    tensors: dict[str, torch.Tensor] = {name: fakes[id(state[name])] for name in state}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(mode)
        stack.callback(hooks.register_module_forward_pre_hook(recorder.enter).remove)
        leave = hooks.register_module_forward_hook(recorder.leave, always_call=True)
        stack.callback(leave.remove)
        stack.enter_context(recorder)
        result = torch.func.functional_call(model, tensors, *given, tie_weights=False)
    leaves, spec = pytree.tree_flatten(result)
    recorder.graph.output(tuple(recorder.argument(leaf) for leaf in leaves))
    return Replayed(
        recorder.graph,
        SimpleNamespace(input_specs=recorder.specs),
        SimpleNamespace(out_spec=spec),
        {**state, **recorder.literals},
    )


def same_function(first: Replayed, second: Replayed) -> bool:
    """Whether two records compute their results by the same operations on the same parameters."""
    known: dict[object, int] = {}
    return _results(first, known) == _results(second, known)


def _results(record: Replayed, known: dict[object, int]) -> list[object]:
    """The results as expressions, each distinct one numbered once (value numbering)."""
    numbers: dict[fx.Node, int] = {}
    specs = {spec.arg.name: spec for spec in record.graph_signature.input_specs}

    def expression(value: Any) -> object:
        if isinstance(value, fx.Node):
            return numbers[value]
        if isinstance(value, list | tuple):
            return tuple(map(expression, value))
        return type(value), str(value)

    for node in record.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            tensor = record.state_dict.get(spec.target)
            key: object = spec.target if tensor is None else _identity(tensor)
        elif node.op == "call_function":
            given = expression(node.args), expression(tuple(node.kwargs.items()))
            key = (plain_operation(node), getattr(node.target, "_overloadname", ""), *given)
        else:
            return [expression(result) for result in node.args[0]]
        numbers[node] = known.setdefault(key, len(known))
    raise AssertionError("a record ends with its results")


def _identity(tensor: torch.Tensor) -> object:
    """What makes a parameter itself; the constants of activations are their values."""
    if isinstance(tensor, nn.Parameter) or tensor.numel() > 16 or tensor.is_meta:
        return id(tensor)
    return str(tensor.dtype), tensor.tolist().__repr__()


class _Recorder(TorchDispatchMode):
    """Writes each operation into `graph`, with its result and the modules that it belongs to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.specs: list[SimpleNamespace] = []
        self.literals: dict[str, torch.Tensor] = {}
        self._paths = {id(m): path for path, m in model.named_modules()}
        self._calls: dict[str, int] = {}
        self._stack: dict[str, tuple[str, str]] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[object] = []  # the id of a tensor that is freed may be given to another

    def enter(self, module: nn.Module, _: object) -> None:
        path = self._paths.get(id(module), "")
        count = self._calls[path] = self._calls.get(path, 0) + 1
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        self._stack = {**self._stack, f"{path}@{count}": (path, kind)}

    def leave(self, *_: object) -> None:
        self._stack = dict(list(self._stack.items())[:-1])

    def placeholder(self, name: str, tensor: torch.Tensor, kind: InputKind) -> None:
        node = self.graph.placeholder(name.replace(".", "_"))
        node.meta["val"] = tensor
        self._keep(tensor, node)
        arg = SimpleNamespace(name=node.name)
        self.specs.append(SimpleNamespace(arg=arg, target=name, kind=kind))

    def argument(self, value: Any) -> Any:
        """The node of a tensor; one that comes from nowhere is a constant."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._nodes:
            name = f"constant_{len(self.literals)}"
            self.literals[name] = value
            with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
                self.placeholder(name, value, InputKind.CONSTANT_TENSOR)
        return self._nodes[id(value)]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            return result
        to_nodes = lambda tree: pytree.tree_map(self.argument, tree)
        node = self.graph.call_function(func, to_nodes(args), to_nodes(kwargs))
        node.meta = {"val": result, "nn_module_stack": self._stack}
        if isinstance(result, torch.Tensor):
            self._keep(result, node)
            return result
        for place, part in enumerate(result):
            if isinstance(part, torch.Tensor):
                taken = self.graph.call_function(getitem, (node, place))
                taken.meta = {"val": part, "nn_module_stack": self._stack}
                self._keep(part, taken)
        return result

    def _keep(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
