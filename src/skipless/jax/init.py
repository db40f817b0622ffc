r"""Initial weights under which q values stay 1, as `jax.nn.initializers` (appendix D).

The distributions are those of `skipless.torch.init`. As in `jax.nn.initializers`, each function
returns an initialiser `init(key, shape, dtype)`, and `in_axis` and `out_axis` are the axes of
`shape` for inputs and outputs. All others are the taps of a kernel. The defaults are the layout of
Flax and Haiku:

| kernel                                   | shape                       | in_axis | out_axis |
|------------------------------------------|-----------------------------|---------|----------|
| dense: Flax, Haiku, `x @ w`              | (in, out)                   | -2      | -1       |
| convolution: Flax, Haiku; "HWIO"         | (*kernel, in / groups, out) | -2      | -1       |
| transposed: Flax, `lax.conv_transpose`   | (*kernel, in, out)          | -2      | -1       |
| the same with `transpose_kernel=True`    | (*kernel, out, in)          | -1      | -2       |
| dense: Equinox, `w @ x`                  | (out, in)                   | 1       | 0        |
| convolution: `lax.conv`, Equinox; "OIHW" | (out, in / groups, *kernel) | 1       | 0        |

Numbers are drawn in float32, or float64 for weights of that type, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike

from skipless.core.arguments import finite_number, whole_number
from skipless.core.measure import known_solution, sigmas
from skipless.core.trace import UnsupportedModelError

from .operations import AFFINE, LAYOUTS, weight_of, without_moves
from .record import Operation, Tensor
from .trace import Reading, input_index, read

Axis = int | Sequence[int]


def scaled_uniform_orthogonal(
    gain: float = 1.0,
    in_axis: Axis = -2,
    out_axis: Axis = -1,
    *,
    feature_group_count: int = 1,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Initialiser by the distribution of `skipless.torch.scaled_uniform_orthogonal_`.

    A convolution is a matrix from all that its kernel covers, one for each group: right for kernels
    of size 1 and patches that do not overlap. For others, use `delta`.

    >>> w = scaled_uniform_orthogonal()(jax.random.key(0), (3, 6))  # x @ w, so this is Wᵀ
    >>> bool(jnp.allclose(w @ w.T, 2 * jnp.eye(3), atol=1e-5))
    True
    """

    def draw(key: Array, layout: _Layout, dtype: DTypeLike) -> Array:
        inputs = layout.inputs * math.prod(layout.taps)
        return layout.arrange(layout.orthogonal(key, inputs, gain, dtype))

    return _initializer(draw, gain, in_axis, out_axis, feature_group_count, dtype)


def gaussian_fan_in(
    gain: float = 1.0, in_axis: Axis = -2, out_axis: Axis = -1, *, dtype: DTypeLike | None = None
) -> Initializer:
    r"""Initialiser by $\mathcal N(0, \mathrm{gain}^2 / k)$ (eq. 1) for $k$ weights an output.

    >>> w = gaussian_fan_in()(jax.random.key(0), (400, 500))
    >>> round(400 * float(jnp.mean(w**2)), 2)
    1.0
    """

    def draw(key: Array, layout: _Layout, dtype: DTypeLike) -> Array:
        inputs = layout.inputs * math.prod(layout.taps)
        return gain / math.sqrt(inputs) * jax.random.normal(key, layout.shape, dtype)

    return _initializer(draw, gain, in_axis, out_axis, 1, dtype)


