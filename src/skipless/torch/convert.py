"""A model shaped in one line: convert(model, example, method) -> model.

The recorded model is written again as a `torch.fx` graph, with other activations and sums and
without normalisation.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from skipless.core import trace as core
from skipless.core.activations import Activation
from skipless.core.arguments import require_flag, require_function
from skipless.core.convert import Change, ConversionReport, Plan, Writer, plan, write
from skipless.core.graph import Graph
from skipless.core.solution import TAT, Method
from skipless.core.summary import name_range

from . import operations as ops
from .activations import ShapedActivation, Slopes, TrainableTReLU, which_slopes
from .example import Example, Given, require_example
from .init import initialize_, require_parameters
from .normalize import PerLocationNormalization
from .parts import Known, Parts
from .replay import Replayed, replay, same_function
from .submodules import convert_parts
from .surgery import Flat, Signature, operate, signatures
from .trace import (
    Description,
    Reading,
    UnsupportedModelError,
    read,
    sizes_are_open,
    user_inputs,
    with_weights,
)

_DROPOUTS: dict[str, Callable[[float], nn.Module]] = {
    "dropout": nn.Dropout,
    "feature_dropout": nn.Dropout2d,
    "alpha_dropout": nn.AlphaDropout,
    "feature_alpha_dropout": nn.FeatureAlphaDropout,
}


_STOCK_FORWARDS = {cls.forward for cls in ops.STOCK_LAYERS}


class DropPath(nn.Module):
    """Stochastic depth: in training, a branch is zero for some samples, and larger for the rest.

    It is kept with probability `keep`, drawn for each index along `axes`, such as that of samples.
    """

    def __init__(self, keep: float, axes: Sequence[int] = (0,)) -> None:
        super().__init__()
        self.keep, self.axes = keep, tuple(axes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.keep == 1.0:
            return x
        shape = [size if axis in self.axes else 1 for axis, size in enumerate(x.shape)]
        return x * x.new_empty(shape).bernoulli_(self.keep) / self.keep

    def extra_repr(self) -> str:
        return f"keep={self.keep:g}"


class ResultsInClass(nn.Module):
    """Puts results into the class that a model returns, such as a dataclass of `transformers`."""

    def __init__(self, spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, *values: object) -> object:
        return pytree.tree_unflatten(values, self.spec)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "spec": pytree.treespec_dumps(self.spec)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "spec": pytree.treespec_loads(state["spec"])})


def _is_plain(spec: pytree.TreeSpec) -> bool:
    plain = spec.is_leaf() or spec.type in (tuple, list, dict)
    return plain and all(map(_is_plain, spec.children()))


class ConvertedModel(nn.Module):
    """What `convert` returns: a model with a report; of the class of the original, or a graph."""

    skipless_report: ConversionReport


class ConvertedGraph(fx.GraphModule, ConvertedModel):
    """A model that `convert` wrote out; layers keep their names, `forward` is generated code."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ConvertedGraph:
        copied: Any = super().__deepcopy__(memo)
        copied.skipless_report = self.skipless_report
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (*super().__reduce__()[:2], self.skipless_report)


def _rebuild(rebuild: Any, arguments: Any, report: ConversionReport) -> ConvertedGraph:
    plain = rebuild(*arguments)
    model = ConvertedGraph(plain, plain.graph, type(plain).__name__)
    model.skipless_report = report
    return model.train(plain.training)


