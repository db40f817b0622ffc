"""Flax NNX modules: shaped activations, and a model shaped as a module, by `convert`.

Activations that modules hold, as attributes or in lists, tuples and dictionaries, are found by
trying them out, and replaced. What `__call__` writes out cannot be replaced; it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

try:
    from flax import nnx
except ModuleNotFoundError as error:
    from skipless._install import not_installed

    raise ImportError(not_installed("skipless.jax.modules", error.name, "jax")) from error
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import ArrayLike

from skipless.core import activations as core
from skipless.core.activations import Activation
from skipless.core.arguments import number
from skipless.core.convert import Change, ConversionReport
from skipless.core.graph import Graph, Nonlinearity, Sum, inputs_of
from skipless.core.rescale import combine, normalise_sums, to_residual_form
from skipless.core.solution import Method, Solution
from skipless.core.solve import solve

from .activations import Function, Phi, Shaped, function, in_arrays, in_float32, shaped
from .init import delta, scaled_uniform_orthogonal, transposed_delta
from .trace import Reading, UnsupportedModelError, read_exactly


class Constant(nnx.Variable[Array]):
    """A number that `solve` found: in the model's state, but not trained."""


class ShapedActivation(nnx.Module):
    r"""φ̂, an activation between two affine maps, with its constants in the model's state.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    φ is a name, an `Activation`, or a function of arrays. The constants are `Constant`s: saved,
    restored, split and merged with the model, but no `nnx.Param`s.

    >>> half = ShapedActivation("tanh", 0.5, 0.0, 0.5, 1.0)
    >>> bool(jnp.allclose(half(0.3), function("sigmoid")(0.3)))
    True
    >>> sorted(nnx.to_pure_dict(nnx.state(half, Constant)))
    ['input_scale', 'input_shift', 'output_scale', 'output_shift']
    """

    def __init__(
        self,
        phi: str | core.Activation | Function,
        input_scale: float = 1.0,
        input_shift: float = 0.0,
        output_scale: float = 1.0,
        output_shift: float = 0.0,
    ) -> None:
        f = function(phi) if isinstance(phi, str | core.Activation) else phi
        numbers = Shaped(f, input_scale, input_shift, output_scale, output_shift).constants
        slope = _slope(f)
        self._hold(f, numbers if slope is None else {"negative_slope": slope} | numbers)

    @staticmethod
    def from_solution(solution: Solution, function: Function | None = None) -> ShapedActivation:
        """The φ̂ of `solution`: a `TReLU` if it has only a slope and an output scale.

        `function` is φ in JAX arrays, needed if φ is an `Activation` of your own.

        >>> from skipless import Graph, solve
        >>> type(ShapedActivation.from_solution(solve(Graph.chain(50)))).__name__
        'TReLU'
        """
        phi = shaped(solution, function)
        moved = phi.constants | {"output_scale": 1.0} != Shaped(phi.function).constants
        if moved or (slope := _slope(phi.function)) is None:
            return ShapedActivation(phi.function, **phi.constants)
        return TReLU(slope, phi.output_scale)

    @property
    def constants(self) -> dict[str, float]:
        """The numbers that define φ̂, by the names of their variables."""
        held = {name: value for name, value in vars(self).items() if isinstance(value, Constant)}
        return {name: float(value[...]) for name, value in held.items()}

    def __call__(self, x: ArrayLike) -> Array:
        array = jnp.asarray(x)
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return in_float32(self._apply, array if floating else array.astype(float))

    def _apply(self, x: Array) -> Array:
        x = self._function(x * self._number("input_scale", x) + self._number("input_shift", x))
        return (x + self._number("output_shift", x)) * self._number("output_scale", x)

    def _function(self, x: Array) -> Array:
        if "negative_slope" in vars(self):  # which may have come with another state
            return jnp.where(x > 0.0, x, self._number("negative_slope", x) * x)
        return self.function(x)

    def _number(self, name: str, x: Array) -> Array:
        return getattr(self, name)[...].astype(x.dtype)

    def _hold(self, function: Function, numbers: Mapping[str, float]) -> None:
        self.function = function
        for name, value in numbers.items():
            setattr(self, name, Constant(jnp.asarray(value, float)))


