"""A converted model in the user's own class: modules are replaced, and code between them is kept.

The conversion is written as one flat graph. `operate` gives each of its operations back to the
module that it belongs to. A module keeps its `forward` if nothing changes between the modules that
it calls. If something does, as where a sum is weighted, that module alone becomes a graph module,
and the modules around it stay what they are.

Where a shortcut starts before an activation, the block that follows needs two tensors of the one
before it. It is given the first and computes the second itself: the activation moves into it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from .operations import writes_in_place

Keys = tuple[str, ...]  # the calls of modules that an operation is inside of, outermost first


@dataclass
class Flat:
    """The conversion as one graph: what stands for which recorded tensor, and where it belongs."""

    module: fx.GraphModule
    homes: dict[fx.Node, fx.Node]  # the recorded tensor for which each node was written
    copies: set[fx.Node]  # nodes that do what was recorded
    values: dict[fx.Node, fx.Node]  # what stands for each recorded tensor


@dataclass(frozen=True)
class Signature:
    """How a module was called: with a single tensor, and with a single one in what it returned."""

    positional: int  # how many arguments
    keywords: tuple[str, ...]
    tensor: int | str  # which of them is the tensor
    result: Any  # with a tensor where the result is

    @property
    def bare(self) -> bool:
        return isinstance(self.result, torch.Tensor)


@contextmanager
def signatures(model: nn.Module) -> Iterator[dict[str, Signature]]:
    """While entered, notes how the modules of `model` are called, where that is simple."""
    found: dict[str, Signature] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
            tensors = [k for k, v in given.items() if isinstance(v, torch.Tensor)]
            leaves = [v for v in pytree.tree_leaves(output) if isinstance(v, torch.Tensor)]
            nested = sum(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(given))
            plain = type(output) in (tuple, list, dict) or isinstance(output, torch.Tensor)
            if len(tensors) == len(leaves) == nested == 1 and plain:
                found[path] = Signature(len(args), tuple(kwargs), tensors[0], output)

        return hook

    hooks = [
        module.register_forward_hook(note(path), with_kwargs=True)
        for path, module in model.named_modules()
        if path
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@dataclass
class _Call:
    """One call of a module: what was recorded and what is written in it, calls inside included."""

    keys: Keys
    path: str
    children: dict[str, _Call] = field(default_factory=dict[str, "_Call"])
    recorded: set[fx.Node] = field(default_factory=set[fx.Node])
    written: set[fx.Node] = field(default_factory=set[fx.Node])
    leaf: fx.Node | None = None  # the call of a layer or an activation that is all of it
    form: str = ""  # "leaf", "identity", "kept", "written", or "" if it is part of its parent

    def walk(self) -> Iterator[_Call]:
        """This call and those inside of it, innermost first."""
        for child in self.children.values():
            yield from child.walk()
        yield self


@dataclass(frozen=True)
class Replaced:
    """The paths of modules that became graphs, and the recorded functions written into these."""

    graphs: list[str] = field(default_factory=list[str])
    functions: list[fx.Node] = field(default_factory=list[fx.Node])


def operate(
    model: nn.Module,
    flat: Flat,
    inputs: Mapping[fx.Node, Mapping[fx.Node, fx.Node]],
    known: Mapping[str, Signature],
) -> Replaced | None:
    """Replace modules of `model`, so that it computes what `flat` does.

    Returns None, and leaves the model as it is, if its own `forward` would have to change. `inputs`
    says which tensor each argument was at the time.
    """
    surgeon = _Surgeon(model, flat, inputs, known)
    return surgeon.replace() if surgeon.plan() else None


class _Surgeon:
    def __init__(
        self,
        model: nn.Module,
        flat: Flat,
        inputs: Mapping[fx.Node, Mapping[fx.Node, fx.Node]],
        known: Mapping[str, Signature],
    ) -> None:
        self.model, self.flat, self.inputs, self.known = model, flat, inputs, known
        self.nodes = [n for n in flat.module.graph.nodes if n.op not in ("get_attr", "output")]
        live = set(self.nodes)
        # What the code that is kept has in place of each recorded tensor.
        self.carried = {t: value for t, value in flat.values.items() if value in live}
        self.root = _Call((), "")
        self.calls: dict[Keys, _Call] = {(): self.root}
        self.times: Counter[str] = Counter()
        for tensor in inputs:
            for call in self._enter(_keys(tensor)):
                call.recorded.add(tensor)
        self.homes: dict[fx.Node, Keys] = {}
        self.leaves: dict[fx.Node, _Call] = {}
        for node in self.nodes:
            self._place(node, self._first_home(node))

    def _enter(self, keys: Sequence[tuple[str, str]]) -> Iterator[_Call]:
        """The calls of these names and paths, outermost first; new ones are added."""
        call = self.root
        yield call
        for key, path in keys:
            if key not in call.children:
                call.children[key] = _Call((*call.keys, key), path)
                self.calls[call.children[key].keys] = call.children[key]
                self.times[path] += 1
            call = call.children[key]
            yield call

    def _first_home(self, node: fx.Node) -> Keys:
        tensor = self.flat.homes.get(node)
        keys = tuple(key for key, _ in _keys(tensor)) if tensor is not None else ()
        call = self.calls.get(keys)
        if node.op == "call_module" and call is not None and call.path == node.target:
            call.leaf, self.leaves[node] = node, call
            return keys[:-1]
        return keys

    def _place(self, node: fx.Node, keys: Keys) -> None:
        for depth in range(len(self.homes.get(node, ())) + 1):
            self.calls[self.homes.get(node, ())[:depth]].written.discard(node)
        self.homes[node] = keys
        for depth in range(len(keys) + 1):
            self.calls[keys[:depth]].written.add(node)

    def _crossing(self, call: _Call) -> tuple[list[fx.Node], list[fx.Node]]:
        """The recorded tensors that a call reads, and those it makes that are read outside."""
        own = call.recorded
        read = {now for t in own for now in self.inputs[t].values()} - own
        signals = [t for t in read if t.op != "placeholder" or t in self.carried]
        return sorted(signals), sorted(t for t in own if any(u not in own for u in t.users))

    # Planning: which module becomes what.

    def plan(self) -> bool:
        """Whether the model can keep its own `forward`."""
        for call in self.root.walk():
            self._absorb(call)
        for call in self.root.walk():
            call.form = self._form(call)
        forms: dict[str, set[str]] = {}
        for call in self._visible(self.root):
            forms.setdefault(call.path, set()).add(call.form)
        return self.root.form == "kept" and all(len(kinds) == 1 for kinds in forms.values())

    def _visible(self, call: _Call) -> Iterator[_Call]:
        """The calls that the model's own code will still make."""
        yield call
        if call.form == "kept":
            for child in call.children.values():
                yield from self._visible(child)

    def _absorb(self, call: _Call) -> None:
        """Move into `call` what only it reads, until a single tensor enters."""
        if not self._is_simple(call) or len(self._crossing(call)[0]) != 1:
            return
        inside, taken = set(call.written), list[fx.Node]()
        while len(entering := _entering(inside)) > 1:
            last = entering[-1]
            if last.op == "placeholder" or any(user not in inside for user in last.users):
                return
            inside.add(last)
            taken.append(last)
        for node in taken:
            if node in self.leaves:
                self.leaves[node].leaf = None
            self._place(node, call.keys)
        for tensor, value in self.carried.items() if taken else ():
            if value in taken:
                self.carried[tensor] = entering[0]

    def _is_simple(self, call: _Call) -> bool:
        return call.path in self.known and self.times[call.path] == 1 and call.leaf is None

    def _form(self, call: _Call) -> str:
        if call.leaf is not None:
            return "leaf"
        reads, makes = self._crossing(call)
        if not call.written:
            now = [self.carried.get(t) for t in (*reads, *makes)]
            if len(reads) == len(makes) == 1 and now[0] is now[1] is not None:
                return "identity"
            return "" if any(t in self.carried for t in makes) else "kept"  # it is not needed
        if self._keeps(call, reads, makes):
            return "kept"
        return "written" if self._stands_alone(call, reads, makes) else ""

    def _keeps(self, call: _Call, reads: Sequence[fx.Node], makes: Sequence[fx.Node]) -> bool:
        """Whether the module's own code is right if it calls what its children become."""
        children = call.children.values()
        if any(not child.form and child.written for child in children):
            return False
        inner = {tensor for child in children for tensor in child.recorded}
        direct = {n for n in call.written if self.homes[n] == call.keys and n.op != "placeholder"}
        for child in children:
            if child.leaf is not None:
                (source, *others), made = self._crossing(child)
                passes = [self.carried.get(t) for t in made] == [child.leaf] and not others
                if not passes or child.leaf.args[0] is not self.carried.get(source):
                    return False
                direct.discard(child.leaf)
        for tensor in call.recorded - inner:
            if (node := self.carried.get(tensor)) is None:
                continue
            sources = {self.carried.get(t) for t in self.inputs[tensor].values()} - {None}
            given = {a for a in node.all_input_nodes if a.op != "get_attr"}
            faithful = node in self.flat.copies and self.flat.homes[node] is tensor
            if not faithful or writes_in_place(tensor) or sources != given or node not in direct:
                return False
            direct.discard(node)
        outside = {self.carried.get(t) for t in reads}, {self.carried.get(t) for t in makes}
        return (
            not direct
            and outside[0].issuperset(_entering(call.written))
            and (call is self.root or outside[1].issuperset(_leaving(call.written)))
        )

    def _stands_alone(
        self, call: _Call, reads: Sequence[fx.Node], makes: Sequence[fx.Node]
    ) -> bool:
        """Whether a graph of one tensor can take the module's place."""
        if call is self.root or not self._is_simple(call) or len(reads) != 1 or len(makes) != 1:
            return False
        ends = self.carried.get(reads[0]), self.carried.get(makes[0])
        if _entering(call.written) != [ends[0]] or _leaving(call.written) != {ends[1]}:
            return False
        names = {
            str(a.target) for n in call.written for a in n.all_input_nodes if a.op == "get_attr"
        }
        for node in call.written:
            if node.op == "call_module" and any(True for _ in self._part(node).parameters()):
                names.add(str(node.target))
        return all(name.startswith(f"{call.path}.") for name in names)

    def _part(self, node: fx.Node) -> nn.Module:
        return self.flat.module.get_submodule(str(node.target))

    # Replacing.

    def replace(self) -> Replaced:
        """Puts modules into the model's tree."""
        self.modules = dict(self.model.named_modules(remove_duplicate=False))
        self.places = dict[int, list[tuple[nn.Module, str]]]()
        for parent in self.model.modules():
            for name, child in parent._modules.items():
                self.places.setdefault(id(child), []).append((parent, name))
        self.done = Replaced()
        self._replace(self.root)
        return self.done

    def _replace(self, call: _Call) -> None:
        for child in call.children.values():
            self._replace(child)
        match call.form:
            case "identity":
                self._put(call.path, nn.Identity())
            case "leaf" if call.leaf is not None:
                self._put(call.path, self._part(call.leaf))
            case "written":
                self._put(call.path, self._graph(call))
                inner = [p for p in self.done.graphs if p.startswith(f"{call.path}.")]
                self.done.graphs[:] = [p for p in self.done.graphs if p not in inner] + [call.path]
            case _:
                pass

    def _put(self, path: str, module: nn.Module) -> None:
        """Let `module` stand wherever the model has what is at `path`."""
        for parent, name in self.places[id(self.modules[path])]:
            parent.register_module(name, module)

    def _graph(self, call: _Call) -> fx.GraphModule:
        """The module that computes what was written for `call`."""
        signature, graph = self.known[call.path], fx.Graph()
        (source,), (result,) = self._crossing(call)
        writer = _BlockWriter(self, call, graph)
        for place in (*range(signature.positional), *signature.keywords):
            name = place if isinstance(place, str) else f"argument_{place}"
            is_tensor = place == signature.tensor
            node = graph.placeholder("x" if is_tensor and place == 0 else name, default_value=None)
            if is_tensor:
                writer.env[self.carried[source]] = node
        writer.write()
        out = writer.env[self.carried[result]]
        value = lambda leaf: out if isinstance(leaf, torch.Tensor) else leaf
        graph.output(pytree.tree_map(value, signature.result))
        return fx.GraphModule(
            writer.parts, graph, type(self.model.get_submodule(call.path)).__name__
        )


