r"""Inputs of q value 1, as the theory assumes them.

The q value of an input is $q = \|x\|^2 / d$; all predictions are for $q = 1$ (section 2.2). To a
convolutional network under Delta initialisation, $x$ is the vector of channels at a location
(`normalize_per_location`); to a multilayer perceptron, all numbers of a sample
(`normalize_per_sample`).

With smooth activations this decides whether the prediction holds. Rectifiers commute with positive
scales, so that c values come out right without it; but a location of zeros, such as a black pixel,
has no c value in any network, and locations of different q values weigh differently when pooled.
"""

import torch
from torch import Tensor, nn

from skipless._deprecated import renamed_arguments
from skipless.core.arguments import finite_number, require_axis, whole_number


@renamed_arguments(channel_dim="channel_axis")
def normalize_per_location(
    x: Tensor, *, channel_axis: int = 1, homogeneous: float | None = 1.0
) -> Tensor:
    r"""`x` with a constant channel appended, scaled to q value 1 at every location.

    $$x \mapsto \sqrt{\frac{d + 1}{\|x\|^2 + h^2}}\; (x_1, \ldots, x_d, h)$$

    Scaling alone would forget the length of $x$, which is the brightness of a pixel. The
    homogeneous coordinate $h$ keeps it, and gives a location of zeros a direction. It should be of
    the size of the entries of `x`: 1 for standardised data.

    **The output has one channel more than the input**, as the first layer must expect. With
    `homogeneous=None` it does not, and locations of zeros stay zero.

    `channel_axis` is 1 in batches of torch's layout, -1 if channels come last, and 0 in a single
    image of torch's layout.

    >>> black_and_blue = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    >>> y = normalize_per_location(black_and_blue, channel_axis=-1)
    >>> y[0].tolist(), [round(q, 6) for q in y.square().mean(dim=-1).tolist()]
    ([0.0, 0.0, 0.0, 2.0], [1.0, 1.0])
    """
    wide = _in_full_precision(x)
    require_axis("channel_axis", channel_axis, tuple(x.shape))
    if homogeneous is not None:
        finite_number("homogeneous", homogeneous)
        constant = torch.full_like(wide.narrow(channel_axis, 0, 1), homogeneous)
        wide = torch.cat([wide, constant], dim=channel_axis)
    return _scale_to_unit_q(wide, (channel_axis,)).to(x.dtype)


@renamed_arguments(start_dim="start_axis")
def normalize_per_sample(x: Tensor, *, start_axis: int = 1) -> Tensor:
    """`x` scaled to q value 1 over all numbers of each sample; a sample of zeros stays zero.

    A sample is what lies in the axes from `start_axis` on: 1 in batches, 0 for a single sample.
    `normalize_per_location(x.flatten(1))` keeps its length, too, in one more number.

    >>> normalize_per_sample(torch.tensor([[3.0, 0.0, 0.0, 0.0], [5.0, 5.0, -5.0, 5.0]]))
    tensor([[ 2.,  0.,  0.,  0.],
            [ 1.,  1., -1.,  1.]])
    """
    wide = _in_full_precision(x)
    dims = tuple(range(x.dim())[whole_number("start_axis", start_axis, 0) :])
    if not dims:
        raise ValueError(
            f"x needs an axis {start_axis} for the numbers of a sample, got shape "
            f"{tuple(x.shape)}. For a single sample without a batch, set start_axis=0."
        )
    return _scale_to_unit_q(wide, dims).to(x.dtype)


class PerLocationNormalization(nn.Module):
    """`normalize_per_location` as the first layer of a network, or as a transform of its data.

    >>> first = PerLocationNormalization()
    >>> network = nn.Sequential(first, nn.Conv2d(first.out_channels(3), 64, 3))
    >>> network(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 64, 6, 6])
    """

    @renamed_arguments(channel_dim="channel_axis")
    def __init__(self, *, channel_axis: int = 1, homogeneous: float | None = 1.0) -> None:
        super().__init__()
        whole_number("channel_axis", channel_axis, -64, 64)
        if homogeneous is not None:
            finite_number("homogeneous", homogeneous)
        self.channel_axis = channel_axis
        self.homogeneous = homogeneous

    def out_channels(self, in_channels: int) -> int:
        """Number of channels that come out where `in_channels` go in."""
        return in_channels + (self.homogeneous is not None)

    def forward(self, x: Tensor) -> Tensor:
        return normalize_per_location(
            x, channel_axis=self.channel_axis, homogeneous=self.homogeneous
        )

    def extra_repr(self) -> str:
        return f"channel_axis={self.channel_axis}, homogeneous={self.homogeneous}"


def _in_full_precision(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {x!r}")
    if not x.is_floating_point():
        raise TypeError(
            f"x must be of floating-point numbers, got {x.dtype}. Divide the bytes of an image by "
            "255, and standardise them, first."
        )
    return x.float() if x.element_size() < 4 else x


def _scale_to_unit_q(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    # Squares of entries that are at most 1 do not overflow. The result does not depend on `peak`,
    # so autograd need not follow it.
    peak = x.detach().abs().amax(dim=dims, keepdim=True)
    nothing = peak == 0
    x = x / peak.masked_fill(nothing, 1.0)
    return x * x.square().mean(dim=dims, keepdim=True).masked_fill(nothing, 1.0).rsqrt()
