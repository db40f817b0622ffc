r"""Initial weights under which q values stay 1, drawn in place (appendix D).

A layer with $k$ inputs and $m$ outputs takes a vector with $q = \|x\|^2 / k = 1$ to one with
$\|W x\|^2 / m = 1$, on average over $W$, if every weight has mean square $1/k$. In torch's layout
outputs come first, (out, in) or (out, in / groups, *kernel); only the weight of a transposed
convolution is (in, out / groups, *kernel).

As in `torch.nn.init`, a trailing underscore means that the argument is changed. Numbers are drawn
in float32, or float64 for weights of that type, on the device of the `generator` if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor, fx, nn

from .operations import AFFINE, operation, origin
from .trace import UnsupportedModelError

Distribution = Literal["orthogonal", "gaussian"]

_Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
_Affine = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | _Transposed
_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
_Normalisation = _BatchNorm | _InstanceNorm | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm

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

    A convolution is a matrix from all that its kernel covers, one for each group. This is right for
    kernels of size 1 and patches that do not overlap; others need `delta_`.

    >>> weight = scaled_uniform_orthogonal_(torch.empty(6, 3))
    >>> torch.allclose(weight.T @ weight, 2 * torch.eye(3), atol=1e-5)
    True
    """
    _fill_(_blocks(weight, groups), _Sampler("orthogonal", gain, generator))
    return weight