class _BlockWriter:
    """Writes a part of the flat graph; modules inside of it that stand alone are called."""

    def __init__(self, surgeon: _Surgeon, call: _Call, graph: fx.Graph) -> None:
        self.surgeon, self.call, self.graph = surgeon, call, graph
        self.env: dict[fx.Node, fx.Node] = {}
        self.parts: dict[str, Any] = {}
        self.whole: dict[fx.Node, _Call] = {}
        for child in self._whole_calls(call):
            self.whole.update(dict.fromkeys(child.written, child))

    def _whole_calls(self, call: _Call) -> Iterator[_Call]:
        for child in call.children.values():
            if child.form in ("kept", "written") and self._can_call(child):
                yield child
            elif child.form != "leaf":
                yield from self._whole_calls(child)

    def _can_call(self, child: _Call) -> bool:
        surgeon = self.surgeon
        reads, makes = surgeon._crossing(child)
        if not child.written or not surgeon._is_simple(child) or len(reads) != 1:
            return False
        plain = surgeon.known[child.path]
        return len(makes) == 1 and plain.positional == 1 and not plain.keywords and plain.bare

    def write(self) -> None:
        for node in sorted(self.call.written):
            if (child := self.whole.get(node)) is None:
                self._copy(node)
                continue
            (source,), (made,) = self.surgeon._crossing(child)
            if node is self.surgeon.carried[made]:
                x = self.env[self.surgeon.carried[source]]
                module = self.surgeon.model.get_submodule(child.path)
                self.env[node] = self.graph.call_module(self._name(child.path, module), (x,))

    def _copy(self, node: fx.Node) -> None:
        new = self.graph.node_copy(node, self._use)
        if node.op == "call_function" and node in self.surgeon.flat.copies:
            self.surgeon.done.functions.append(self.surgeon.flat.homes[node])
        if node.op == "call_module":
            new.target = self._name(str(node.target), self.surgeon._part(node))
        self.env[node] = new

    def _use(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr" and node not in self.env:
            target = str(node.target)
            name = target.removeprefix(f"{self.call.path}.")
            self.parts[name] = attrgetter(target)(self.surgeon.flat.module)
            self.env[node] = self.graph.get_attr(name)
        return self.env[node]

    def _name(self, target: str, module: nn.Module) -> str:
        """The name of a module inside of this one; what comes from outside is copied."""
        if target.startswith(f"{self.call.path}."):
            name = target.removeprefix(f"{self.call.path}.")
        else:
            name, module = f"{target.rpartition('.')[2]}_before", copy.deepcopy(module)
        self.parts.setdefault(name, module)
        return name


def _keys(tensor: fx.Node) -> list[tuple[str, str]]:
    stack = tensor.meta.get("nn_module_stack") or {}
    return [(key, path) for key, (path, _) in stack.items() if path]


def _entering(inside: Collection[fx.Node]) -> list[fx.Node]:
    """The nodes outside that these read, parameters left out, in order."""
    read = {a for n in inside for a in n.all_input_nodes if a.op != "get_attr"}
    return sorted(read.difference(inside))


def _leaving(inside: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes among these that are read outside."""
    return {n for n in inside if any(user not in inside for user in n.users)}
