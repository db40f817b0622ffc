"""A model shaped in one line: convert(model, example, method) -> model.

A recorded model written out again, with other activations and sums and no normalisation.

What `convert` returns: a model that carries the account of how it was made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from skipless.core.activations import Activation
from skipless.core.convert import Change, Sums, Term, demand_same, layers_at_norms
from skipless.core.graph import Graph
from skipless.core.network import Point
from skipless.core.predict import approximations, predict
from skipless.core.rescale import normalised_weights, reweight, to_residual_form
from skipless.core.solution import TAT, Method, Solution
from skipless.core.solve import solve
from skipless.tables import table

from .activations import ShapedActivation
from .init import draw_
from .normalize import PerLocationNormalization
from .operations import called_module, give_bias_, module_of_layer, operation, origin, out_of_place
from .trace import Reading, Step, UnsupportedModelError, read

_DROPOUTS: dict[str, Callable[[float], nn.Module]] = {
    "dropout": nn.Dropout,
    "feature_dropout": nn.Dropout2d,
    "alpha_dropout": nn.AlphaDropout,
    "feature_alpha_dropout": nn.FeatureAlphaDropout,
}


@dataclass(frozen=True)
class Rewritten:
    """The new graph with its parts, and what is different."""

    graph: fx.Graph
    parts: dict[str, nn.Module | torch.Tensor]
    changes: list[Change] = field(default_factory=list[Change])


def rewrite(
    model: nn.Module,
    reading: Reading,
    form: Graph,
    weights: Mapping[int, Sequence[float]],
    activation: Callable[[], nn.Module],
) -> Rewritten:
    """The operations that lead to the output, with the sums of `form` and new activations.

    `form` is the graph of `reading`, but for terms of sums that are taken from before an
    activation; `weights` are those of its sums. Layers and parameters of `model` are used as they
    are and keep their names.
    """
    writer = _Writer(model, reading, form, weights, activation)
    needed = writer.needed()
    for node in reading.program.graph.nodes:
        if node in needed:
            writer.write(node)
    writer.give_biases(needed)
    writer.list_the_dropped(needed)
    writer.write_output()
    return Rewritten(writer.new, writer.parts, writer.changes)


class _Writer:
    def __init__(
        self,
        model: nn.Module,
        reading: Reading,
        form: Graph,
        weights: Mapping[int, Sequence[float]],
        activation: Callable[[], nn.Module],
    ) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.tensors: dict[str, Any] = {
            **reading.program.constants,
            **dict(model.named_buffers(remove_duplicate=False)),
            **dict(model.named_parameters(remove_duplicate=False)),
        }
        self.reading = reading
        self._sums = Sums(reading.steps, reading.graph, form, weights)
        self.activation = activation
        self.names = {
            spec.arg.name: spec.target for spec in reading.program.graph_signature.input_specs
        }
        self.new = fx.Graph()
        self.parts: dict[str, nn.Module | torch.Tensor] = {}
        self.changes: list[Change] = []
        self._written: dict[fx.Node, fx.Node] = {}
        self._activated: dict[int, fx.Node] = {}
        self._calls: dict[str, fx.Node] = {}
        self._activation_names: dict[str, str] = {}

    def needed(self) -> set[fx.Node]:
        """The recorded nodes that the new graph is made of."""
        needed, todo = {self.reading.output}, [self.reading.output]
        while todo:
            for before in self._reads(todo.pop()):
                if before not in needed:
                    needed.add(before)
                    todo.append(before)
        return needed

    def _reads(self, node: fx.Node) -> Sequence[fx.Node]:
        step = self.reading.steps.get(node)
        if step is not None:
            if step.kind == "sum":
                terms = self._sums.terms(step)
                others = [a for t in terms for move in t.moves for a in move.all_input_nodes[1:]]
                return [*(term.source for term in terms), *others]
            if step.kind in ("norm", "activation", "scale") or self._layer(node):
                return step.inputs
        now = self.reading.inputs.get(node, {})
        return [now.get(a, a) for a in node.all_input_nodes]

    def _layer(self, node: fx.Node) -> str | None:
        return module_of_layer(node, self.modules, self.names)

    def write(self, node: fx.Node) -> None:
        step = self.reading.steps.get(node)
        kind = None if step is None else step.kind
        path, call = called_module(node)
        if step is not None and isinstance(self.modules.get(path), PerLocationNormalization):
            self._normalise_input(node, path, call)
        elif kind == "input" and node.op == "placeholder":
            self._written[node] = self.new.placeholder(node.name)
        elif node.op == "placeholder":
            self._written[node] = self._attribute(node)
        elif step is not None and kind in ("norm", "scale"):
            self._pass_on(node, step)
        elif step is not None and kind == "activation":
            self._activate(node, step)
        elif step is not None and kind == "sum":
            self._sum(node, step)
        elif step is not None and kind in ("affine", "move"):
            self._layer_or_function(node, step)
        else:
            self._written[node] = self._copy(node)

    def _normalise_input(self, node: fx.Node, path: str, call: str) -> None:
        """One call of the module, in place of all that it computes."""
        if call not in self._calls:
            step = self.reading.steps[node]
            self._calls[call] = self._module(path, lambda: self.modules[path], step.inputs)
        self._written[node] = self._calls[call]

    def use(self, node: fx.Node) -> fx.Node:
        """What stands for a recorded node in the new graph; of a factor, the sign is left."""
        step = self.reading.steps.get(node)
        if step is not None and step.scale < 0.0:
            return self.new.call_function(torch.neg, (self._written[node],))
        return self._written[node]

    def _attribute(self, node: fx.Node) -> fx.Node:
        name = self.names[node.name]
        assert name is not None
        self.parts[name] = self.tensors[name]
        return self.new.get_attr(name)

    def _pass_on(self, node: fx.Node, step: Step) -> None:
        self._written[node] = self.use(step.inputs[0])
        if step.kind == "norm":
            self._changed("normalisation removed", node)
        else:
            self._changed(f"factor {step.scale:.4g} removed", node)

    def _activate(self, node: fx.Node, step: Step) -> None:
        if step.node not in self._activated:  # which a multiple of it may have written before
            name = self._activation_name(called_module(node)[0])
            self._activated[step.node] = self._module(name, self.activation, step.inputs)
            self._changed(f"activation replaced by {self.parts[name]}", node)
        self._written[node] = self._activated[step.node]

    def _activation_name(self, path: str) -> str:
        """The path of a module that is but an activation, or a name inside of a larger one."""
        if path not in self._activation_names:
            module = self.modules[path]
            stock = type(module).__module__ == nn.modules.activation.__name__
            bare = not list(module.parameters()) and not list(module.children())
            alone = path and (stock or bare)
            self._activation_names[path] = path if alone else self._free(_join(path, "activation"))
        return self._activation_names[path]

    def _module(
        self, name: str, build: Callable[[], nn.Module], inputs: Sequence[fx.Node]
    ) -> fx.Node:
        if name not in self.parts:
            self.parts[name] = build()
        return self.new.call_module(name, tuple(self.use(i) for i in inputs))

    def _sum(self, node: fx.Node, step: Step) -> None:
        total: fx.Node | None = None
        for term in self._sums.terms(step):
            value = self._value(term)
            if total is not None:
                total = self.new.call_function(torch.add, (total, value), {"alpha": term.weight})
            elif term.weight == 1.0:
                total = value
            else:
                total = self.new.call_function(torch.mul, (value, term.weight))
            if term.moved:
                self._changed("shortcut taken from before the activation", node)
        assert total is not None
        self._written[node] = total
        if (change := self._sums.reweight(step)) is not None:
            self._changed(change, node)

    def _value(self, term: Term[fx.Node]) -> fx.Node:
        if not term.moved:
            # The weight of a factor times an activation is for the activation alone.
            bare = term.node == self.reading.steps[term.tensor].node
            return self._written[term.tensor] if bare else self.use(term.tensor)
        value = self.use(term.source)
        for move in term.moves:
            known = {self.reading.steps[move].inputs[0]: value}
            path = self._layer(move)
            if path is None:
                value = self._copy(move, known)
            else:
                value = self.new.call_module(path, (value,))
        return value

    def _layer_or_function(self, node: fx.Node, step: Step) -> None:
        path, name = self._layer(node), operation(node).rstrip("_")
        if path is not None:
            module = self.modules[path]
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.inplace = False  # what it would overwrite may have other readers now
            self._written[node] = self._module(path, lambda: module, step.inputs)
        elif name in _DROPOUTS:  # as a function, it would not know training from evaluation
            rate = node.args[1]
            assert isinstance(rate, float | int)
            build = lambda: _DROPOUTS[name](rate)
            place = self._free(_join(called_module(node)[0], name))
            self._written[node] = self._module(place, build, step.inputs)
        else:
            self._written[node] = self._copy(node)

    def _free(self, name: str) -> str:
        taken = {*self.parts, *self.modules}
        while name in taken:
            name += "_"
        return name

    def _copy(self, node: fx.Node, known: Mapping[fx.Node, fx.Node] = {}) -> fx.Node:
        """The same operation, without the effect of writing into its first argument.

        `known` holds what to use for some of the recorded nodes that it reads.
        """
        now = self.reading.inputs.get(node, {})

        def argument(a: fx.Node) -> Any:
            tensor = now.get(a, a)
            return known[tensor] if tensor in known else self.use(tensor)

        arguments = fx.map_arg(node.args, argument)
        keywords = fx.map_arg(node.kwargs, argument)
        copied = self.new.call_function(out_of_place(node.target), arguments, keywords)
        copied.meta = {
            k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace")
        }
        return copied

    def give_biases(self, needed: set[fx.Node]) -> None:
        """A shift that normalisation had is left to the layers around it, which may lack one."""
        for node in layers_at_norms(self.reading.steps, needed):
            path = self._layer(node)
            if path is not None and give_bias_(self.modules[path]):
                self._changed("bias added", node)

    def write_output(self) -> None:
        """The output in the structure that the model gives it, such as a dictionary."""
        (results,) = next(reversed(self.reading.program.graph.nodes)).args
        assert isinstance(results, list | tuple)
        output = self.use(self.reading.output)
        values = [output if isinstance(result, fx.Node) else result for result in results]
        spec = self.reading.program.call_spec.out_spec
        assert spec is not None
        self.new.output(pytree.tree_unflatten(values, spec))

    def list_the_dropped(self, needed: set[fx.Node]) -> None:
        for node, step in self.reading.steps.items():
            if step.kind == "affine" and node not in needed:
                self._changed("layer of a shortcut removed", node)

    def _changed(self, what: str, node: fx.Node) -> None:
        self.changes.append(Change(what, origin(node)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_SHOWN_LAYERS = 16


@dataclass(frozen=True)
class ConversionReport:
    """What was changed, the solution, and the predicted q and c values; `print` shows it.

    `predicted` has a point for every node of `graph`, for two inputs of q value 1 that are
    orthogonal. `approximate` lists the places where the theory holds only roughly, `untouched` the
    parameters that were not drawn anew.
    """

    method: Method
    solution: Solution
    graph: Graph
    predicted: tuple[Point, ...]
    changes: tuple[Change, ...]
    approximate: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{self.graph!r}, shaped by {self.method}",
            self._changes(),
            self._solution(),
            self._layers(),
        ]
        if self.approximate:
            parts.append(_listed("The theory only approximates:", self.approximate))
        if self.untouched:
            parts.append(_listed("Parameters left as they were:", self.untouched))
        return "\n\n".join(parts)

    def _changes(self) -> str:
        places: dict[str, list[str]] = {}
        for change in self.changes:
            places.setdefault(change.what, []).append(change.where)
        rows = [[what, str(len(where)), _ends(where)] for what, where in places.items()]
        return table(["change", "times", "where"], rows) if rows else "Nothing was changed."

    def _solution(self) -> str:
        used = [[k, f"{v:.8g}"] for k, v in self.solution.parameters.items() if v is not None]
        wanted = [[name, f"{target:.6g}"] for name, target in self.solution.targets.items()]
        return table([self.solution.activation, "value"], [*used, *wanted])

    def _layers(self) -> str:
        rows = [
            [str(i), type(self.graph.nodes[i]).__name__, f"{p.q:.4f}", f"{p.c:.4f}", place]
            for i, p in enumerate(self.predicted)
            if i in self.graph.live
            for place in [self.graph.nodes[i].origin]
        ]
        if (hidden := len(rows) - _SHOWN_LAYERS) > 1:
            half = _SHOWN_LAYERS // 2
            rows = [*rows[:half], ["…", f"{hidden} more", "", "", ""], *rows[-half:]]
        return table(["node", "kind", "q", "c", "where"], rows)


class ConvertedModel(fx.GraphModule):
    """A model as `convert` rewrote it; layers keep their names, `forward` is generated code."""

    skipless_report: ConversionReport

    def __deepcopy__(self, memo: dict[int, Any]) -> ConvertedModel:
        copy = super().__deepcopy__(memo)
        assert isinstance(copy, ConvertedModel)
        copy.skipless_report = self.skipless_report
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()[:2]
        return _rebuilt, (rebuild, arguments, self.skipless_report)


def _rebuilt(rebuild: Any, arguments: Any, report: ConversionReport) -> ConvertedModel:
    plain = rebuild(*arguments)
    model = ConvertedModel(plain, plain.graph, type(plain).__name__)
    model.train(plain.training)
    model.skipless_report = report
    return model


def _ends(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} … {where[-1]}"


def _listed(head: str, lines: Sequence[str]) -> str:
    return "\n  ".join([head, *lines])


def convert(
    model: nn.Module,
    example: torch.Tensor,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    shortcut_weight: float | None = None,
    activation: str | Activation = "leaky_relu",
    function: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clamp: bool = False,
    generator: torch.Generator | None = None,
) -> ConvertedModel:
    r"""A new model like `model`, shaped by `method`; `skipless_report` of it says what was done.

    - Normalisation layers are removed, and layers next to them without biases are given some.
    - Every activation becomes the one that `solve` finds for the network as it is after conversion:
      a `TReLU` under TAT, or the shaped `activation`.
    - Every sum is normalised. With a `shortcut_weight` w, residual sums become
      $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$; with 0 the shortcuts are removed, and what only they
      need. Without one, the terms of a sum keep their proportions. Where a block ends in an
      activation, as in a ResNet of the first kind, the shortcut starts before the activation of
      the block before it, as in one of the second: the theory asks for that (`core.rescale`).
    - Weights and biases are drawn anew, as `initialize_` does.

    Layers and parameters that remain keep their names. The model is written out as a
    `torch.fx.GraphModule` for the course that `model` takes on `example`, with sizes left open that
    it does not fix. `clamp` is for `solve`; `function` is φ in tensors, where `activation` is an
    `Activation` of your own.

    >>> blocks = [m for _ in range(20) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    >>> deep = convert(nn.Sequential(*blocks), torch.zeros(2, 8), TAT(eta=0.9))
    >>> round(deep.skipless_report.predicted[-1].c, 6)
    0.9
    """
    original, model = model, _copied(model)
    reading = read(model, example, dynamic=True)
    form = to_residual_form(reading.graph)
    weights = normalised_weights(form, shortcut_weight)
    graph = reweight(form, weights)
    solution = solve(graph, method, activation, clamp=clamp)

    build = partial(_activation, solution, function, example.device)
    rewritten = rewrite(model, reading, form, weights, build)
    name = type(original).__name__
    converted = ConvertedModel(rewritten.parts, rewritten.graph, name)  # pyright: ignore[reportArgumentType]
    converted.graph.eliminate_dead_code()
    converted.recompile()
    converted.train(original.training)
    demand_same(graph, read(converted, example).graph)

    untouched = draw_(
        converted, sigma_w=solution.sigma_w, sigma_b=solution.sigma_b, generator=generator
    )
    converted.skipless_report = ConversionReport(
        method,
        solution,
        graph,
        predict(graph, solution),
        tuple(rewritten.changes),
        (*reading.notes.approximate, *approximations(graph)),
        tuple(untouched),
    )
    return converted


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # of tensors that are computed from parameters
        raise UnsupportedModelError(
            f"{type(model).__name__} was to be copied, but cannot be: {error}. Remove weight "
            "normalisation and other reparametrisations first."
        ) from error


def _activation(
    solution: Solution,
    function: Callable[[torch.Tensor], torch.Tensor] | None,
    device: torch.device,
) -> nn.Module:
    return ShapedActivation.from_solution(solution, function).to(device)