def gaussian_fan_in_(
    weight: Tensor, gain: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    r"""`weight`, drawn independently from $\mathcal N(0, \mathrm{gain}^2 / k)$ (eq. 1).

    $k$ is the number of weights that each output has: in / groups · kernel size.

    >>> weight = gaussian_fan_in_(torch.empty(500, 400), generator=torch.manual_seed(0))
    >>> round(400 * weight.square().mean().item(), 2)
    1.0
    """
    _fill_(_blocks(weight), _Sampler("gaussian", gain, generator))
    return weight


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
    and c values of convolutional networks computable (section 2.3).

    Each group has a matrix of its own, which keeps the q value of that group's channels. In a
    depthwise convolution it is a sign for each channel: q and c values are kept, but nothing is
    added up, so an activation that follows does not see normal numbers as its maps assume.

    An even kernel has no centre; of its two middle taps the first, (size - 1) // 2, is taken. Under
    `padding="same"` it reads the location itself, and under explicit padding of at most
    (size - 1) // 2 (times the dilation) it never reads the padding. Wider padding, around a kernel
    of any size, gives the output a border of zeros.

    >>> weight = delta_(torch.empty(4, 4, 3, 3))
    >>> centre = weight[:, :, 1, 1]
    >>> torch.allclose(centre @ centre.T, torch.eye(4), atol=1e-5), int(weight.count_nonzero())
    (True, 16)
    """
    sampler = _Sampler(distribution, gain, generator)
    _fill_taps_(_blocks(weight, groups), _centre(weight.shape[2:]), sampler)
    return weight


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

    A single tap would reach only every `stride`-th location of the output. So as many taps as the
    stride, from (size - stride + 1) // 2 on, hold the same matrix: the layer copies each location
    `stride` times and then acts on it as under `delta_`.

    An output of at most `stride` times the size of the input, with an `output_padding` of 0 or 1,
    is reached everywhere; a larger one has a border of zeros.

    >>> weight = transposed_delta_(torch.empty(8, 8, 4), stride=2)
    >>> up = nn.functional.conv_transpose1d(torch.ones(1, 8, 5), weight, stride=2, padding=1)
    >>> torch.allclose(up.square().mean(dim=1), torch.ones(10))
    True
    """
    blocks, kernel = _blocks(weight, groups, transposed=True), weight.shape[2:]
    strides = (stride,) * len(kernel) if isinstance(stride, int) else tuple(stride)
    _require_no_gaps(kernel, strides, (1,) * len(kernel))
    _fill_taps_(blocks, _middle(kernel, strides), _Sampler(distribution, gain, generator))
    return weight


def initialize_(
    model: nn.Module,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
    delta: bool = True,
    generator: torch.Generator | None = None,
) -> list[str]:
    r"""Names of the parameters left as they were, after drawing all others in place.

    Linear layers and convolutions of all kinds get weights with gain `sigma_w`, and biases from
    $\mathcal N(0, \sigma_b^2)$; of a `torch.fx.GraphModule` also layers that are functions of
    parameters. Normalisation layers are reset: scale 1, shift 0, no running statistics. A parameter
    that several layers share is drawn once, as that of the first. All else, such as embeddings,
    attention's packed projections or the slope of `nn.PReLU`, is left alone. Models with lazy, meta
    or reparametrised weights are refused before anything is changed.

    Args:
        model: The network, which is changed.
        sigma_w: The gain of the weights.
        sigma_b: The standard deviation of the biases.
        distribution: "orthogonal" or "gaussian" weights.
        delta: Whether only the centre of a kernel is drawn. If not, all taps are: q values are then
            kept on average where the kernel covers locations of q value 1 and no padding, and c
            values follow no local map.
        generator: The source of randomness.

    >>> initialize_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(), nn.Flatten(), nn.Linear(32, 2)))
    ['1.weight']
    """
    _require_plain_parameters(model)
    sampler = _Sampler(distribution, sigma_w, generator)
    drawn: set[int] = set()
    for module in model.modules():
        if isinstance(module, _Normalisation):
            module.reset_parameters()
        elif isinstance(module, _Affine):
            if id(module.weight) not in drawn:
                _draw_weight_(module, sampler, delta)
            if module.bias is not None and id(module.bias) not in drawn:
                _draw_bias_(module.bias, sampler, sigma_b)
        else:
            continue
        drawn.update(id(parameter) for parameter in module.parameters(recurse=False))
    if isinstance(model, fx.GraphModule):
        _draw_called_layers_(model, sampler, sigma_b, delta, drawn)
    return [name for name, parameter in model.named_parameters() if id(parameter) not in drawn]


@dataclass(frozen=True)
class _Sampler:
    """How matrices are drawn: their distribution, their scale and the source of randomness."""

    distribution: Distribution
    gain: float
    generator: torch.Generator | None

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
            case "gaussian":
                return self.gain / math.sqrt(max(k, 1)) * self.normal(shape, like)
            case other:
                raise ValueError(f"distribution must be 'orthogonal' or 'gaussian', got {other!r}")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Run what follows with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _blocks(weight: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """View of `weight`, detached, as (groups, outputs, inputs, *kernel) of each group."""
    _require_memory(weight)
    if not weight.is_floating_point() or weight.dim() < 2 or groups < 1 or weight.shape[0] % groups:
        raise ValueError(
            "A weight must be floating-point and of shape (out, in, *kernel), with out a multiple "
            f"of groups={groups}, got {weight.dtype} of shape {tuple(weight.shape)}"
        )
    blocks = weight.detach().unflatten(0, (groups, weight.shape[0] // groups))
    return blocks.transpose(1, 2) if transposed else blocks


def _centre(kernel: Sequence[int]) -> list[slice]:
    return [slice((size - 1) // 2, (size + 1) // 2) for size in kernel]


def _middle(kernel: Sequence[int], stride: Sequence[int]) -> list[slice]:
    axes = zip(kernel, stride, strict=True)
    return [slice((size - step + 1) // 2, (size + step + 1) // 2) for size, step in axes]


def _fill_(blocks: Tensor, sampler: _Sampler, stride: Sequence[int] = ()) -> None:
    """Draw all taps. In a transposed convolution, those that reach one location are a matrix."""
    for first in product(*map(range, stride)):
        part = blocks[(..., *(slice(i, None, step) for i, step in zip(first, stride, strict=True)))]
        shape = (*part.shape[:2], math.prod(part.shape[2:]))
        part.copy_(sampler.matrices(shape, part).reshape(part.shape))


def _fill_taps_(blocks: Tensor, taps: Sequence[slice], sampler: _Sampler) -> None:
    """Draw a matrix for each group and put it at all `taps`, with zeros elsewhere."""
    matrices = sampler.matrices(blocks.shape[:3], blocks)
    blocks.zero_()[(..., *taps)].copy_(matrices[(..., *(None for _ in taps))])


def _draw_weight_(module: _Affine, sampler: _Sampler, delta: bool) -> None:
    if isinstance(module, nn.Linear):
        return _fill_(_blocks(module.weight), sampler)
    transposed = isinstance(module, _Transposed)
    blocks = _blocks(module.weight, module.groups, transposed)
    _draw_kernel_(blocks, sampler, module.stride if transposed else (), delta)


def _draw_kernel_(blocks: Tensor, sampler: _Sampler, stride: Sequence[int], delta: bool) -> None:
    """Draw the weight of a convolution; `stride` is that of a transposed one."""
    kernel = blocks.shape[3:]
    if delta:
        _fill_taps_(blocks, _middle(kernel, stride) if stride else _centre(kernel), sampler)
    else:
        _fill_(blocks, sampler, stride)


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
            _require_no_gaps(
                module.kernel_size, module.stride, module.dilation, name or "The model"
            )


def _draw_bias_(bias: Tensor, sampler: _Sampler, sigma_b: float) -> None:
    bias = bias.detach()
    bias.copy_(sigma_b * sampler.normal(bias.shape, bias)) if sigma_b else bias.zero_()


def _draw_called_layers_(
    model: fx.GraphModule, sampler: _Sampler, sigma_b: float, delta: bool, drawn: set[int]
) -> None:
    """Draw the parameters of layers that `model` writes as functions, and add them to `drawn`."""
    for node in _called_layers(model):
        given = _arguments(node)
        weight, bias = (_parameter(model, given.get(name)) for name in ("weight", "bias"))
        if weight is None:
            continue
        if id(weight) not in drawn:
            _draw_called_weight_(operation(node), weight.detach(), given, sampler, delta)
        if bias is not None and id(bias) not in drawn:
            _draw_bias_(bias, sampler, sigma_b)
        drawn |= {id(weight), id(bias)}


def require_parameters(model: fx.GraphModule) -> None:
    """Raise if a layer that `model` writes as a function has a weight that cannot be drawn."""
    for node in _called_layers(model):
        if _parameter(model, _arguments(node).get("weight")) is None:
            raise UnsupportedModelError(
                f"{origin(node)} computes {operation(node)} with something that is no parameter of "
                "the model, so that it cannot be drawn. Remove weight normalisation and the like, "
                "or write the layer as nn.Linear or nn.Conv2d."
            )


def _called_layers(model: fx.GraphModule) -> Iterator[fx.Node]:
    for node in model.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and operation(node) in AFFINE:
            yield node


def _arguments(node: fx.Node) -> Mapping[str, object]:
    """The arguments of a layer's operation by name, under one name for its weight."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    match operation(node):
        case "mm" | "addmm":
            return {"weight": given["mat2"], "bias": given.get("self") if "mat1" in given else None}
        case "matmul":
            return {"weight": given["other"]}
        case _:
            return given


def _parameter(model: nn.Module, argument: object) -> nn.Parameter | None:
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        return model.get_parameter(str(argument.target))
    return None


def _draw_called_weight_(
    name: str, weight: Tensor, given: Mapping[str, object], sampler: _Sampler, delta: bool
) -> None:
    groups, stride = given.get("groups", 1), given.get("stride", (1,))
    assert isinstance(groups, int)
    assert isinstance(stride, list | tuple)
    if name in ("mm", "addmm", "matmul"):
        _fill_(_blocks(weight.mT), sampler)
    elif name.startswith("conv"):
        transposed, kernel = name.startswith("conv_transpose"), weight.shape[2:]
        strides = list(stride) * len(kernel) if len(stride) == 1 else stride
        _require_no_gaps(kernel, strides if transposed else (1,) * len(kernel), (1,) * len(kernel))
        _draw_kernel_(
            _blocks(weight, groups, transposed), sampler, strides if transposed else (), delta
        )
    else:
        _fill_(_blocks(weight), sampler)