def convert(
    model: nn.Module,
    example: Given,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    activation: str | Activation = "leaky_relu",
    shortcut_weight: float | None = None,
    function: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clamp: bool = False,
    parts: Sequence[str] | None = None,
    strict: bool = False,
    trainable_slope: bool | Slopes = False,
    generator: torch.Generator | None = None,
) -> ConvertedModel:
    r"""A new model like `model`, shaped by `method`; its `skipless_report` says what was done.

    - Normalisation layers are removed, and layers next to them without biases are given some.
    - Every activation becomes the one that `solve` finds for the network as it is after conversion:
      a `TReLU` under TAT, or the shaped `activation`.
    - Every sum is normalised. Where a block ends in an activation, as in post-activation (v1)
      ResNets, the shortcut starts before the activation of the block before it, as in
      pre-activation (v2) ones: the theory asks for that (`core.rescale`).
    - Weights and biases are re-initialised, as `initialize_` does.
    - A part that no formula covers, such as attention or a recurrent cell, stays as it is, with the
      weights that it has. Its C map is measured, and a factor behind it makes q = 1.
    - What is computed after the network stays: probabilities, a sigmoid or tanh that occurs only
      there, the sums of a duelling Q-network.

    Layers and parameters that remain keep their names. The result is of the model's own class, with
    its methods and attributes, if modules could be replaced: normalisation by `nn.Identity`,
    activations by shaped ones, blocks whose sums are weighted by graph modules. If the model's own
    `forward` would have to change, as where it calls `F.relu` or adds, the result is a
    `torch.fx.GraphModule` for the course that `model` takes on `example`, with sizes left open that
    it does not fix. The report says which.

    Args:
        model: The network, which is left as it is.
        example: A batch of inputs: a tensor, a sequence of arguments, or a mapping of arguments by
            name, as the model is called.
        method: `TAT`, `DKS` or `EOC`, with its target.
        activation: Which φ to shape.
        shortcut_weight: With w, residual sums become $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$; with 0
            the shortcuts are removed, and what only they need. Without one, the terms of a sum keep
            their proportions.
        function: φ in tensors, if `activation` is an `Activation` of your own.
        clamp: Whether to take the nearest target, with a warning, if it is out of reach.
        parts: Names of the submodules to convert, such as `["backbone.layer*"]`, in place of all.
            They are shaped as one network; all else stays, with its weights. The example may then
            also be a tuple or a dictionary of arguments.
        strict: Whether to refuse parts that no formula covers, instead of measuring them.
        trainable_slope: Whether the slopes of leaky ReLUs are trained, from those that TAT finds:
            one for each "channel" (True) or "layer", as in `nn.PReLU`.
        generator: The source of the new weights.

    >>> blocks = [m for _ in range(20) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    >>> deep = convert(nn.Sequential(*blocks), torch.zeros(2, 8), TAT(eta=0.9))
    >>> round(deep.skipless_report.predicted[-1].c, 6)
    0.9
    """
    slopes = which_slopes(trainable_slope)

    def one(part: nn.Module, x: Given, network: Graph | None = None) -> ConvertedModel:
        call = Example.of(x)
        layout = Layout(tuple(call.first.shape), str(call.first.dtype).removeprefix("torch."))
        recipe = Recipe(layout, method, activation, shortcut_weight, clamp, slopes)
        return shape(
            part, call, recipe, function, network=network, strict=strict, generator=generator
        )

    if parts is None:
        require_example(model, example)
        return one(model, example)
    whole: Any = convert_parts(model, example, parts, shortcut_weight, one, strict=strict)
    return whole


@dataclass(frozen=True)
class Layout:
    """What matters of an example: its shape, and the name of its type."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Recipe:
    """The arguments of a conversion."""

    example: Layout
    method: Method
    activation: str | Activation
    shortcut_weight: float | None
    clamp: bool
    trainable_slope: Slopes | None = None


def shape(
    model: nn.Module,
    example: Example,
    recipe: Recipe,
    function: Callable[[torch.Tensor], torch.Tensor] | None = None,
    *,
    network: Graph | None = None,
    strict: bool = False,
    draw: bool = True,
    generator: torch.Generator | None = None,
) -> ConvertedModel:
    """The converted model; without `draw`, its weights are still those of `model`.

    If it is a part of a `network`, that is what is solved for.
    """
    require_function("function", function)
    require_flag("strict", strict)
    choices = recipe.method, recipe.activation, recipe.shortcut_weight, recipe.clamp
    solve = lambda reading: plan(reading, *choices, network)
    flags: dict[str, Any] = {"strict": strict, "slopes": recipe.trainable_slope}
    written = _write(model, example, solve, function, **flags)
    if (own := _in_own_class(written, example)) is None:
        calls = written.reading.program.graph.nodes
        if not sizes_are_open(written.model, written.reading.axes, calls):
            found = written.reading.parts.found
            written = _write(model, example, solve, function, **flags, measured=found, dynamic=True)
        own = written.flat.module, _replay(written.flat.module, example), _WRITTEN_OUT
    converted, record, form = own
    parts = written.reading.parts
    _prove(written.plan, converted, example, record, parts.found)
    require_parameters(written.flat.module, written.inside)
    solution, untouched, kept = written.plan.solution, list[str](), parts.parameters
    if draw:
        untouched = initialize_(
            written.flat.module,
            sigma_w=solution.sigma_w,
            sigma_b=solution.sigma_b,
            generator=generator,
            keep=kept,
        )
    untouched += _beside(converted, written.flat.module)
    report = written.plan.report(written.changes, untouched, kept)
    result: Any = converted
    # Measured again, with other weights, its parts would have other factors behind them.
    alone = len(example.args) == 1 and not example.kwargs and network is None
    again = recipe if alone and function is None and not parts.found else None
    result.skipless_report = replace(report, form=form, recipe=again)
    return result


def _beside(model: nn.Module, written: nn.Module) -> list[str]:
    """Parameters of `model` in no record: of what does not run, such as a head for training."""
    known = {id(parameter) for parameter in written.parameters()}
    return [name for name, p in model.named_parameters() if id(p) not in known]


_WRITTEN_OUT = "The model is a torch.fx graph: code between its modules had to change."


@dataclass(frozen=True)
class _Written:
    """A conversion as one graph; it shares its layers with `model`, a copy of the user's."""

    model: nn.Module
    plan: Plan[fx.Node]
    reading: Reading
    flat: Flat
    changes: Sequence[Change]
    known: Mapping[str, Signature]
    inside: Collection[str]  # names of operations of parts that stay as they are


