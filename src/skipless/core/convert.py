"""A recorded network becomes a shaped one: plan(reading, method), then write(plan, writer).

The plan has the new graph and the solution for it. `write` walks through the record and decides
what becomes of each tensor. A framework's `Writer` only makes the parts: an input, a copy of a
layer or a move, an activation, a weighted sum.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from skipless.tables import table

from .activations import Activation
from .bands import FiniteWidth, Prediction, band_range
from .graph import Fixed, Graph, Measured, Nonlinearity, Sum, inputs_of
from .measured import PartMap
from .network import Point, Size, fold
from .predict import approximations, predict, target_error
from .recognise import CLOSE
from .rescale import normalised_weights, reweight, to_residual_form
from .solution import Method, Solution
from .solve import solve
from .summary import abbreviate, kind_of, layer_rows, name_range, number_range, row_name
from .trace import Reading, Step

# Measured by benchmarks/clipping.py.
_TRAINING = (
    "To train it: SGD with momentum 0.9, gradients clipped at norm 1; try a rate of 0.03 first."
)

T = TypeVar("T", bound=Hashable)  # a framework's own name for a recorded tensor
V = TypeVar("V")  # what stands for it in the new model


@dataclass(frozen=True)
class Change:
    """One thing that conversion did: what, and to which part of the model."""

    what: str
    where: str


@dataclass(frozen=True)
class ConversionReport:
    """What was changed, the solution, and the predicted q and c values; `print` shows it.

    `predicted` has a point for every node of `graph`, for orthogonal inputs. `approximate` lists
    where the theory holds only roughly, `untouched` what was not re-initialised; `kept` are the
    parameters of parts that no formula covers. `bands` hold for orthogonal weights, at the model's
    own `sizes`.
    """

    method: Method
    solution: Solution
    graph: Graph
    sizes: Mapping[int, Size]
    changes: tuple[Change, ...]
    noted: tuple[str, ...]
    untouched: tuple[str, ...]
    kept: tuple[str, ...] = ()
    form: str = ""  # what kind of model came out, where there is a choice
    recipe: object = None  # the arguments of the call, where the model can be made again from them

    def __deepcopy__(self, memo: object) -> "ConversionReport":
        return self  # of which nothing changes

    @cached_property
    def predicted(self) -> tuple[Point, ...]:
        return predict(self.graph, self.solution)

    @cached_property
    def approximate(self) -> tuple[str, ...]:
        return (*self.noted, *approximations(self.graph))

    def __hash__(self) -> int:  # Flax hashes all that a model carries, and a Solution has none
        return hash(self.method)

    def __str__(self) -> str:
        note = self.solution.note and f": {self.solution.note}"
        head = f"{self.graph!r}, shaped by {self.method}{note}"
        parts = [head, self._changes(), self._numbers(), self._layers()]
        if measured := self._measured():
            parts.append(measured)
        if self.approximate:
            parts.append("\n  ".join(["The theory only approximates:", *self.approximate]))
        if self.untouched:
            parts.append("\n  ".join(["Not re-initialised:", *self.untouched]))
        return "\n\n".join([*parts, _TRAINING])

    def _changes(self) -> str:
        places: dict[str, list[str]] = {}
        for change in self.changes:
            places.setdefault(change.what, []).append(change.where)
        rows = [[what, name_range(where)] for what, where in places.items()]
        changes = table(["change", "where"], rows) if rows else "Nothing was changed."
        return f"{changes}\n{self.form}".rstrip()

    @cached_property
    def measured(self) -> dict[str, PartMap]:
        """The maps of the parts that no formula covers, by where they are."""
        nodes = (self.graph.nodes[i] for i in sorted(self.graph.live))
        return {n.origin: n.curve for n in nodes if isinstance(n, Measured)}

    @cached_property
    def target_error(self) -> float:
        """The standard error of the target that comes from measured parts."""
        return target_error(self.graph, self.solution)

    def _measured(self) -> str:
        rows = [
            [where, f"{maps(0.0):.3f} ± {maps.error_at(0.0):.3f}", f"{maps.slope:.3f}"]
            for where, maps in self.measured.items()
            if maps.is_measured
        ]
        if not rows:
            return ""
        aims = {"mu0": "C_f(0)", "mu1": "C_f'(1)", "mu2": "C_f''(1)"}
        target = next(
            (
                f"{n} = {self.solution.targets[k]:.4g}"
                for k, n in aims.items()
                if k in self.solution.targets
            ),
            "",
        )
        end = f"\n\nTheir errors leave {target} ± {self.target_error:.2g}." if target else ""
        return table(["measured part", "C(0)", "C'(1)"], abbreviate(rows)) + end

    def _numbers(self) -> str:
        used = [[k, f"{v:.8g}"] for k, v in self.solution.parameters.items() if v is not None]
        targets = [[name, f"{target:.6g}"] for name, target in self.solution.targets.items()]
        return table([self.solution.activation, "value"], [*used, *targets])

    def _layers(self) -> str:
        live = [(self.graph.nodes[i], point) for i, point in self.bands().items()]
        names = [(kind_of(node), node.origin) for node, _ in live]
        rows: list[list[str]] = []
        for places in layer_rows([kind for kind, _ in names]):
            points = [live[place][1] for place in places]
            rows.append([row_name([names[place] for place in places])])
            for numbers, bands in (
                ([p.q for p in points], [p.q_band for p in points]),
                ([p.c for p in points], [p.c_band for p in points]),
            ):
                rows[-1] += [number_range(numbers), band_range(bands)]
        return table(["layers", "q", "95 %", "c", "95 %"], abbreviate(rows))

    def bands(self) -> dict[int, Prediction]:
        """The predicted points of the nodes that are used, with the bands of 95 % of all draws."""
        return FiniteWidth(self.graph, self.solution, self.sizes).predict(self.predicted)


@dataclass(frozen=True)
class Term(Generic[T]):
    """A term of a sum; a `moved` one is taken from before the activation that it comes from."""

    weight: float
    source: T  # the tensor itself, or what that activation reads
    bare: bool = False  # the weight of a factor times an activation is for the activation alone
    moved: bool = False
    moves: Sequence[T] = ()  # between the activation and the sum


@dataclass(frozen=True)
class Plan(Generic[T]):
    """What a conversion does; `graph` is `form` with new `weights`, the network solved for."""

    reading: Reading[T]
    method: Method
    form: Graph  # the recorded one, with shortcuts that start before activations
    weights: Mapping[int, Sequence[float]]
    graph: Graph
    solution: Solution

    def terms(self, step: Step[T]) -> list[Term[T]]:
        """The terms of a sum that are left, each with its weight."""
        before, after = (inputs_of(g.nodes[step.node]) for g in (self.reading.graph, self.form))
        columns = zip(step.inputs, before, after, self.weights[step.node], strict=True)
        return [self._term(*column) for column in columns if column[-1]]

    def _term(self, tensor: T, before: int, after: int, weight: float) -> Term[T]:
        steps = self.reading.steps
        if before == after:
            return Term(weight, tensor, bare=before == steps[tensor].node)
        moves: list[T] = []
        while steps[tensor].kind != "activation":
            if steps[tensor].kind == "move":  # factors and normalisation are removed
                moves.insert(0, tensor)
            tensor = steps[tensor].inputs[0]
        return Term(weight, steps[tensor].inputs[0], moved=True, moves=moves)

    def require_same_maps(self, converted: Graph) -> None:
        """Raise if the converted model is not the network that was solved for."""
        graphs = (self.graph, converted)
        counts = [sum(isinstance(g.nodes[i], Nonlinearity) for i in g.live) for g in graphs]
        values = [fold(g, lambda c: 0.9 * c + 0.1, 0.0) for g in graphs]
        # Each factor that is kept, and read again, is as exact as functions are recognised.
        kept = sum(isinstance(node, Fixed | Measured) for node in converted.nodes)
        if counts[0] != counts[1] or abs(values[0] - values[1]) > CLOSE * (1 + kept):
            raise AssertionError(
                f"The solution is for {counts[0]} activations and C_f(0) = {values[0]:.6g} under a "
                f"test map, but the converted model has {counts[1]} and {values[1]:.6g}. This is "
                "an error in skipless; please report the model."
            )

    def report(
        self, changes: Sequence[Change], untouched: Sequence[str], kept: Collection[str] = ()
    ) -> ConversionReport:
        return ConversionReport(
            self.method,
            self.solution,
            self.graph,
            self.reading.sizes,
            tuple(changes),
            tuple(self.reading.notes.approximate),
            tuple(untouched),
            tuple(sorted(kept)),
        )


def plan(
    reading: Reading[T],
    method: Method,
    activation: str | Activation = "leaky_relu",
    shortcut_weight: float | None = None,
    clamp: bool = False,
    network: Graph | None = None,
) -> Plan[T]:
    """The conversion of a recorded network, solved for it, or for the `network` it is a part of."""
    form, weights, graph = planned_graph(reading, shortcut_weight)
    solution = solve(network or graph, method, activation, clamp=clamp)
    return Plan(reading, method, form, weights, graph, solution)


def planned_graph(
    reading: Reading[T], shortcut_weight: float | None
) -> tuple[Graph, Mapping[int, Sequence[float]], Graph]:
    """The recorded graph in residual form, new weights of its sums, and the graph with them."""
    form = to_residual_form(reading.graph)
    weights = normalised_weights(form, shortcut_weight)
    return form, weights, reweight(form, weights)


class Writer(ABC, Generic[T, V]):
    """Makes the parts of a new model from recorded tensors."""

    trains_slopes = False  # of leaky ReLUs

    @abstractmethod
    def tensors(self) -> Iterator[T]:
        """All recorded tensors, constants included, in order of evaluation."""

    @abstractmethod
    def reads(self, tensor: T) -> Sequence[T]:
        """The recorded tensors that a copy of `tensor` needs."""

    @abstractmethod
    def origin(self, tensor: T) -> str:
        """Where in the user's model `tensor` is computed."""

    @abstractmethod
    def input(self, tensor: T) -> V:
        """The model's input."""

    @abstractmethod
    def copy(self, tensor: T, use: Callable[[T], V]) -> V:
        """The operation of `tensor`, such as a layer or a move, on what `use` returns."""

    @abstractmethod
    def activation(self, tensor: T, x: V) -> V:
        """The shaped activation of `x`."""

    @abstractmethod
    def add(self, tensor: T, terms: Sequence[tuple[float, V]]) -> V:
        """The weighted sum of `terms`."""

    @abstractmethod
    def negative(self, x: V) -> V: ...

    @abstractmethod
    def give_bias(self, tensor: T) -> bool:
        """Whether the layer that makes `tensor` had no bias, and has one now."""

    def stands_for(self, tensor: T, value: V) -> None:
        """Note that the new model has `value` in place of a recorded tensor."""