class TReLU(ShapedActivation):
    r"""γ φ_α(x), the leaky ReLU of slope α below zero whose Q map is the identity (eq. 11).

    $$\gamma\,(\max(x, 0) + \alpha \min(x, 0)), \qquad \gamma = \sqrt{2 / (1 + \alpha^2)}$$

    >>> round(TReLU(negative_slope=0.0).constants["output_scale"], 5)  # ReLU needs γ² = 2
    1.41421
    """

    def __init__(self, negative_slope: float, output_scale: float | None = None) -> None:
        if output_scale is None:
            output_scale = core.trelu_scale(negative_slope)
        numbers = {
            "negative_slope": number("negative_slope", negative_slope),
            "output_scale": number("output_scale", output_scale),
        }
        core.require_constants("TReLU", numbers)
        self._hold(in_arrays(core.leaky_relu(negative_slope)), numbers)

    def _apply(self, x: Array) -> Array:
        return self._function(x) * self._number("output_scale", x)


def _slope(function: Function) -> float | None:
    if isinstance(function, Phi) and function.name == "leaky_relu":
        return function.parameter
    return None


_Normalisation = nnx.BatchNorm | nnx.LayerNorm | nnx.RMSNorm | nnx.GroupNorm | nnx.InstanceNorm
# Evenly spaced, so that second differences show what bends; and the same with another second half.
_PROBE = np.linspace(-4.0, 4.0, 18, dtype=np.float32)
_OTHER = np.where(np.arange(18) < 9, _PROBE, np.float32(0.3))


class Identity(nnx.Module):
    """Replaces a normalisation layer: returns its input, whatever else it gets."""

    def __call__(self, x: Array, *_: object, **__: object) -> Array:
        return x


class Placeholder(nnx.Module):
    """Stands for an activation that a module holds, while functions are tried out."""

    def __init__(self) -> None:
        self.function: Function = jnp.tanh

    def __call__(self, x: Array) -> Array:
        return self.function(x)


def is_activation(value: object) -> bool:
    """Whether `value` is a function of one array that acts on each number, and is not affine."""
    if isinstance(value, nnx.Module):
        return isinstance(value, ShapedActivation | nnx.PReLU)
    if not callable(value) or isinstance(value, type):
        return False
    try:
        found = [value(jnp.asarray(points)) for points in (_PROBE, _OTHER)]
    except Exception:  # it takes other arguments
        return False
    if not all(isinstance(y, Array) and y.shape == _PROBE.shape for y in found):
        return False
    whole, other = (np.asarray(y, float) for y in found)
    bends = np.abs(np.diff(whole, n=2)).max() > 1e-3
    # A pointwise function gives the same first half, whatever the second half is.
    return bool(bends) and np.allclose(whole[:9], other[:9], rtol=1e-5, atol=1e-6)


def replace(
    model: nnx.Module, chosen: Callable[[object], bool], build: Callable[[], nnx.Module]
) -> list[str]:
    """Put what `build` makes wherever `model` holds what is `chosen`; returns the places."""
    names: list[str] = []
    # Most layers hold the same few functions. They are kept, since an id is unique while alive.
    answers: dict[int, tuple[bool, object]] = {}

    def is_chosen(value: object) -> bool:
        if id(value) not in answers:
            answers[id(value)] = chosen(value), value
        return answers[id(value)][0]

    def swap(value: object, name: str) -> object:
        if type(value) is tuple or type(value) is list:
            return type(value)(swap(v, f"{name}.{i}") for i, v in enumerate(value))
        if type(value) is dict:
            return {key: swap(v, f"{name}.{key}") for key, v in value.items()}
        if not is_chosen(value):
            return value
        names.append(name)
        return build()

    for path, module in list(nnx.iter_modules(model)):
        for attribute, value in list(vars(module).items()):
            found = len(names)
            new = swap(value, ".".join(map(str, (*path, attribute))))
            if len(names) > found:
                setattr(module, attribute, nnx.data(new))
    return names


_Convolution = nnx.Conv | nnx.ConvTranspose
_Layer = nnx.Linear | nnx.LinearGeneral | nnx.Einsum | _Convolution


def initialize_(
    model: nnx.Module, solution: Solution, rngs: nnx.Rngs, *, add_biases: bool
) -> tuple[list[str], list[str]]:
    """Re-initialise `model`; returns names of parameters left alone, and of layers given biases.

    With `add_biases`, layers without biases get some. A parameter that layers share is drawn once;
    layers made many at once, by `nnx.vmap`, are drawn one by one.

    >>> from skipless import Graph, solve
    >>> model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.PReLU())
    >>> initialize_(model, solve(Graph.chain(50)), nnx.Rngs(0), add_biases=False)[0]
    ['layers.1.negative_slope']
    """
    done: set[int] = set()
    given: list[str] = []
    for path, layer in nnx.iter_modules(model):
        if not isinstance(layer, _Layer) or (rule := _rule(layer, solution.sigma_w)) is None:
            continue
        init, axes = rule
        if id(layer.kernel) not in done:
            _draw_weights(layer.kernel, init, axes, rngs)
        if add_biases and layer.bias is None and not isinstance(layer, nnx.Einsum):
            copies, features = layer.kernel[...].shape[:-axes], np.atleast_1d(layer.out_features)
            layer.bias = nnx.Param(jnp.zeros((*copies, *features), layer.param_dtype))
            layer.use_bias = True
            given.append(_name(path))
        if layer.bias is not None and id(layer.bias) not in done:
            old, sigma = layer.bias[...], solution.sigma_b
            normal = jax.nn.initializers.normal(sigma) if sigma else jax.nn.initializers.zeros
            _put(layer.bias, normal(rngs.params(), old.shape, old.dtype))
        done.update((id(layer.kernel), id(layer.bias)))
    variables = nnx.iter_graph(model)
    left = [_name(path) for path, v in variables if isinstance(v, nnx.Param) and id(v) not in done]
    return left, given