def _write(
    model: nn.Module,
    example: Example,
    solve: Callable[[Reading], Plan[fx.Node]],
    function: Callable[[torch.Tensor], torch.Tensor] | None,
    *,
    strict: bool = False,
    slopes: Slopes | None = None,
    measured: Known = (),
    dynamic: bool = False,
) -> _Written:
    copied = _deepcopy(with_weights(model, example))
    with signatures(copied) as known:
        reading = read(copied, example, dynamic=dynamic, strict=strict, known=measured)
    planned = solve(reading)
    shaper = _Shaper(planned, function, slopes, example.first.device)
    writer = _GraphWriter(copied, reading, shaper)
    outputs, changes = write(planned, writer)
    writer.close(outputs)
    graph = ConvertedGraph(writer.parts, writer.new, type(model).__name__)  # pyright: ignore[reportArgumentType]
    graph.graph.eliminate_dead_code()
    graph.recompile()
    graph.train(model.training)
    flat = Flat(graph, writer.homes, writer.copies, writer.values)
    return _Written(copied, planned, reading, flat, changes, known, writer.inside)


def _in_own_class(
    written: _Written, example: Example
) -> tuple[nn.Module, Replayed | None, str] | None:
    """The model with modules replaced, if that computes what was written, and a line about it."""
    model, axes = written.model, written.reading.axes
    replaced = operate(model, written.flat, written.reading.inputs, written.known)
    if replaced is None or not sizes_are_open(model, axes, replaced.functions):
        return None
    model.train(written.flat.module.training)
    record, wanted = _replay(model, example), _replay(written.flat.module, example)
    if record is None or wanted is None or not same_function(record, wanted):
        return None
    form = f"The model is still a {type(model).__name__}"
    graphs = replaced.graphs
    form += f"; written out as graphs: {name_range(graphs)}." if graphs else "."
    return model, record, form


def _replay(model: nn.Module, example: Example) -> Replayed | None:
    try:
        return replay(model, example.args, example.kwargs)
    except Exception:  # of the user's code, on tensors without numbers
        return None


def _prove(
    planned: Plan[fx.Node],
    model: nn.Module,
    example: Example,
    record: Replayed | None,
    known: Known,
) -> None:
    """Raise unless what the model's code does, read again, is the network that was solved for."""
    program: Any = record
    # Some composite operations are known only as a whole, as torch.export records them.
    with contextlib.suppress(UnsupportedModelError, AssertionError):
        if record is not None:
            description = Description(model, program)
            given = description.given(example)
            parts = Parts(program, description.inputs, known, measures=False, given=given)
            again = core.read(description, parts if known else None)
            if len(parts.found) == len(known):
                return planned.require_same_maps(again.graph)
    return planned.require_same_maps(read(model, example, known=known).graph)


@dataclass(frozen=True)
class _Shaper:
    """Makes the modules of activations."""

    plan: Plan[fx.Node]
    function: Callable[[torch.Tensor], torch.Tensor] | None
    slopes: Slopes | None
    device: torch.device

    def kind(self, tensor: fx.Node) -> Hashable:
        """Equal for activations that one module can compute; trained slopes are its own."""
        return tensor if self.slopes else None

    def build(self, tensor: fx.Node) -> nn.Module:
        solution = self.plan.solution
        if self.slopes is None:
            return ShapedActivation.from_solution(solution, self.function).to(self.device)
        count = 1 if self.slopes == "layer" else self._channels(tensor)
        return TrainableTReLU.of(solution, count).to(self.device)

    def _channels(self, tensor: fx.Node) -> int:
        axes, (size,) = self.plan.reading.axes[tensor].channels, ops.sizes(tensor)[1:2]
        if set(axes) != {1} or not isinstance(size, int):
            raise UnsupportedModelError(
                f"{ops.origin(tensor)} has its channels on axis {sorted(axes)}, but slopes are "
                "along axis 1, as those of nn.PReLU. Use trainable_slope='layer'."
            )
        return size