def delta(
    gain: float = 1.0,
    in_axis: Axis = -2,
    out_axis: Axis = -1,
    *,
    feature_group_count: int = 1,
    tap: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Initialiser of convolutions: `scaled_uniform_orthogonal` at one tap, for each group, else 0.

    `skipless.torch.delta_` says why. The tap is the centre of the kernel, of an even one the first
    of the two middle taps, which under `padding="SAME"`, at any stride, never reads the padding.
    `tap` names another, by its index along each axis of the kernel: a causal convolution needs its
    last, (size - 1,).

    >>> w = delta()(jax.random.key(0), (3, 3, 4, 4))
    >>> centre = w[1, 1]
    >>> bool(jnp.allclose(centre @ centre.T, jnp.eye(4), atol=1e-5)), int(jnp.count_nonzero(w))
    (True, 16)
    """

    def draw(key: Array, layout: _Layout, dtype: DTypeLike) -> Array:
        place = [(size - 1) // 2 for size in layout.taps] if tap is None else list(tap)
        for index in place:
            whole_number("every index in tap", index, 0)
        inside = [0 <= i < size for i, size in zip(place, layout.taps, strict=False)]
        if len(place) != len(layout.taps) or not all(inside):
            raise ValueError(
                f"tap must be an index along each axis of a kernel of size {layout.taps}, got "
                f"{tuple(place)}."
            )
        matrices = layout.orthogonal(key, layout.inputs, gain, dtype)
        return layout.place(matrices, [slice(i, i + 1) for i in place])

    return _initializer(draw, gain, in_axis, out_axis, feature_group_count, dtype)


def transposed_delta(
    strides: int | Sequence[int],
    gain: float = 1.0,
    in_axis: Axis = -2,
    out_axis: Axis = -1,
    *,
    transpose_kernel: bool = False,
    dtype: DTypeLike | None = None,
) -> Initializer:
    """Initialiser of transposed convolutions, as `skipless.torch.transposed_delta_`.

    It is made for `padding="SAME"`. Paddings that make the output larger than `strides` times the
    input give it a border of zeros.

    `transpose_kernel` is that of `lax.conv_transpose` and `nnx.ConvTranspose`, which takes a kernel
    with the axes of inputs and outputs swapped: then set `in_axis=-1, out_axis=-2`.

    >>> kernel = transposed_delta(2)(jax.random.key(0), (4, 8, 8))
    >>> up = jax.lax.conv_transpose(jnp.ones((1, 5, 8)), kernel, (2,), "SAME")
    >>> bool(jnp.allclose(jnp.mean(up**2, axis=-1), jnp.ones(10), atol=1e-5))
    True
    """

    def draw(key: Array, layout: _Layout, dtype: DTypeLike) -> Array:
        steps = (strides,) * len(layout.taps) if isinstance(strides, int) else tuple(strides)
        if len(steps) != len(layout.taps):
            raise ValueError(
                f"strides must be one number, or {len(layout.taps)} for a kernel of shape "
                f"{layout.shape}; got {steps}."
            )
        spare = [size - step for size, step in zip(layout.taps, steps, strict=True)]
        if min(spare, default=0) < 0:
            raise ValueError(
                f"A transposed convolution with kernel {layout.taps} and strides {steps} does not "
                "reach all locations, which leaves q = 0 at some. Use a kernel at least as large "
                "as the stride."
            )
        # JAX pads by (size + stride - 1) // 2 in front; transpose_kernel turns the kernel round.
        first = [(number + (not transpose_kernel)) // 2 for number in spare]
        matrices = layout.orthogonal(key, layout.inputs, gain, dtype)
        return layout.place(matrices, [slice(i, i + n) for i, n in zip(first, steps, strict=True)])

    initializer = _initializer(draw, gain, in_axis, out_axis, 1, dtype)
    for step in strides if isinstance(strides, tuple | list) else (strides,):
        whole_number("strides", step, 1)
    return initializer


@dataclass(frozen=True)
class _Layout:
    """The axes of a shape that are inputs, outputs and taps of a kernel."""

    shape: tuple[int, ...]
    order: tuple[int, ...]  # the axes of outputs, of inputs, and of taps
    outputs: int
    inputs: int
    taps: tuple[int, ...]
    groups: int

    def orthogonal(self, key: Array, inputs: int, gain: float, dtype: DTypeLike) -> Array:
        """A matrix of scaled uniform orthogonal distribution, (outputs, inputs), for each group."""
        outputs = self.outputs // self.groups
        scale = gain * max(math.sqrt(outputs / inputs), 1.0)
        return scale * jax.random.orthogonal(key, outputs, (self.groups,), dtype, inputs)

    def arrange(self, weights: Array) -> Array:
        """Weights in the order outputs, inputs, taps, reshaped to where all of them go."""
        sizes = [self.shape[axis] for axis in self.order]
        return weights.reshape(sizes).transpose(*np.argsort(self.order))

    def place(self, matrices: Array, window: Sequence[slice]) -> Array:
        """Weights that are `matrices` at the taps in this `window`, and zero elsewhere."""
        weights = jnp.zeros((*matrices.shape, *self.taps), matrices.dtype)
        spread = matrices.reshape(*matrices.shape, *(1 for _ in self.taps))
        return self.arrange(weights.at[(..., *window)].set(spread))


_Draw = Callable[[Array, _Layout, DTypeLike], Array]


def _initializer(
    draw: _Draw, gain: float, in_axis: Axis, out_axis: Axis, groups: int, usual: DTypeLike | None
) -> Initializer:
    array = isinstance(gain, np.generic | np.ndarray | Array)
    number = array and gain.ndim == 0 and jnp.issubdtype(gain.dtype, np.number)
    if not number and not isinstance(gain, int | float):  # a key, where the user wants weights
        raise TypeError(
            f"gain must be a number, got {gain!r}. Call what the function returns: "
            "scaled_uniform_orthogonal()(key, shape)."
        )

    if not array:
        finite_number("gain", gain)

    def init(
        key: Array,
        shape: Sequence[int],
        dtype: DTypeLike | None = usual,
        out_sharding: object = None,
    ) -> Array:
        if out_sharding is not None:
            raise ValueError(
                f"out_sharding is not supported, got {out_sharding}; initialise, then place the "
                "weights with jax.device_put."
            )
        result = jnp.dtype(jax.dtypes.canonicalize_dtype(float) if dtype is None else dtype)
        layout = _layout(shape, in_axis, out_axis, groups)
        if not jnp.issubdtype(result, jnp.floating):
            raise ValueError(f"dtype must be a floating-point type, got {result}.")
        if 0 in layout.shape:
            return jnp.zeros(layout.shape, result)
        wide = result if jnp.finfo(result).bits > 32 else jnp.dtype(jnp.float32)
        return draw(key, layout, wide).astype(result)

    return init


def _layout(shape: Sequence[int], in_axis: Axis, out_axis: Axis, groups: int) -> _Layout:
    count = len(shape)
    ins, outs = (
        tuple(a + count if a < 0 else a for a in ([axis] if isinstance(axis, int) else axis))
        for axis in (in_axis, out_axis)
    )
    if len({*ins, *outs} & set(range(count))) < len(ins) + len(outs):
        raise ValueError(
            f"in_axis and out_axis must be different axes of the shape {tuple(shape)}, got "
            f"{in_axis} and {out_axis}. A shape is (in, out) or (*kernel, in, out), or name the "
            "axes."
        )
    taps = tuple(axis for axis in range(count) if axis not in (*ins, *outs))
    outputs, inputs = (math.prod(shape[axis] for axis in axes) for axes in (outs, ins))
    if not isinstance(groups, int) or groups < 1 or outputs % groups:
        raise ValueError(
            f"feature_group_count must divide the {outputs} outputs of weights of shape "
            f"{tuple(shape)}, got {groups}."
        )
    sizes = tuple(shape[axis] for axis in taps)
    return _Layout(tuple(shape), (*outs, *ins, *taps), outputs, inputs, sizes, groups)


Distribution = Literal["orthogonal", "gaussian"]
# A layer's weights may be one of many that lie stacked in an array.
_PARTS = LAYOUTS | {"scan_slice", "slice", "dynamic_slice", "gather", "broadcast_in_dim"}
_Moves = list[tuple[Operation, int]]  # each with the place of its output that is used


def initialize(
    fn: Callable[..., object],
    *args: Any,
    key: jax.Array,
    argnum: int = -1,
    sigma_w: float | None = None,
    sigma_b: float | None = None,
    distribution: Distribution = "orthogonal",
) -> tuple[Any, ...]:
    """The arguments of `fn` except its input, with all weights and biases of layers drawn.

    Convolutions get Delta initialisation; all else is returned as it is. `fn`, its arguments and
    `argnum` are as for `trace`, the others as for `skipless.torch.initialize_`; a function that
    `convert` returned knows its sigmas.

    >>> network = lambda params, x: jax.nn.relu(x @ params["w"] + params["b"])
    >>> shapes = {"w": jax.ShapeDtypeStruct((4, 4), "float32"), "b": jnp.ones(4)}
    >>> (params,) = initialize(network, shapes, jnp.ones((1, 4)), key=jax.random.key(0))
    >>> bool(jnp.allclose(params["w"] @ params["w"].T, jnp.eye(4), atol=1e-5))
    True
    """
    given = {"sigma_w": sigma_w, "sigma_b": sigma_b}
    numbers = {k: finite_number(k, sigma, 0.0) for k, sigma in given.items() if sigma is not None}
    numbers = sigmas(known_solution(fn)) | numbers
    reading = read(fn, *args, argnum=argnum)
    drawn = draw_weights(reading, key, distribution=distribution, **numbers)
    arrays: dict[Tensor, jax.Array] = {}
    for tensor, value in drawn.items():
        _put_back(reading, tensor, value, arrays)
    by_name = {tensor.name: array for tensor, array in arrays.items()}
    of_input = input_index(args, argnum)
    found = jax.tree_util.tree_map_with_path(
        lambda path, leaf: by_name.get(jax.tree_util.keystr(path), leaf), args
    )
    return tuple(argument for index, argument in enumerate(found) if index != of_input)


def _put_back(
    reading: Reading, tensor: Tensor, value: jax.Array, arrays: dict[Tensor, jax.Array]
) -> None:
    """Write into `arrays` the argument of which `tensor`, which is `value` now, is a part."""
    tensor, moves = _walk_back(tensor, _PARTS)
    if not tensor.name[1:2].isdigit():  # "[0]" is an argument, ".weight" an attribute of `fn`
        raise UnsupportedModelError(
            "The function holds weights itself, or computes them, so they cannot be returned. Pass "
            "all weights and biases as arguments: initialize(fn, params, x, key=key)."
        )
    old = arrays.get(tensor, tensor.value)
    old = jnp.zeros(tensor.shape, tensor.dtype) if old is None else jnp.asarray(old)
    # A move is a matrix of one 1 in each row: its transpose puts numbers back, once for each copy.
    _, transpose = jax.vjp(lambda array: _run_moves(reading, moves, array), old)
    (new,), (count,) = transpose(value), transpose(jnp.ones_like(value))
    arrays[tensor] = jnp.where(count > 0, new / jnp.maximum(count, 1), old)


def draw_weights(
    reading: Reading,
    key: jax.Array,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
) -> dict[Tensor, jax.Array]:
    """Weights and biases for the recorded tensors that layers read."""
    drawn: dict[Tensor, jax.Array] = {}
    first: dict[Tensor, Tensor] = {}  # of those that layers share
    layers = [op for op in reading.record.operations if op.name in AFFINE and op.signals]
    for number, op in enumerate(layers):
        weight = weight_of(op)
        own = without_moves(weight)
        if (computed := _walk_back(own, _PARTS)[0].operation) is not None:
            raise UnsupportedModelError(
                f"{op.location} reads weights that are computed by {computed.name} from others, so "
                "they cannot be drawn. Remove weight normalisation and the like."
            )
        if (before := first.setdefault(own, weight)) is not weight:
            if before.shape != weight.shape:
                raise UnsupportedModelError(
                    f"{op.location} uses the weights of another layer, transposed, so they cannot "
                    "be drawn for both. Give it weights of its own."
                )
            drawn[weight] = drawn[before]
            continue
        fresh = jax.random.fold_in(key, 2 * number)
        drawn[weight] = _weights(op, weight, fresh, sigma_w, distribution).astype(weight.dtype)
    for number, op in enumerate(reading.biases):
        bias = weight_of(op)
        own, moves = _walk_back(bias, LAYOUTS | {"broadcast_in_dim"})
        normal = jax.random.normal(jax.random.fold_in(key, 2 * number + 1), own.shape)
        drawn[bias] = _run_moves(reading, moves, (sigma_b * normal).astype(own.dtype))
    return drawn


def _walk_back(tensor: Tensor, names: Collection[str]) -> tuple[Tensor, _Moves]:
    """What `tensor` was before operations of these names, and these, in order."""
    moves: _Moves = []
    while (op := tensor.operation) is not None and op.name in names:
        if op.name != "stop_gradient":  # which has no transpose
            moves.insert(0, (op, op.outputs.index(tensor)))
        tensor = op.inputs[0]
    return tensor, moves


def _run_moves(reading: Reading, moves: _Moves, array: Any) -> Any:
    for op, output in moves:
        array = op.run(array, *map(reading.constants.array, op.inputs[1:]))[output]
    return array


def _weights(
    op: Operation, weight: Tensor, key: jax.Array, gain: float, distribution: Distribution
) -> jax.Array:
    if op.name == "conv_general_dilated":
        return _kernel(op, weight.shape, key, gain, distribution)
    own = op.inputs.index(weight)
    inputs, groups = (tuple(axes[own]) for axes in op.parameters["dimension_numbers"])
    outputs = [a for a in range(len(weight.shape)) if a not in (*groups, *inputs)]
    order = (*groups, *inputs, *outputs)
    sizes = [weight.shape[axis] for axis in order]
    many, k = len(groups), len(inputs)
    shape = tuple(sizes[many:]) if outputs else (*sizes[many:], 1)
    init = _initializer_of(distribution, gain, range(k), range(k, len(shape)))
    if many:
        keys = jax.random.split(key, math.prod(sizes[:many]))
        values = jax.vmap(lambda key: init(key, shape))(keys)
    else:
        values = init(key, shape)
    return values.reshape(sizes).transpose(*np.argsort(order))


def _initializer_of(
    distribution: Distribution, gain: float, inputs: Axis, outputs: Axis, groups: int = 1
) -> Initializer:
    if distribution == "gaussian":
        return gaussian_fan_in(gain, inputs, outputs)
    return scaled_uniform_orthogonal(gain, inputs, outputs, feature_group_count=groups)


def _kernel(
    op: Operation, shape: Sequence[int], key: jax.Array, gain: float, distribution: Distribution
) -> jax.Array:
    """A matrix at the tap that reads a location itself, and zeros elsewhere.

    Where the input is stretched by zeros, as in transposed convolutions, as many taps as the
    stretch hold it: then every location of the output reads one of the input's.
    """
    out_axis, in_axis, *tap_axes = op.parameters["dimension_numbers"].rhs_spec
    groups = op.parameters["feature_group_count"]
    centre = [1 if axis in tap_axes else size for axis, size in enumerate(shape)]
    init = _initializer_of(distribution, gain, in_axis, out_axis, groups)
    padding, repeats = [(0, 0)] * len(shape), [1] * len(shape)
    names = ("lhs_dilation", "rhs_dilation", "padding")
    columns = (op.parameters[name] for name in names)
    for axis, stretch, dilation, (low, high) in zip(tap_axes, *columns, strict=True):
        spare = shape[axis] - stretch
        if spare < 0:
            raise UnsupportedModelError(
                f"A transposed convolution with a kernel of {shape[axis]} and a stride of "
                f"{stretch} leaves locations zero, which have no c value. Use a kernel at least as "
                "large as the stride."
            )
        tap = low // dilation - (stretch - 1)
        tap = spare // 2 if low + high <= 0 else min(max(tap, 0), spare)
        padding[axis], repeats[axis] = (tap, spare - tap), stretch
    return jnp.pad(jnp.tile(init(key, tuple(centre)), repeats), padding)