def _rule(layer: _Layer, gain: float) -> tuple[Initializer, int] | None:
    """An initialiser for the last axes of a kernel, and how many; those before are copies."""
    match layer:
        case nnx.Linear():
            return scaled_uniform_orthogonal(gain), 2
        case nnx.LinearGeneral():
            k, m = len(layer.in_features), len(layer.out_features)
            ins, outs = range(-k - m, -m), range(-m, 0)
            return scaled_uniform_orthogonal(gain, tuple(ins), tuple(outs)), k + m
        case nnx.Einsum():
            return _einsum_rule(layer, gain)
        case nnx.Conv():
            _require_no_gaps(layer, layer.mask, layer.input_dilation)
            causal = layer.padding == "CAUSAL"
            tap = [size - 1 for size in layer.kernel_size] if causal else None
            init = delta(gain, feature_group_count=layer.feature_group_count, tap=tap)
        case _:
            _require_no_gaps(layer, layer.mask, layer.kernel_dilation)
            turned, strides = layer.transpose_kernel, layer.strides or 1
            axes = (-1, -2) if turned else (-2, -1)
            init = transposed_delta(strides, gain, *axes, transpose_kernel=turned)
    return init, len(layer.kernel_size) + 2


def _einsum_rule(layer: nnx.Einsum, gain: float) -> tuple[Initializer, int] | None:
    """The rule for `inputs,kernel->outputs`; None where an axis of the kernel is in all three."""
    equation = (layer.einsum_str or "").replace(" ", "")
    sides, _, outputs = equation.partition("->")
    inputs, _, kernel = sides.partition(",")
    ins = tuple(i for i, letter in enumerate(kernel) if letter not in outputs)
    outs = tuple(i for i, letter in enumerate(kernel) if letter not in inputs)
    if not kernel.isalpha() or len(ins) + len(outs) != len(kernel) or not ins or not outs:
        return None
    from_end = [tuple(i - len(kernel) for i in axes) for axes in (ins, outs)]
    return scaled_uniform_orthogonal(gain, *from_end), len(kernel)


def _draw_weights(kernel: nnx.Param[Array], init: Initializer, axes: int, rngs: nnx.Rngs) -> None:
    old = kernel[...]
    copies, shape = old.shape[:-axes], old.shape[-axes:]
    draw_one = lambda key: init(key, shape, old.dtype)
    if not copies:  # as almost always: then JAX compiles once for all layers of this shape
        return _put(kernel, draw_one(rngs.params()))
    drawn = jax.vmap(draw_one)(jax.random.split(rngs.params(), math.prod(copies)))
    _put(kernel, drawn.reshape(old.shape))


def _put(variable: nnx.Param[Array], value: Array) -> None:
    variable[...] = jax.device_put(value, variable[...].sharding)


def _require_no_gaps(layer: _Convolution, mask: object, dilation: object) -> None:
    if mask is not None or np.any(np.asarray(dilation or 1) != 1):
        raise ValueError(
            f"{type(layer).__name__} with kernel {layer.kernel_size} has a mask or a dilation, "
            "which leaves locations with q = 0. Build it without mask and dilation."
        )


def _name(path: tuple[object, ...]) -> str:
    return ".".join(map(str, path))


Model = TypeVar("Model", bound=nnx.Module)

# How far the squares of a sum's weights may add up to other than 1: they may be of bfloat16.
_UNIT_TOLERANCE = 5e-3


