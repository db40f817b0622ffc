"""Shaped activations: every φ of `core` in tensors, φ̂ between two affine maps, TReLU in one kernel.

Functions keep the type of their input. Half precision is widened where several operations would
each round. Modules hold their constants twice: as buffers of float64, which are saved and loaded
and no `.to(torch.bfloat16)` rounds, and as Python floats, which follow what is loaded and compute,
in full precision and without waiting for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _autograd  # pyright: ignore[reportAttributeAccessIssue]
from torch.compiler import is_dynamo_compiling

from skipless.core import activations as core
from skipless.core.arguments import whole_number
from skipless.core.solution import Solution, require_solution

Function = Callable[[Tensor], Tensor]

Slopes = Literal["channel", "layer"]  # which slopes of an activation are trained

HALF = frozenset((torch.bfloat16, torch.float16))


def _in_float32(f: Function) -> Function:
    """`f`, computed in float32 and rounded once where its argument is of half precision."""

    @wraps(f)
    def widened(x: Tensor) -> Tensor:
        return f(x.float()).to(x.dtype) if x.dtype in HALF else f(x)

    return widened


@_in_float32
def bent_identity(x: Tensor) -> Tensor:
    square = x * x
    return x + 0.5 * square / (1.0 + torch.sqrt(1.0 + square))


@_in_float32
def gaussian(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x)


@_in_float32
def hard_sigmoid(x: Tensor) -> Tensor:
    return F.relu6(x + 3.0) / 6.0  # F.hardsigmoid cannot be differentiated twice


@_in_float32
def quick_gelu(x: Tensor) -> Tensor:
    return F.silu(1.702 * x) / 1.702


@_in_float32
def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


@_in_float32
def squareplus(x: Tensor) -> Tensor:
    """(x + √(x² + 4)) / 2, without the cancellation on the negative side."""
    return torch.exp(torch.asinh(0.5 * x))


@_in_float32
def tanh_shrink(x: Tensor) -> Tensor:
    return F.tanhshrink(x)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    # F.celu does the same, but rounds 1 / alpha to float32 in its gradient.
    return torch.ops.aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    # PyTorch returns x itself above a threshold of 20, where the rest is still 2e-9.
    return F.softplus(x, beta, threshold=40.0)


_TABLE: dict[str, Function] = {
    "abs": torch.abs, "asinh": torch.asinh, "atan": torch.atan, "bent_identity": bent_identity,
    "celu": celu, "cos": torch.cos, "elu": F.elu, "erf": torch.erf, "gaussian": gaussian,
    "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "hard_sigmoid": hard_sigmoid,
    "hard_swish": F.hardswish, "hard_tanh": F.hardtanh, "identity": torch.positive,
    "leaky_relu": F.leaky_relu, "log_sigmoid": F.logsigmoid, "mish": F.mish,
    "quick_gelu": quick_gelu, "relu": F.relu, "relu6": F.relu6, "relu_squared": relu_squared,
    "selu": F.selu, "sigmoid": torch.sigmoid, "silu": F.silu, "sin": torch.sin,
    "soft_shrink": F.softshrink, "softplus": softplus, "softsign": F.softsign,
    "square": torch.square, "squareplus": squareplus, "tanh": torch.tanh,
    "tanh_shrink": tanh_shrink,
}  # fmt: skip


def which_slopes(trainable_slope: bool | Slopes) -> Slopes | None:
    """Which slopes the argument `trainable_slope` has trained; True is one for each channel.

    >>> which_slopes(True), which_slopes("layer"), which_slopes(False)
    ('channel', 'layer', None)
    """
    if isinstance(trainable_slope, bool):
        return "channel" if trainable_slope else None
    if trainable_slope not in ("channel", "layer"):
        raise ValueError(
            f"trainable_slope must be True, False, 'channel' or 'layer', got {trainable_slope!r}"
        )
    return trainable_slope


def function(name: str | core.Activation, negative_slope: float | None = None) -> Function:
    """φ as a function of tensors, for every activation that `core` knows.

    It keeps the type of its input, and can be differentiated, pickled, compiled and exported.

    >>> x = torch.linspace(-2.0, 2.0, 5)
    >>> torch.equal(function("hard_tanh")(x), x.clamp(-1.0, 1.0))
    True
    """
    return core.native(core.activation(name, negative_slope), _TABLE)


class ShapedActivation(nn.Module):
    r"""φ̂, an activation between two affine maps.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    φ is a name, an `Activation` of `core`, or a function of tensors. Half precision is computed in
    float32 and rounded once, because $s_o$ magnifies every earlier error.

    Each constant is a buffer, to be changed by `load_state_dict` only.

    A sigmoid is a tanh of half its input, moved up:

    >>> half = ShapedActivation("tanh", 0.5, 0.0, 0.5, 1.0)
    >>> x = torch.linspace(-3.0, 3.0, 7)
    >>> torch.allclose(half(x), torch.sigmoid(x))
    True
    >>> half.bfloat16().output_scale
    tensor(0.5000, dtype=torch.float64)
    """

    negative_slope: Tensor  # of leaky ReLU only
    input_scale: Tensor
    input_shift: Tensor
    output_scale: Tensor
    output_shift: Tensor

    def __init__(
        self,
        phi: str | core.Activation | Function,
        input_scale: float = 1.0,
        input_shift: float = 0.0,
        output_scale: float = 1.0,
        output_shift: float = 0.0,
    ) -> None:
        super().__init__()
        constants: dict[str, float] = {}
        if isinstance(phi, str | core.Activation):
            known = core.activation(phi)
            self.function, self.name = function(known), known.name
            if known.negative_slope is not None:
                self.name, constants["negative_slope"] = "leaky_relu", known.negative_slope
        else:
            core.require_phi(phi)
            self.function, self.name = phi, getattr(phi, "__name__", repr(phi))
        numbers = (input_scale, input_shift, output_scale, output_shift)
        constants |= core.shaping_constants(*numbers)
        self._set_constants(constants, torch.get_default_device())

    @staticmethod
    def from_solution(solution: Solution, function: Function | None = None) -> ShapedActivation:
        """The φ̂ of `solution`: a `TReLU` if it has only a slope and an output scale.

        `function` is φ in tensors, needed if φ is an `Activation` of your own.

        >>> from skipless import DKS, Graph, solve
        >>> ShapedActivation.from_solution(solve(Graph.chain(50), DKS(), "tanh")).name
        'tanh'
        """
        require_solution(solution)
        slope = solution.base.negative_slope
        if function is None and slope is not None and solution.is_rectifier:
            return TReLU(slope, solution.constants["output_scale"])
        return ShapedActivation(function or solution.base, **solution.constants)

    @property
    def constants(self) -> dict[str, float]:
        """The numbers that define φ̂, by the names of their buffers."""
        return dict(self._floats)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in HALF:
            return self.forward(x.float()).to(x.dtype)
        floats = self._floats
        if (scale := floats["input_scale"]) != 1.0:
            x = x * scale
        if (shift := floats["input_shift"]) != 0.0:
            x = x + shift
        slope = floats.get("negative_slope")  # which may have come from a state_dict
        y = self.function(x) if slope is None else F.leaky_relu(x, slope)
        if (shift := floats["output_shift"]) != 0.0:
            y = y + shift
        return y if (scale := floats["output_scale"]) == 1.0 else y * scale

    def extra_repr(self) -> str:
        return ", ".join([self.name, *(f"{n}={v:.6g}" for n, v in self._floats.items())])

    def _set_constants(self, constants: dict[str, float], device: torch.device) -> None:
        core.require_constants(f"{type(self).__name__} of {self.name}", constants)
        self._floats = constants
        for name, number in constants.items():
            self.register_buffer(name, torch.tensor(number, dtype=_widest(device), device=device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Only the device that `fn` leads to counts. MPS has no float64, not even to be cast there.
        for name in self._floats:
            self.register_buffer(name, self.get_buffer(name).float())
        try:
            return super()._apply(fn, recurse)
        finally:
            self._set_constants(self._floats, self.output_scale.device)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Mapping[str, object], prefix: str, *rest: object
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        loaded: dict[str, float] = {}
        for name in self._floats:
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor) and stored.numel() == 1 and not stored.is_meta:
                loaded[name] = float(stored.item())
        self._set_constants(self._floats | loaded, self.output_scale.device)


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


class TReLU(ShapedActivation):
    r"""γ φ_α(x), the leaky ReLU of slope α below zero whose Q map is the identity (eq. 11).

    $$\gamma\,(\max(x, 0) + \alpha \min(x, 0)), \qquad \gamma = \sqrt{2 / (1 + \alpha^2)}$$

    Like `nn.LeakyReLU` it saves its input and passes over memory once forwards and once backwards,
    so tensors of 16 MB and more take the same time. Smaller ones, which stay in the cache, take 1.1
    to 1.25 times as long in eager mode on a CPU. See `benchmarks/activation.py`.

    Below float64, slopes are exact for $|x| < 2^{38}$ and gradients $|\alpha g| > 2^{-62}$, far
    beyond what a working network computes; $-\infty$ and what is below $-2^{64}\gamma$ come out
    with the wrong sign. The second derivative, being zero, is not in the graph.

    >>> TReLU(negative_slope=0.0)  # ReLU needs γ² = 2
    TReLU(leaky_relu, negative_slope=0, output_scale=1.41421)
    """

    def __init__(self, negative_slope: float, output_scale: float | None = None) -> None:
        if output_scale is None:
            output_scale = core.trelu_scale(negative_slope)
        super().__init__(core.leaky_relu(negative_slope), output_scale=output_scale)

    def forward(self, x: Tensor) -> Tensor:
        # Compilers fuse the plain expression by themselves.
        if (
            (kernel := self._kernel) is not None
            and not is_dynamo_compiling()
            and type(x) is Tensor  # others are being traced, or have operations of their own
            and x.dtype in _FLOAT32_KERNEL
            and (x.is_cpu or x.is_cuda)
            and not _is_tracing()
            and _saving_hooks(False) is None
        ):
            a, scale, slope = kernel
            return _two_slopes(x, a, scale, slope, True, x.detach())
        return F.leaky_relu(x, self._floats["negative_slope"]) * self._floats["output_scale"]

    def _set_constants(self, constants: dict[str, float], device: torch.device) -> None:
        slope, scale = constants["negative_slope"], constants["output_scale"]
        super()._set_constants({"negative_slope": slope, "output_scale": scale}, device)
        self._kernel = (_LIFT, scale, slope / _LIFT) if 0.5 <= scale <= 2.0 else None


class TrainableTReLU(ShapedActivation):
    r"""γ (max(x, 0) + a min(x, 0)), a TReLU whose slope a below zero is trained, from α; γ stays.

    It is an `nn.PReLU` times a constant: `weight` holds one slope, or one for each channel on axis
    1, in the model's own type. Optimisers treat it as that of `nn.PReLU`, and `fold` makes one.

    Before the first step it is the `TReLU` of the same slope:

    >>> x = torch.linspace(-2.0, 2.0, 5)
    >>> torch.equal(TrainableTReLU(0.25)(x), TReLU(0.25)(x))
    True
    """

    def __init__(
        self, negative_slope: float, output_scale: float | None = None, num_parameters: int = 1
    ) -> None:
        if output_scale is None:
            output_scale = core.trelu_scale(negative_slope)
        core.leaky_relu(negative_slope)  # which says what is wrong
        whole_number("num_parameters", num_parameters, 1)
        super().__init__("relu", output_scale=output_scale)
        self.name = "prelu"
        self.initial_slope = float(negative_slope)
        self.weight = nn.Parameter(torch.empty(num_parameters))
        self.reset_parameters()

    @staticmethod
    def of(solution: Solution, num_parameters: int = 1) -> TrainableTReLU:
        """The φ̂ of `solution`, which must be a leaky ReLU times a constant, as under TAT."""
        require_solution(solution)
        slope = solution.base.negative_slope
        if slope is None or not solution.is_rectifier:
            raise ValueError(
                "trainable_slope needs a leaky ReLU without shifts, as TAT finds it, got "
                f"{solution.activation}. Use TAT() with activation='leaky_relu', or leave "
                "trainable_slope out."
            )
        return TrainableTReLU(slope, solution.constants["output_scale"], num_parameters)

    def reset_parameters(self) -> None:
        """Set all slopes to the one that they start from."""
        nn.init.constant_(self.weight, self.initial_slope)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in HALF:
            return self.forward(x.float()).to(x.dtype)
        return F.prelu(x, self.weight.to(x.dtype)) * self._floats["output_scale"]

    def native(self) -> nn.PReLU:
        """The same without its output scale."""
        plain = nn.PReLU(self.weight.numel(), device=self.weight.device, dtype=self.weight.dtype)
        plain.weight = self.weight
        return plain

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_parameters={self.weight.numel()}"


# Of all kernels in ATen, only ELU's backward has a factor on either side of zero. In terms of ELU's
# result y it is g γ where y > 0, else g s (y + a γ). With a = 2⁶⁴ and s = α / a, the y is lost in
# the sum while |y| < 2³⁸, because float32 has 24 digits, and g γ α is left. It is linear in g, so
# that with g = x autograd finds the gradient that we want.
_LIFT = 2.0**64
_FLOAT32_KERNEL = frozenset((torch.float32, torch.bfloat16, torch.float16))

# A small tensor takes most of its time in Python, so these are called without PyTorch's Python
# wrappers. The names are private: each has a public one, or a safe answer, to fall back on.
_two_slopes = torch.ops.aten.elu_backward.default
_two_slopes = getattr(_two_slopes, "_op", _two_slopes)
_is_tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)  # pyright: ignore[reportPrivateImportUsage]
# The kernel saves x twice. That costs nothing, unless hooks copy what is saved; a PyTorch that does
# not say whether there are such hooks is taken to have them.
_saving_hooks = getattr(_autograd, "_top_saved_tensors_default_hooks", lambda _: "unknown")