class _GraphWriter(Writer[fx.Node, fx.Node]):
    """Writes a `torch.fx` graph; layers and parameters of `model` are used under their names."""

    def __init__(self, model: nn.Module, reading: Reading, shaper: _Shaper) -> None:
        program = reading.program
        self.reading, self.shaper = reading, shaper
        self.trains_slopes = shaper.slopes is not None
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.state: dict[str, Any] = {
            **program.constants,
            **dict(model.named_buffers(remove_duplicate=False)),
            **dict(model.named_parameters(remove_duplicate=False)),
        }
        self.names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
        self.new = fx.Graph()
        self.arguments = {n: self.new.placeholder(n.name) for n in user_inputs(program)}
        self.homes: dict[fx.Node, fx.Node] = {}
        self.copies: set[fx.Node] = set()
        self.values: dict[fx.Node, fx.Node] = {}
        self.parts: dict[str, nn.Module | torch.Tensor] = {}
        self.inside: set[str] = set()
        self._normalised: dict[str, fx.Node] = {}
        self._activation_names: dict[tuple[str, Hashable], str] = {}

    def tensors(self) -> Iterator[fx.Node]:
        return iter(self.reading.program.graph.nodes)

    def reads(self, tensor: fx.Node) -> Sequence[fx.Node]:
        step = self.reading.steps.get(tensor)
        if step is not None and (self._layer(tensor) or self._drops(tensor)):
            return step.inputs
        now = self.reading.inputs.get(tensor, {})
        return [now.get(a, a) for a in tensor.all_input_nodes]

    def origin(self, tensor: fx.Node) -> str:
        return ops.origin(tensor)

    def input(self, tensor: fx.Node) -> fx.Node:
        return self.arguments[tensor]

    def stands_for(self, tensor: fx.Node, value: fx.Node) -> None:
        self.values[tensor] = value

    def _at(self, tensor: fx.Node, node: fx.Node) -> fx.Node:
        """`node`, noted as written where `tensor` was recorded."""
        self.homes.setdefault(node, tensor)
        return node

    def copy(self, tensor: fx.Node, use: Callable[[fx.Node], fx.Node]) -> fx.Node:
        copied = self._at(tensor, self._copy(tensor, use))
        self.copies.add(copied)
        return copied

    def _copy(self, tensor: fx.Node, use: Callable[[fx.Node], fx.Node]) -> fx.Node:
        if tensor in self.arguments:
            return self.arguments[tensor]
        if tensor.op == "placeholder":
            name = self.names[tensor.name]
            assert name is not None
            self.parts[name] = self.state[name]
            return self.new.get_attr(name)
        step, (path, call) = self.reading.steps.get(tensor), ops.called_module(tensor)
        name = ops.plain_operation(tensor)
        if step is None:
            drops = name in _DROPOUTS and tensor in self.reading.parts.inside
            return self._dropout(tensor, use) if drops else self._function(tensor, use)
        inputs, module = [use(i) for i in step.inputs[:1]], self.modules.get(path)
        if isinstance(module, PerLocationNormalization):  # one call for all that it computes
            if call not in self._normalised:
                self._normalised[call] = self._call(path, module, inputs)
            return self._normalised[call]
        if step.kind in ("affine", "move", "output") and (own := self._layer(tensor)) is not None:
            layer = self.modules[own]
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.inplace = False  # what it would overwrite may have other readers now
            return self._call(own, layer, inputs)
        if self._drops(tensor):
            return self._drop_path(tensor, path, inputs)
        if step.kind == "move" and name in _DROPOUTS:
            return self._dropout(tensor, use)
        return self._function(tensor, use)

    def _dropout(self, tensor: fx.Node, use: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """A module, for a function would not know training from evaluation."""
        name, rate = ops.plain_operation(tensor), tensor.args[1]
        assert isinstance(rate, float | int)
        source = tensor.all_input_nodes[0]
        given = use(self.reading.inputs.get(tensor, {}).get(source, source))
        path, _ = ops.called_module(tensor)
        return self._call(self._free(path, name), _DROPOUTS[name](rate), [given])

    def _drops(self, tensor: fx.Node) -> bool:
        """Whether a random factor is all that `tensor` has."""
        step = self.reading.steps.get(tensor)
        product = ops.plain_operation(tensor) in ("mul", "div")
        return step is not None and step.kind == "move" and product

    def _drop_path(self, tensor: fx.Node, path: str, inputs: Sequence[fx.Node]) -> fx.Node:
        """Stochastic depth as a module, which knows training from evaluation."""
        factors = [a for a in tensor.all_input_nodes if a not in self.reading.steps]
        keep = ops.kept_share(factors[0]) if factors else None
        if keep is None:
            return inputs[0]
        axes = [axis for axis, size in enumerate(ops.sizes(factors[0])) if size > 1]
        return self._call(self._free(path, "drop_path"), DropPath(keep, axes), inputs)

    def activation(self, tensor: fx.Node, x: fx.Node) -> fx.Node:
        """A call of the module that was only an activation, or of a new one inside of it."""
        path, _ = ops.called_module(tensor)
        key = path, self.shaper.kind(tensor)
        if key not in self._activation_names:
            name = self._activation_name(path)
            self._activation_names[key], self.parts[name] = name, self.shaper.build(tensor)
        return self._at(tensor, self.new.call_module(self._activation_names[key], (x,)))

    def _activation_name(self, path: str) -> str:
        module = self.modules[path]
        stock = type(module).__module__ == nn.modules.activation.__name__
        bare = not list(module.parameters()) and not list(module.children())
        if not (path and (stock or bare)):
            return self._free(path, "activation")
        owner, _, name = path.rpartition(".")
        return path if path not in self.parts else self._free(owner, f"{name}_")

    def add(self, tensor: fx.Node, terms: Sequence[tuple[float, fx.Node]]) -> fx.Node:
        (weight, total), *rest = terms
        if weight != 1.0:
            total = self._at(tensor, self.new.call_function(torch.mul, (total, weight)))
        for weight, value in rest:
            more = self.new.call_function(torch.add, (total, value), {"alpha": weight})
            total = self._at(tensor, more)
        return total

    def negative(self, x: fx.Node) -> fx.Node:
        return self._at(self.homes.get(x, x), self.new.call_function(torch.neg, (x,)))

    def give_bias(self, tensor: fx.Node) -> bool:
        if (path := self._layer(tensor)) is None:
            return False
        layer: Any = self.modules[path]
        if layer.bias is not None:
            return False
        layer.bias = nn.Parameter(layer.weight.new_zeros(ops.layer_width(layer)))
        return True

    def close(self, outputs: Sequence[fx.Node]) -> None:
        """Return `outputs` in the structure that the model gives them, such as a dictionary."""
        program = self.reading.program
        (results,) = next(reversed(program.graph.nodes)).args
        assert isinstance(results, list | tuple)
        written = iter(outputs)
        values = [next(written) if isinstance(result, fx.Node) else result for result in results]
        spec = program.call_spec.out_spec
        assert spec is not None
        if _is_plain(spec):
            self.new.output(pytree.tree_unflatten(values, spec))
        else:  # a dataclass, whose constructor the code of a graph does not know
            self.new.output(self._call(self._free("", "results"), ResultsInClass(spec), values))

    def _layer(self, node: fx.Node) -> str | None:
        """The path of the module, left as PyTorch made it, whose whole work is this operation."""
        path, _ = ops.called_module(node)
        module = self.modules.get(path)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            return path
        if not isinstance(module, ops.STOCK_LAYERS) or type(module).forward not in _STOCK_FORWARDS:
            return None
        if getattr(module, "padding_mode", "zeros") != "zeros":
            return None  # which is an operation before the convolution
        weight = node.args[1] if len(node.args) > 1 else None
        own = isinstance(weight, fx.Node) and self.names.get(weight.name) == f"{path}.weight"
        return path if own else None

    def _call(self, name: str, module: nn.Module, inputs: Sequence[fx.Node]) -> fx.Node:
        self.parts.setdefault(name, module)
        return self.new.call_module(name, tuple(inputs))

    def _function(self, node: fx.Node, use: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """The same operation, without the effect of writing into its first argument."""
        now = self.reading.inputs.get(node, {})
        argument = lambda a: use(now.get(a, a))
        arguments, keywords = fx.map_arg(node.args, argument), fx.map_arg(node.kwargs, argument)
        copied = self.new.call_function(ops.out_of_place(node), arguments, keywords)
        kept = ("nn_module_stack", "stack_trace")
        copied.meta = {key: value for key, value in node.meta.items() if key in kept}
        if node in self.reading.parts.inside:
            self.inside.add(copied.name)
        return copied

    def _free(self, path: str, name: str) -> str:
        """A name inside of `path` that nothing has."""
        name = f"{path}.{name}" if path else name
        while name in self.parts or name in self.modules:
            name += "_"
        return name


def _deepcopy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # of tensors that are computed from parameters
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied: {error}. Remove weight normalisation and "
            "other reparametrisations first."
        ) from error