def convert_module(
    model: Model,
    example: ArrayLike,
    method: Method,
    *,
    activation: str | Activation,
    shortcut_weight: float | None,
    function: Function | None,
    clamp: bool,
    rngs: nnx.Rngs | None,
) -> Model:
    """A shaped copy of `model`; `convert` says how."""
    if not isinstance(rngs, nnx.Rngs | None):
        raise TypeError(f"rngs must be nnx.Rngs(...), got {rngs!r}")
    model = nnx.clone(model)
    _require_plain_weights(model)
    removed = replace(model, lambda value: isinstance(value, _Normalisation), Identity)
    held = replace(model, is_activation, Placeholder)
    reading = _read_with(model, example, jax.nn.silu)
    bare = _read_with(model, example, lambda x: x).graph
    _require_all_held(bare, reading.graph, type(model).__name__)
    graph = reading.graph
    _require_normalised(graph, shortcut_weight)
    graph = normalise_sums(graph)  # in float64, that is
    solution = solve(graph, method, activation, clamp=clamp)
    is_placeholder = lambda value: isinstance(value, Placeholder)
    replace(model, is_placeholder, lambda: ShapedActivation.from_solution(solution, function))
    rngs = nnx.Rngs(0) if rngs is None else rngs
    untouched, given = initialize_(model, solution, rngs, add_biases=bool(removed))
    name = "TReLU" if solution.is_rectifier else f"shaped {solution.activation}"
    replaced = f"activation replaced by {name}"
    places = {"normalisation removed": removed, replaced: held, "bias added": given}
    changes = tuple(Change(what, where) for what, names in places.items() for where in names)
    model.skipless_report = ConversionReport(  # pyright: ignore[reportAttributeAccessIssue]
        method, solution, graph, reading.sizes, changes, (), tuple(untouched)
    )
    return model


def _require_plain_weights(model: nnx.Module) -> None:
    for path, module in nnx.iter_modules(model):
        if isinstance(module, nnx.WeightNorm | nnx.SpectralNorm):
            raise UnsupportedModelError(
                f"{_name(path)} computes weights by {type(module).__name__}, which "
                "would undo their initialisation. Build the model with the layer inside alone."
            )


def _read_with(model: nnx.Module, example: ArrayLike, function: Function) -> Reading:
    """The record of `model` in evaluation mode, with `function` for the activations it holds."""
    probe = nnx.clone(model)
    probe.eval()
    for _, module in nnx.iter_modules(probe):
        if isinstance(module, Placeholder):
            module.function = function
    return read_exactly(probe, example)


def _require_all_held(bare: Graph, graph: Graph, name: str) -> None:
    """Raise if `bare` has activations, although all that modules hold are the identity.

    In `graph`, where they are not, the network may end before the last one, such as a sigmoid.
    """
    live = [bare.nodes[i] for i in sorted(bare.live)]
    if isinstance(live[-1], Nonlinearity) and not isinstance(graph.nodes[-1], Nonlinearity):
        live.pop()
    if left := [node.origin for node in live if isinstance(node, Nonlinearity)]:
        places = ", ".join(dict.fromkeys(filter(None, left)))
        raise UnsupportedModelError(
            f"{len(left)} activations of {name} are written in __call__ and not held by a module"
            f"{places and f' ({places})'}, so they cannot be replaced. Keep them in __init__, as "
            "in self.activation = nnx.relu, and call self.activation(x)."
        )


def _require_normalised(graph: Graph, shortcut_weight: float | None) -> None:
    live = [graph.nodes[index] for index in sorted(graph.live)]
    where = next((node.origin for node in live if isinstance(node, Sum)), None)
    if shortcut_weight is not None and where is not None:
        raise UnsupportedModelError(
            f"shortcut_weight must be None, got {shortcut_weight:g}: the sum at {where} is in the "
            "code of the model. Write w * x + sqrt(1 - w**2) * branch(x) there."
        )
    if to_residual_form(graph) != graph:
        raise UnsupportedModelError(
            "A shortcut starts behind an activation and ends before the next one, as in "
            "activation(x + branch(x)), where q values grow from block to block. Let shortcuts "
            "start before activations: w * x + sqrt(1 - w**2) * branch(activation(x))."
        )
    parts: list[dict[int, float]] = []
    for index, node in enumerate(graph.nodes):
        terms = zip((parts[i] for i in inputs_of(node)), getattr(node, "weights", ()), strict=False)
        parts.append(combine(terms) if isinstance(node, Sum) else {index: 1.0})
    # A sum of sums is one, which counts where something else reads it, or where the model ends.
    read = [i for node in live if not isinstance(node, Sum) for i in inputs_of(node)]
    for i in (*read, graph.output):
        total = math.fsum(part**2 for part in parts[i].values())
        if abs(total - 1.0) > _UNIT_TOLERANCE:
            raise UnsupportedModelError(
                f"The squares of the weights of the sum at {graph.nodes[i].origin or i} add up "
                f"to {total:.4g}, and must add up to 1. Write shortcuts as "
                "w * x + sqrt(1 - w**2) * branch(x), and divide a sum of n terms by sqrt(n)."
            )
