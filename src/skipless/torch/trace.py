"""A PyTorch model as the theory sees it: trace(model, example) -> Graph.

`torch.export` records every tensor operation, with its module and source line. `Description` says
what each operation is, and `core.trace` reads that.
"""

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from skipless.core import record as rec
from skipless.core import trace as core
from skipless.core.activations import Array
from skipless.core.graph import Graph
from skipless.core.record import Recorded, UnsupportedModelError

from . import operations as ops
from .activations import ShapedActivation
from .example import Example, Given, require_example
from .normalize import PerLocationNormalization
from .operations import Memory, called_module, operation, origin, plain_operation, sizes
from .parts import Known, Parts
from .rewrite import write_out

_ARITHMETIC = ("add", "sub", "mul", "div")


@dataclass(frozen=True)
class Reading(core.Reading[fx.Node]):
    """A model's graph, and how it lies in the record of the model's operations.

    `inputs` says, for every operation, which tensor each of its arguments was at the time.
    """

    program: ExportedProgram
    inputs: ops.Inputs
    parts: Parts


def trace(model: nn.Module, example: Given, *, strict: bool = False) -> Graph:
    """The graph of `model` as it treats `example`, each node with its module path and source line.

    Normalisation layers are left out: the theory has no use for them. What has no Q and C maps,
    such as attention or a recurrent cell, becomes a `Measured` node: it is run on its own, on pairs
    of inputs, with the weights that it has.

    Args:
        model: Any module that `torch.export` can record; it is left as it is.
        example: A batch of inputs: a tensor, a sequence of arguments, or a mapping of arguments by
            name. Only shapes and types matter.
        strict: Whether what has no maps raises `UnsupportedModelError` instead.

    >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    >>> trace(mlp, torch.zeros(1, 3)) == Graph.chain(2)
    True
    """
    return read(model, example, strict=strict).graph


def read(
    model: nn.Module,
    example: Given,
    *,
    dynamic: bool = False,
    strict: bool = False,
    known: Known = (),
) -> Reading:
    """The graph of `model` in the record of its operations.

    With `dynamic`, sizes that the model does not fix are left open, such as that of the batch.
    `known` has the maps of parts that were measured before, `strict` measures none.
    """
    require_example(model, example)
    call = Example.of(example)
    model = with_weights(model, call)
    program = _export_with_open_sizes(model, call) if dynamic else _export(model, call)
    description = Description(model, program)
    parts = Parts(program, description.inputs, known, given=description.given(call))
    found = core.read(description, None if strict else parts)
    return Reading(**vars(found), program=program, inputs=description.inputs, parts=parts)