def write(plan: Plan[T], writer: Writer[T, V]) -> tuple[list[V], list[Change]]:
    """Write the new model by `writer`; returns its outputs and what was changed."""
    return _Process(plan, writer).run()


class _Process(Generic[T, V]):
    """The model as far as it is written."""

    def __init__(self, plan: Plan[T], writer: Writer[T, V]) -> None:
        self.plan, self.writer, self.steps = plan, writer, plan.reading.steps
        self._changes: list[Change] = []
        self._written: dict[T, V] = {}
        self._negated: dict[T, V] = {}
        self._activated: dict[int, V] = {}

    def run(self) -> tuple[list[V], list[Change]]:
        needed = self._needed()
        for tensor in layers_at_norms(self.steps, needed):
            if self.writer.give_bias(tensor):
                self._changed("bias added", tensor)
        for tensor in self.writer.tensors():
            if tensor in needed:
                self._written[tensor] = self._write(tensor)
                if (step := self.steps.get(tensor)) is None or step.scale >= 0.0:
                    self.writer.stands_for(tensor, self._written[tensor])
        for tensor, step in self.steps.items():
            if step.kind == "affine" and tensor not in needed:
                self._changed("layer of a shortcut removed", tensor)
        return [self._use(output) for output in self.plan.reading.outputs], self._changes

    def _needed(self) -> set[T]:
        """The recorded tensors that the new model is made of."""
        waiting = list(self.plan.reading.outputs)
        needed = {next(iter(self.steps))}
        while waiting:
            if (tensor := waiting.pop()) not in needed:
                needed.add(tensor)
                waiting += self._reads(tensor)
        return needed

    def _reads(self, tensor: T) -> Iterator[T]:
        match self.steps.get(tensor):
            case Step(kind="sum") as step:
                for term in self.plan.terms(step):
                    yield term.source
                    for move in term.moves:
                        moved = self.steps[move].inputs[0]
                        yield from (t for t in self.writer.reads(move) if t != moved)
            case Step(kind="norm" | "activation" | "scale") as step:
                yield from step.inputs
            case _:
                yield from self.writer.reads(tensor)

    def _write(self, tensor: T) -> V:
        match self.steps.get(tensor):
            case Step(kind="norm") as step:
                self._changed("normalisation removed", tensor)
                return self._use(step.inputs[0])
            case Step(kind="scale") as step:
                if not math.isclose(step.scale, 1.0):  # as of a sum divided by its count
                    self._changed(f"factor {step.scale:.4g} removed", tensor)
                return self._use(step.inputs[0])
            case Step(kind="move"):
                return self._move(tensor, self._use)
            case Step(kind="activation") as step:
                return self._activate(tensor, step)
            case Step(kind="sum") as step:
                return self._add(tensor, step)
            case Step(kind="gate") as step:
                return self._scale_gate(tensor, step)
            case Step(kind="part") as step:
                return self._keep(tensor, step)
            case Step(kind="input") if not self.writer.reads(tensor):
                return self.writer.input(tensor)
            case Step(kind="output"):
                self._changed("computed after the network, kept", tensor)
                return self.writer.copy(tensor, self._use)
            case _:
                return self.writer.copy(tensor, self._use)

    def _move(self, tensor: T, use: Callable[[T], V]) -> V:
        """A move of numbers; of a sum over places, the mean."""
        step, value = self.steps[tensor], self.writer.copy(tensor, use)
        source = self.steps[step.inputs[0]]
        factor = step.scale / (source.scale if source.kind == "move" else 1.0)
        return value if factor == 1.0 else self.writer.add(tensor, [(1.0 / factor, value)])

    def _use(self, tensor: T) -> V:
        """What stands for a recorded tensor in the new model; of a factor, the sign is left."""
        step = self.steps.get(tensor)
        if step is None or step.scale >= 0.0:
            return self._written[tensor]
        if tensor not in self._negated:
            self._negated[tensor] = self.writer.negative(self._written[tensor])
        return self._negated[tensor]

    def _changed(self, what: str, tensor: T) -> None:
        self._changes.append(Change(what, self.writer.origin(tensor)))

    def _activate(self, tensor: T, step: Step[T]) -> V:
        if step.node not in self._activated:  # which a multiple of it may have written before
            self._activated[step.node] = self.writer.activation(tensor, self._use(step.inputs[0]))
            solution = self.plan.solution
            name = "TReLU" if solution.is_rectifier else f"shaped {solution.activation}"
            own = "function of its own" if step.own else "activation"
            trained = ", its slope trained" if self.writer.trains_slopes else ""
            self._changed(f"{own} replaced by {name}{trained}", tensor)
        return self._activated[step.node]

    def _scale_gate(self, tensor: T, step: Step[T]) -> V:
        """The function of a gate, with the factor behind it that makes q = 1."""
        before, after = (g.nodes[step.node] for g in (self.plan.reading.graph, self.plan.graph))
        assert isinstance(before, Fixed)
        assert isinstance(after, Fixed)
        factor, gate = after.scale / before.scale, self.writer.copy(tensor, self._use)
        if math.isclose(factor, 1.0):
            return gate
        self._changed(f"gate kept, times {factor:.4g}", tensor)
        return self.writer.add(tensor, [(factor, gate)])

    def _keep(self, tensor: T, step: Step[T]) -> V:
        """A part that stays as it is, with the factor behind it that makes q = 1."""
        part = self.plan.reading.graph.nodes[step.node]
        assert isinstance(part, Measured)
        factor = part.curve.gain**-0.5
        how = "measured" if part.curve.is_measured else "derived"
        self._changed(f"part kept, {how}, with a factor behind it", tensor)
        return self.writer.add(tensor, [(factor, self.writer.copy(tensor, self._use))])

    def _add(self, tensor: T, step: Step[T]) -> V:
        terms = self.plan.terms(step)
        for term in terms:
            if term.moved:
                self._changed("shortcut taken from before the activation", tensor)
        recorded = self.plan.reading.graph.nodes[step.node]
        assert isinstance(recorded, Sum)
        before, after = (
            " and ".join(f"{w:.4g}" for w in weights)
            for weights in (recorded.weights, self.plan.weights[step.node])
        )
        if before != after:
            self._changed(f"sum weighted by {after} instead of {before}", tensor)
        values = [(term.weight, self._value(term)) for term in terms]
        alone = [term.weight for term in terms] == [1.0]
        return values[0][1] if alone else self.writer.add(tensor, values)

    def _value(self, term: Term[T]) -> V:
        value = self._written[term.source] if term.bare else self._use(term.source)
        for move in term.moves:
            before, now = self.steps[move].inputs[0], value
            value = self._move(move, lambda t: now if t == before else self._use(t))  # noqa: B023
        return value


def layers_at_norms(steps: Mapping[T, Step[T]], needed: Collection[T]) -> list[T]:
    """The layers that a normalisation reads, or that read it, directly or behind an activation.

    The shift of a normalisation is left to these, which may lack a bias.

    >>> steps = {"x": Step("input", 0), "a": Step("affine", 1, ("x",))}
    >>> steps |= {"n": Step("norm", 1, ("a",)), "b": Step("affine", 2, ("n",))}
    >>> layers_at_norms(steps, steps)
    ['a', 'b']
    """
    found: list[T] = []
    normalised: set[T] = set()
    for tensor, step in steps.items():
        if tensor not in needed:
            continue
        after = bool(step.inputs) and step.inputs[0] in normalised
        if step.kind == "norm" or (after and step.kind in ("move", "activation", "scale")):
            normalised.add(tensor)
        if step.kind == "norm":
            source = step.inputs[0]
            while steps[source].kind in ("move", "norm"):
                source = steps[source].inputs[0]
            found.append(source)
        elif after:
            found.append(tensor)
    return [tensor for tensor in found if steps[tensor].kind == "affine"]
