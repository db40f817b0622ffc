r"""Initial weights under which q values stay 1, drawn in place (appendix D).

A layer with $k$ inputs and $m$ outputs takes a vector with $q = \|x\|^2 / k = 1$ to one with
$\|W x\|^2 / m = 1$, on average over $W$, if every weight has mean square $1/k$. In torch's layout
outputs come first, (out, in) or (out, in / groups, *kernel); only the weight of a transposed
convolution is (in, out / groups, *kernel).

As in `torch.nn.init`, a trailing underscore means that the argument is changed. Numbers are drawn
in float32, or float64 for weights of that type, on the device of the `generator` if there is one.
"""

import math
import operator
import reprlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, fx, nn

from skipless.core.arguments import finite_number, require_flag, whole_number

from .activations import TrainableTReLU
from .operations import AFFINE, operation, origin
from .trace import UnsupportedModelError

Distribution = Literal["orthogonal", "gaussian", "looks_linear"]

_Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
_Affine = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | _Transposed
_Normalisation = nn.modules.batchnorm._NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm

# A QR decomposition meets its other threads at every few columns. Up to this width they save little
# on idle cores; on busy ones they wait for each other, ten times as long as one thread works.
_SMALL = 1024


def scaled_uniform_orthogonal_(
    weight: Tensor, gain: float = 1.0, *, groups: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    r"""`weight`, drawn from the scale-corrected uniform orthogonal distribution (SUO).

    For $m$ outputs and $k$ inputs this is a uniformly distributed matrix with orthonormal rows, or
    columns if $m > k$, times $\max\{\sqrt{m/k}, 1\}$ and `gain`. With a gain of 1,

    $$W W^\top = I \quad (m \le k), \qquad W^\top W = \tfrac{m}{k}\, I \quad (m > k),$$

    so that for $m \ge k$ every input keeps its q value exactly, and for $m < k$ on average.

    A convolution is a matrix from all that its kernel covers, one for each group, which is right
    for kernels of size 1 and patches that do not overlap; others need `delta_`.

    >>> weight = scaled_uniform_orthogonal_(torch.empty(6, 3))
    >>> torch.allclose(weight.T @ weight, 2 * torch.eye(3), atol=1e-5)
    True
    """
    return _Sampler("orthogonal", gain, generator).draw_(weight, groups, delta=False)


def gaussian_fan_in_(
    weight: Tensor, gain: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""`weight`, drawn independently from $\mathcal N(0, \mathrm{gain}^2 / k)$ (eq. 1).

    $k$ is the number of weights that each output has: in / groups · kernel size.

    >>> weight = gaussian_fan_in_(torch.empty(500, 400), generator=torch.manual_seed(0))
    >>> round(400 * weight.square().mean().item(), 2)
    1.0
    """
    return _Sampler("gaussian", gain, generator).draw_(weight, delta=False)


def looks_linear_(
    weight: Tensor,
    gain: float = 1.0,
    *,
    mirror_inputs: bool = True,
    mirror_outputs: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""`weight`, drawn so that ReLU networks are linear and isometric at first.

    With an orthogonal $W$ (as `scaled_uniform_orthogonal_` draws it) it is

    $$\begin{pmatrix} W & -W \\ -W & W \end{pmatrix}$$

    Channels then come in pairs of opposites, and $W \max(z, 0) - W \max(-z, 0) = W z$ (Balduzzi et
    al. 2017; Burkholz & Dubatovka 2019). The first layer of a network does not read such pairs and
    has $W$ over $-W$, the last one does not write them and has $W$ beside $-W$. A convolution has
    zeros everywhere but at its centre, as under `delta_`.

    >>> first, last = torch.empty(6, 3), torch.empty(3, 6)
    >>> _ = looks_linear_(first, mirror_inputs=False), looks_linear_(last, mirror_outputs=False)
    >>> x = torch.randn(5, 3)
    >>> y = torch.relu(x @ first.T) @ last.T
    >>> torch.allclose(y.norm(dim=1), x.norm(dim=1), rtol=1e-5)
    True
    """
    require_flag("mirror_inputs", mirror_inputs)
    require_flag("mirror_outputs", mirror_outputs)
    mirror = mirror_inputs, mirror_outputs
    return _Sampler("looks_linear", gain, generator, mirror).draw_(weight)


def delta_(
    weight: Tensor,
    gain: float = 1.0,
    *,
    groups: int = 1,
    distribution: Distribution = "orthogonal",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Weight of a convolution, zero but for one random matrix at the centre of the kernel.

    This Delta initialisation lets the network act on each location by itself, which is what makes q
    and c values of convolutional networks computable (section 2.3). Each group has a matrix of its
    own. In a depthwise convolution it is a sign for each channel: q and c values are kept, but an
    activation that follows does not see normal numbers as its maps assume.

    Of an even kernel's two middle taps the first, (size - 1) // 2, is taken, which is the location
    itself under `padding="same"`. Explicit padding of more than (size - 1) // 2 (times the
    dilation) gives the output of any kernel a border of zeros.

    >>> weight = delta_(torch.empty(4, 4, 3, 3))
    >>> centre = weight[:, :, 1, 1]
    >>> torch.allclose(centre @ centre.T, torch.eye(4), atol=1e-5), int(weight.count_nonzero())
    (True, 16)
    """
    return _Sampler(distribution, gain, generator).draw_(weight, groups)


def transposed_delta_(
    weight: Tensor,
    gain: float = 1.0,
    *,
    stride: int | Sequence[int] = 1,
    groups: int = 1,
    distribution: Distribution = "orthogonal",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Weight of a transposed convolution, zero but for one random matrix at the middle taps.

    As many taps as the stride, from (size - stride + 1) // 2 on, hold the same matrix: the layer
    copies each location `stride` times and then acts on it as under `delta_`. An output of at most
    `stride` times the size of the input, with an `output_padding` of 0 or 1, is reached everywhere;
    a larger one has a border of zeros.

    >>> weight = transposed_delta_(torch.empty(8, 8, 4), stride=2)
    >>> up = nn.functional.conv_transpose1d(torch.ones(1, 8, 5), weight, stride=2, padding=1)
    >>> torch.allclose(up.square().mean(dim=1), torch.ones(10))
    True
    """
    strides = stride if isinstance(stride, Sequence) else (stride,)
    return _Sampler(distribution, gain, generator).draw_(weight, groups, strides)


def initialize_(
    model: nn.Module,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
    delta: bool = True,
    generator: torch.Generator | None = None,
    keep: Collection[str] = (),
) -> list[str]:
    r"""Names of the parameters left as they were, after drawing all others in place.

    Linear layers and convolutions of all kinds get weights with gain `sigma_w`, and biases from
    $\mathcal N(0, \sigma_b^2)$; of a `torch.fx.GraphModule` also layers that are functions of
    parameters. Normalisation layers and the slopes of a `TrainableTReLU` are reset. A parameter
    that several layers share is drawn once, as that of the first. All else, such as embeddings,
    attention's packed projections or the slope of `nn.PReLU`, is left alone, and so is what
    measured parts of a converted model read. Models with lazy, meta or reparametrised weights are
    refused.

    Args:
        model: The network, which is changed.
        sigma_w: The gain of the weights.
        sigma_b: The standard deviation of the biases.
        distribution: "orthogonal" or "gaussian" weights, or "looks_linear" ones, as
            `looks_linear_` draws them: the first layer in the order of modules is taken for the one
            that reads the input, the last one for the one that returns the output.
        delta: Whether only the centre of a kernel is drawn. If not, all taps are: q values are then
            kept on average where the kernel covers locations of q value 1 and no padding, and c
            values follow no local map.
        generator: The source of randomness.
        keep: Names of further parameters to leave alone.

    >>> initialize_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(), nn.Flatten(), nn.Linear(32, 2)))
    ['1.weight']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {reprlib.repr(model)}")
    finite_number("sigma_w", sigma_w, 0.0)
    finite_number("sigma_b", sigma_b, 0.0)
    require_flag("delta", delta)
    _require_plain_parameters(model)
    sampler = _Sampler(distribution, sigma_w, generator)
    drawn: set[int] = set()
    keep = {*keep, *kept_parameters(model)}
    layers = (module.weight for module in model.modules() if isinstance(module, _Affine))
    called = (layer.weight for layer in _called_layers(model) if layer.weight is not None)
    weights = [*layers, *called]
    named = model.named_parameters(remove_duplicate=False)
    kept = {id(parameter) for name, parameter in named if name in keep}

    def draw_layer_(
        weight: Tensor, bias: Tensor | None, groups: int, strides: Sequence[int], right: bool
    ) -> None:
        if id(weight) not in drawn | kept:
            own = replace(sampler, mirror=(weight is not weights[0], weight is not weights[-1]))
            own.draw_(weight.mT if right else weight, groups, strides, delta=delta)
        if bias is not None and id(bias) not in drawn | kept:
            flat = bias.detach()
            flat.copy_(sigma_b * sampler.normal(flat.shape, flat)) if sigma_b else flat.zero_()
        drawn.update((id(weight), id(bias)))

    for module in model.modules():
        if not kept.isdisjoint(map(id, module.parameters(recurse=False))):
            continue
        if isinstance(module, _Normalisation | TrainableTReLU):
            module.reset_parameters()
        elif isinstance(module, _Affine):
            groups = 1 if isinstance(module, nn.Linear) else module.groups
            strides = module.stride if isinstance(module, _Transposed) else ()
            draw_layer_(module.weight, module.bias, groups, strides, right=False)
        else:
            continue
        drawn.update(id(parameter) for parameter in module.parameters(recurse=False))
    for _, weight, bias, groups, strides, right, _ in _called_layers(model):
        if weight is not None:
            draw_layer_(weight, bias, groups, strides, right)
    left = ((name, id(parameter)) for name, parameter in model.named_parameters())
    return [name for name, number in left if number not in drawn or number in kept]


def kept_parameters(model: nn.Module) -> Collection[str]:
    """The names of what the measured parts of a converted model read."""
    return getattr(getattr(model, "skipless_report", None), "kept", ())


@dataclass(frozen=True)
class _Sampler:
    """How weights are drawn: their distribution, their scale and the source of randomness."""

    distribution: Distribution
    gain: float
    generator: torch.Generator | None
    mirror: tuple[bool, bool] = (True, True)  # inputs, outputs

    def __post_init__(self) -> None:
        finite_number("gain", self.gain)
        if self.distribution not in get_args(Distribution):
            raise ValueError(
                "distribution must be 'orthogonal', 'gaussian' or 'looks_linear', got "
                f"{self.distribution!r}"
            )
        if not isinstance(self.generator, torch.Generator | None):
            raise TypeError(f"generator must be a torch.Generator, got {self.generator!r}")

    def draw_(
        self, weight: Tensor, groups: int = 1, strides: Sequence[int] = (), *, delta: bool = True
    ) -> Tensor:
        """Draw `weight`, which is that of a transposed convolution if there are `strides`.

        With `delta` each group has one matrix, at the middle taps. Otherwise all taps are drawn; in
        a transposed convolution, those that reach one location are a matrix.
        """
        if not isinstance(weight, Tensor):
            raise TypeError(f"weight must be a tensor, got {weight!r}")
        for name, number in (("groups", groups), *(("stride", step) for step in strides)):
            whole_number(name, number, 1)
        _require_memory(weight)
        matrix = weight.is_floating_point() and weight.dim() > 1
        if not matrix or groups < 1 or weight.shape[0] % groups:
            raise ValueError(
                "A weight must be floating-point and of shape (out, in, *kernel), with out a "
                f"multiple of groups={groups}, got {weight.dtype} of shape {tuple(weight.shape)}"
            )
        if self.distribution == "looks_linear":
            self._require_halves(weight, groups, transposed=bool(strides))
        outputs, kernel, transposed = weight.shape[0], weight.shape[2:], bool(strides)
        steps = tuple(strides) * len(kernel) if len(strides) == 1 else strides or (1,) * len(kernel)
        if len(steps) != len(kernel):
            raise ValueError(
                f"stride must have one number for each axis of {tuple(kernel)}, got {steps}"
            )
        blocks = weight.detach().unflatten(0, (groups, outputs // groups))
        if transposed:
            _require_no_gaps(kernel, steps, (1,) * len(kernel))
            blocks = blocks.transpose(1, 2)  # (groups, outputs, inputs, *kernel), as the others
        if delta:
            matrices = self.matrices(blocks.shape[:3], blocks)
            starts = [(n - s + transposed) // 2 for n, s in zip(kernel, steps, strict=True)]
            taps = [slice(start, start + s) for start, s in zip(starts, steps, strict=True)]
            blocks.zero_()[(..., *taps)].copy_(matrices[(..., *(None for _ in taps))])
            return weight
        for firsts in product(*map(range, steps)):
            taps = [slice(first, None, s) for first, s in zip(firsts, steps, strict=True)]
            part = blocks[(..., *taps)]
            shape = (*part.shape[:2], math.prod(part.shape[2:]))
            part.copy_(self.matrices(shape, part).reshape(part.shape))
        return weight

    def _require_halves(self, weight: Tensor, groups: int, *, transposed: bool) -> None:
        outputs, inputs = weight.shape[:2] if not transposed else weight.shape[1::-1]
        odd = (self.mirror[0] and inputs % 2) or (self.mirror[1] and outputs % 2)
        if odd or groups > 1:
            raise ValueError(
                "looks_linear needs an even number of inner channels and no groups, because each "
                f"channel is one of a pair of opposites, got {inputs} inputs, {outputs} outputs "
                f"and {groups} groups. Use even widths, or distribution='orthogonal'."
            )

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        device = like.device if self.generator is None else self.generator.device
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        return torch.randn(*shape, dtype=dtype, device=device, generator=self.generator)

    def matrices(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Independent matrices, as many as `shape` = (count, outputs m, inputs k) says."""
        count, m, k = shape
        match self.distribution:
            case "orthogonal":
                tall = self.normal((count, max(m, k), min(m, k)), like)
                with threads(1 if min(m, k) <= _SMALL else torch.get_num_threads()):
                    q, r = torch.linalg.qr(tall)
                # Q is uniform only beside an R of positive diagonal; LAPACK's has other signs.
                diagonal = r.diagonal(dim1=1, dim2=2).unsqueeze(1)
                scale = self.gain * max(math.sqrt(m / max(k, 1)), 1.0)
                q *= scale * torch.ones_like(diagonal).copysign(diagonal)
                return q if m > k else q.mT
            case "looks_linear":
                halves = m // (1 + self.mirror[1]), k // (1 + self.mirror[0])
                q = replace(self, distribution="orthogonal").matrices((count, *halves), like)
                q = torch.cat([q, -q], dim=2) if self.mirror[0] else q
                return torch.cat([q, -q], dim=1) if self.mirror[1] else q
            case "gaussian":
                return self.gain / math.sqrt(max(k, 1)) * self.normal(shape, like)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run what follows with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _require_memory(parameter: Tensor, name: str = "The weight") -> None:
    if nn.parameter.is_lazy(parameter) or parameter.is_meta:
        raise ValueError(
            f"{name} has no memory to draw into. If it is lazy, run the model once on an example; "
            "if it is on the meta device, call model.to_empty(device='cpu')."
        )


def _require_no_gaps(
    kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], name: str = "The weight"
) -> None:
    axes = zip(kernel, stride, dilation, strict=True)
    if any(size < step or math.gcd(step, space) > 1 for size, step, space in axes):
        raise ValueError(
            f"{name}, of a transposed convolution with kernel {tuple(kernel)}, stride "
            f"{tuple(stride)} and dilation {tuple(dilation)}, cannot reach all locations and would "
            "leave q = 0 at others. Use a kernel at least as large as the stride, and no dilation."
        )


def _require_plain_parameters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        _require_memory(parameter, name)
    for name, module in model.named_modules():
        if not isinstance(module, _Affine):
            continue
        wanted = {"weight"} if module.bias is None else {"weight", "bias"}
        if not wanted <= {own for own, _ in module.named_parameters(recurse=False)}:
            raise ValueError(
                f"{name or 'The model'} computes its weight or bias from other parameters (weight "
                "normalisation, pruning, ...). Remove that, or call initialize_ before it is added."
            )
        if isinstance(module, _Transposed):
            sizes = (module.kernel_size, module.stride, module.dilation)
            _require_no_gaps(*sizes, name or "The model")


class _CalledLayer(NamedTuple):
    """A layer that is a function of parameters, with what `_Sampler.draw_` needs."""

    node: fx.Node
    weight: Tensor | None  # None if it is no parameter
    bias: Tensor | None
    groups: int
    strides: Sequence[int]
    right: bool  # whether the weight is a matrix (in, out)
    is_fixed: bool  # whether its weight is a buffer, as that of a blur


def _called_layers(model: nn.Module) -> Iterator[_CalledLayer]:
    for node in model.graph.nodes if isinstance(model, fx.GraphModule) else ():
        target, name = node.target, operation(node)
        if not isinstance(target, torch._ops.OpOverload) or name not in AFFINE:
            continue
        names = [argument.name for argument in target._schema.arguments]
        given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        right = name in ("mm", "addmm", "matmul")
        buffers = dict(model.named_buffers())
        is_fixed = any(isinstance(a, fx.Node) and str(a.target) in buffers for a in given.values())
        weight, bias = given.get("weight"), given.get("bias")
        if right:
            weight, bias = given.get("mat2", given.get("other")), None
            bias = given["self"] if name == "addmm" else None
        weight, bias = _parameter(model, weight), _parameter(model, bias)
        strides = given.get("stride", (1,)) if name.startswith("conv_transpose") else ()
        yield _CalledLayer(node, weight, bias, given.get("groups", 1), strides, right, is_fixed)


def require_parameters(model: fx.GraphModule, kept: Collection[str]) -> None:
    """Raise if a layer that `model` writes as a function has a weight that cannot be drawn.

    The nodes named in `kept` are inside of parts that stay as they are.
    """
    for layer in _called_layers(model):
        fixed = layer.is_fixed or layer.node.name in kept
        if layer.weight is None and not fixed:
            raise UnsupportedModelError(
                f"{origin(layer.node)} computes {operation(layer.node)} with something that is no "
                "parameter of the model, so that it cannot be drawn. Remove weight normalisation "
                "and the like, or write the layer as nn.Linear or nn.Conv2d."
            )


def _parameter(model: nn.Module, argument: object) -> nn.Parameter | None:
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        found = operator.attrgetter(str(argument.target))(model)
        return found if isinstance(found, nn.Parameter) else None
    return None