def with_weights(model: nn.Module, example: Given) -> nn.Module:
    """`model`, or a copy in which lazy layers, such as LazyLinear, have made their weights."""
    if not any(map(nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
        return model
    try:
        model = copy.deepcopy(model)
    except ValueError as error:  # of lazy buffers
        raise UnsupportedModelError(
            f"{type(model).__name__} has lazy layers that PyTorch cannot copy. Call model(example) "
            "first."
        ) from error
    training = [module for module in model.modules() if module.training]
    with torch.no_grad():
        Example.of(example).call(model.eval())
    for module in training:
        module.training = True
    return model


class Description(Recorded[fx.Node]):
    """An exported program of `model`, each operation described."""

    def __init__(self, model: nn.Module, program: ExportedProgram) -> None:
        self.program = program
        self.operations = {}
        self.inputs: dict[fx.Node, dict[fx.Node, fx.Node]] = {}  # what an argument was at the time
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._constants: dict[fx.Node, torch.Tensor | None] = {}
        self._shaped: dict[fx.Node, tuple[str, fx.Node]] = {}  # the call, and what it reads
        self._memory = Memory()
        self._learned: set[fx.Node] = set()  # parameters, buffers, and what is computed from them
        self._random: set[fx.Node] = set()
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        state = {**program.state_dict, **program.constants}
        self.arguments = user_inputs(program)
        signals = [node for node in self.arguments if node.meta["val"].is_floating_point()]
        self.input, *self.more = signals or self.arguments[:1]
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._add(node)
            elif node.op == "placeholder" and node not in (self.input, *self.more):
                tensor = state.get(specs[node.name].target or "")
                self._constants[node] = tensor if isinstance(tensor, torch.Tensor) else None
                if specs[node.name].kind in (InputKind.PARAMETER, InputKind.BUFFER):
                    self._learned.add(node)

    def given(self, example: Example) -> dict[fx.Node, torch.Tensor]:
        """What the example has for arguments that are no signals, such as indices."""
        pairs = zip(self.arguments, example.tensors, strict=True)
        return {node: tensor for node, tensor in pairs if not self._depends_on_input(node)}

    @property
    def outputs(self) -> Sequence[fx.Node]:
        (results,) = next(reversed(self.program.graph.nodes)).args
        assert isinstance(results, list | tuple)
        nodes = [result for result in results if isinstance(result, fx.Node)]
        count = sum(map(self._depends_on_input, nodes))
        if not nodes or count < len(nodes):
            raise UnsupportedModelError(
                f"The model returns {len(nodes)} tensors, {count} of which depend on its input. "
                "Wrap it in a module that returns only these."
            )
        return [self._memory.latest(node) for node in nodes]

    def origin(self, tensor: fx.Node) -> str:
        return tensor.name if tensor.op == "placeholder" else origin(tensor)

    def shape(self, tensor: fx.Node) -> Sequence[int | None]:
        return sizes(tensor)

    def channel_candidates(self, rank: int) -> Sequence[int]:
        return range(1, rank)

    def values(self, tensor: fx.Node, sources: Mapping[fx.Node, Array]) -> Array | None:
        name, now = plain_operation(tensor), self.inputs[tensor]
        numbers = {a: _uniform_number(self._constants.get(b)) for a, b in now.items()}
        if any(number is None and now[a] not in sources for a, number in numbers.items()):
            return None

        def value(a: fx.Node) -> Any:
            if now[a] in sources:
                known = torch.tensor(sources[now[a]])  # a copy, into which it may write
                return known != 0.0 if name == "where" and a is tensor.args[0] else known
            trained = isinstance(self._constants.get(now[a]), nn.Parameter)
            number = numbers[a]
            if name == "mul" and trained and number is not None:
                return rec.initial_factor(number.item())
            return number

        result = _run(tensor, value)
        return None if result is None else result.detach().double().cpu().numpy()

    def _depends_on_input(self, node: fx.Node) -> bool:
        return node is self.input or node in self.more or node in self.operations

    def _add(self, node: fx.Node) -> None:
        now = {a: self._memory.latest(a) for a in node.all_input_nodes}
        self.inputs[node] = now
        sources: list[fx.Node] = []  # as often as they are read
        fx.map_arg((node.args, node.kwargs), lambda a: sources.append(now[a]))
        sources = [a for a in sources if self._depends_on_input(a)]
        computes = isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
        blank = plain_operation(node) in ops.BLANKS  # of the shape of a signal, but no signal
        if not sources or not computes or blank:
            # BatchNorm's count of batches, the size of a tensor, or a constant
            self._constants[node] = None if sources else self._constant(node)
            if all(a in self._learned for a in now) and now:
                self._learned.add(node)
            if plain_operation(node) in ops.RANDOM or not self._random.isdisjoint(now):
                self._random.add(node)
            return
        described = self._describe(node, sources)
        if (reader := self._memory.follow(node, sources[0])) is not None:
            described = rec.Unsupported(
                f"{origin(node)} computes {operation(node)} in place, and what it changes is read "
                f"later, at {origin(reader)}, under another name. Write it out of place: without "
                "the trailing underscore, or with inplace=False."
            )
        self.operations[node] = described

    def _constant(self, node: fx.Node) -> torch.Tensor | None:
        """The single number that `node` computes from constants, or None."""
        known = [self._constants.get(a) for a in node.all_input_nodes]
        if any(k is None or k.numel() != 1 for k in known):
            return None
        return _run(node, lambda a: self._constants[a].clone())  # pyright: ignore[reportOptionalMemberAccess]

    def _describe(self, node: fx.Node, sources: Sequence[fx.Node]) -> rec.Operation[fx.Node]:
        name, first = plain_operation(node), sources[0]
        if isinstance(self._modules.get(called_module(node)[0]), PerLocationNormalization):
            return rec.Preparation(tuple(sources))
        if (call := self._shaped_call(node)) is not None:
            inside = [self._shaped[s][1] for s in sources if self._shaped.get(s, ("",))[0] == call]
            self._shaped[node] = (call, inside[0] if inside else first)
            return rec.ShapedCall((self._shaped[node][1],))
        if name in ops.AFFINE:
            return self._layer(node, sources)
        if name in ops.NORMS:
            return rec.Norm((first,))
        of_two = name == "max" and len(sources) > 1
        if name in ops.MOVES or (name in ops.APPROXIMATE_MOVES and not of_two):
            approximate = name if name in ops.APPROXIMATE_MOVES else ""
            if ops.averages_zeros(node):
                approximate = f"{name} of padded zeros"
            axes, part = ops.axis_map(node, first), ops.part(node, first)
            return rec.Move((first,), operation(node), axes, approximate, part=part)
        if name in ops.CONCATENATIONS:
            return self._concatenation(node)
        if len(set(sources)) == 1 and (constant := self._with_constant(node, first)) is not None:
            return constant
        if name in _ARITHMETIC or name in ops.POINTWISE:
            alpha: Any = node.kwargs.get("alpha", 1)
            sums = {"add": (1.0, float(alpha)), "sub": (1.0, -float(alpha))}
            weights = sums.get(name) if len(sources) == 2 else None
            affine, product = name in _ARITHMETIC, name == "mul"
            return rec.Pointwise(tuple(sources), name, weights, affine, product)
        about = kind, advice = ops.UNCOVERED.get(name, ops.UNKNOWN)
        message = f"{origin(node)} computes {name}{kind}, which has no Q and C maps. {advice}"
        inner = about not in (ops.UNKNOWN, ops.PROBABILITIES)
        return rec.Unsupported(message, tuple(sources), inner)

    def _with_constant(self, node: fx.Node, source: fx.Node) -> rec.Operation[fx.Node] | None:
        """What combines a signal with random or learned tensors, if it does: nothing that counts.

        Random factors drop whole samples (stochastic depth). Learned or fixed numbers for each
        channel belong to a normalisation; right behind a layer, they are its bias. Those for each
        place, such as position embeddings, are small at first, and stay.
        """
        name, now = plain_operation(node), self.inputs[node]
        others = [tensor for tensor in now.values() if tensor is not source]
        if name in ("mul", "div") and self._scales_randomly(node, source, others):
            return self._identity(node, source)
        known = [a for a in others if a in self._learned]
        uneven = [a for a in known if _uniform_number(self._constants.get(a)) is None]
        if name not in (*_ARITHMETIC, "addcmul") or not known or len(known) < len(others):
            return None
        if not uneven and name != "addcmul":
            return None
        if any(sum(size > 1 for size in sizes(a)) > 1 for a in known):
            return self._identity(node, source, "learned or fixed numbers at places")
        entry = source is self.input or source in self.more
        if entry or isinstance(self.operations.get(source), rec.Preparation):
            return rec.Preparation((source,))
        if name == "add" and isinstance(self.operations.get(source), rec.Layer):
            return rec.Bias((source,))
        return rec.Norm((source,))

    def _scales_randomly(self, node: fx.Node, source: fx.Node, others: Sequence[fx.Node]) -> bool:
        """Whether a random factor, or the number that makes up for it, is all that `node` adds."""
        if not self._random.isdisjoint(others):
            return True
        if others or operation(node) not in ("div", "div_"):
            return False
        readers = [a for user in node.users for a in user.all_input_nodes]
        before = self.operations.get(source)
        after_random = isinstance(before, rec.Move) and before.name in ("mul", "mul_")
        return after_random or (len(node.users) == 1 and not self._random.isdisjoint(readers))

    def _identity(self, node: fx.Node, source: fx.Node, note: str = "") -> rec.Move[fx.Node]:
        axes = rec.AxisMap.between(sizes(source), sizes(node))
        return rec.Move((source,), operation(node), axes, note)

    def _shaped_call(self, node: fx.Node) -> str | None:
        stack: Mapping[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
        modules = ((call, self._modules.get(path)) for call, (path, _) in stack.items())
        return next((call for call, m in modules if isinstance(m, ShapedActivation)), None)

    def _layer(self, node: fx.Node, sources: Sequence[fx.Node]) -> rec.Operation[fx.Node]:
        source, now = sources[0], self.inputs[node]
        place = 8 if ops.operation(node) == "convolution" else 6
        groups = ops.argument(node, place, "groups", 1)
        channels = sizes(source)[1] // groups if isinstance(groups, int) and groups > 1 else None
        given = next(a for a in now if now[a] is source)
        weight = node.args[1]
        if channels == 1 and isinstance(weight, fx.Node) and self._is_fixed(weight):
            axes = rec.AxisMap.between(sizes(source), sizes(node))  # blurs each channel
            return rec.Move((source,), operation(node), axes, "fixed filter")
        if isinstance(weight, fx.Node) and (plain := self._standardised(weight)) is not None:
            now[weight] = plain  # what is written anew has the weight itself
        return rec.Layer(
            tuple(sources),
            weights=next((a for a in now if a.op == "placeholder" and a in self._constants), None),
            summed=(ops.channel_axis(node, given, source),),
            made=(ops.channel_axis(node, given, node),),
            channels=channels,
            depthwise=channels == 1 and sizes(node)[1] == groups,
        )

    def _is_zero(self, constant: fx.Node) -> bool:
        known = self._constants.get(constant)
        zeros = plain_operation(constant) in ("new_zeros", "zeros", "zeros_like")
        return zeros or (
            known is not None and not isinstance(known, nn.Parameter) and not known.any()
        )

    def _parameters(self, constant: fx.Node) -> list[fx.Node]:
        """The parameters that a learned tensor is computed from."""
        found, waiting = list[fx.Node](), [constant]
        while waiting:
            node = waiting.pop()
            waiting += node.all_input_nodes
            if isinstance(self._constants.get(node), nn.Parameter):
                found.append(node)
        return found

    def _is_fixed(self, weight: fx.Node) -> bool:
        """Whether a weight is a buffer, or made of buffers."""
        return weight in self._learned and not self._parameters(weight)

    def _standardised(self, weight: fx.Node) -> fx.Node | None:
        """The parameter that a computed weight is made of, as by weight standardisation."""
        if weight.op == "placeholder" or weight not in self._learned:
            return None
        alike = [a for a in self._parameters(weight) if sizes(a) == sizes(weight)]
        return alike[0] if alike else None

    def _concatenation(self, node: fx.Node) -> rec.Operation[fx.Node]:
        given, axis = node.args[0], ops.argument(node, 1, "dim", 0)
        assert isinstance(given, list | tuple)
        parts = [self._memory.latest(part) for part in given if isinstance(part, fx.Node)]
        signals = [part for part in parts if self._depends_on_input(part)]
        zeros = [part for part in parts if part not in signals and self._is_zero(part)]
        if len(signals) == 1 and zeros and len(zeros) == len(parts) - 1:
            move = rec.AxisMap.identity(self.rank(node))
            axes = rec.AxisMap(move.to, padded=frozenset({axis % self.rank(node)}))
            return rec.Move((signals[0],), "cat", axes)
        return rec.Concatenation(
            tuple(part if self._depends_on_input(part) else None for part in parts),
            widths=[float(sizes(part)[axis]) for part in parts],
            axis=axis % self.rank(node),
        )


def user_inputs(program: ExportedProgram) -> list[fx.Node]:
    """The tensors among the arguments of the model, in their order."""
    specs = program.graph_signature.input_specs
    names = {spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT}
    nodes = (node for node in program.graph.nodes if node.op == "placeholder")
    return [n for n in nodes if n.name in names and isinstance(n.meta.get("val"), torch.Tensor)]


def _uniform_number(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The number that all entries of `tensor` are, as the slopes of a fresh PReLU."""
    if tensor is None or not tensor.numel() or (tensor != tensor.flatten()[0]).any():
        return None
    return tensor.detach().double().flatten()[0]


def _run(node: fx.Node, value: Callable[[fx.Node], Any]) -> torch.Tensor | None:
    assert callable(node.target)
    result = node.target(*fx.map_arg(node.args, value), **fx.map_arg(node.kwargs, value))
    return result if isinstance(result, torch.Tensor) else None


def _export_with_open_sizes(model: nn.Module, example: Example) -> ExportedProgram:
    """The record with as many sizes open as torch.export manages: all, the batch's, or none."""
    # A size of one is taken for a constant.
    batch = example.of_samples(2) if len(example.first) == 1 else example

    def open_sizes(most: int | None) -> Example:
        def of_one(tensor: torch.Tensor) -> Any:
            found = [dim for dim, size in enumerate(tensor.shape) if size > 1]
            return dict.fromkeys(found[:most], Dim.AUTO)

        return batch.map(of_one)

    for dims in (open_sizes(None), open_sizes(1)):
        # A second try within `except`, with the first one's frames alive, would fail like it.
        with contextlib.suppress(UnsupportedModelError):
            return _export(model, batch, dims)
    return _export(model, batch)


def sizes_are_open(
    model: nn.Module, axes: Mapping[fx.Node, core.Axes], calls: Iterable[fx.Node]
) -> bool:
    """Whether none of the recorded `calls` was given a size of the example, as `view(2, -1)` is."""
    modules = dict(model.named_modules(remove_duplicate=False))

    def is_open(node: fx.Node) -> bool:
        name, module = plain_operation(node), modules.get(called_module(node)[0])
        stock = type(module).__module__.startswith("torch.nn.modules")
        if name in ops.WITHOUT_SIZES or (stock and not isinstance(module, ops.WITH_SIZES)):
            return True
        source = node.args[0] if node.args else None
        if name not in ops.CUTS or not isinstance(source, fx.Node) or source not in axes:
            return False
        axis = ops.argument(node, ops.CUTS[name], "dim", 0)  # of channels, that the layers fix
        return axis % len(sizes(source)) in axes[source].channels

    return all(is_open(node) for node in calls if node.op == "call_function")


def _export(model: nn.Module, example: Example, sizes: Example | None = None) -> ExportedProgram:
    # The error that is raised says what is wrong.
    quiet = contextlib.redirect_stderr(io.StringIO())  # where torch prints the part it recorded
    with warnings.catch_warnings(), silence_logging(logging.CRITICAL), quiet:
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(
                model,
                example.args,
                dict(example.kwargs),
                dynamic_shapes=_by_name(model, sizes) if sizes else None,
                strict=False,
            )
        except (Exception, SystemExit) as error:  # of the user's code, too
            advice = (
                "Check that model(example) runs, and takes no branch by the values of tensors, or "
                "convert the submodules that do not, by parts=[...]"
            )
            raise UnsupportedModelError(
                f"torch.export failed on {type(model).__name__} with input shape "
                f"{example.shapes}: {rec.explain_failure(error, advice, rec.SEVERAL)}"
            ) from error
        write_out(program)
        return program


def _by_name(model: nn.Module, sizes: Example) -> Any:
    """Open sizes as torch.export wants them: in the order of the arguments, or by their names."""
    known = lambda size: size if isinstance(size, dict) else None
    if not sizes.kwargs:
        return tuple(map(known, sizes.args))
    names = inspect.signature(model.forward).parameters
    given = {**dict(zip(names, sizes.args, strict=False)), **sizes.kwargs}
    return {name: known(size) for name, size in given.items()}


@contextlib.contextmanager
def silence_logging(level: int) -> Iterator[None]:
    """Hides what is logged at this level and below."""
    before = logging.root.manager.disable
    logging.disable(max(level, before))
    try:
        yield
    finally:
        logging.disable(before)
