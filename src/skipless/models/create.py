"""create_model: a network by its name, in the form that is asked for, shaped and drawn."""

from __future__ import annotations

import math
from typing import get_args

import torch

from skipless.core.methods import Method
from skipless.torch.init import Distribution, initialize_

from .build import built
from .choice import Wish, chosen
from .kinds import demand_kinds
from .mlp import MLP
from .names import parsed
from .plans import Interface, MLPPlan, Norm, Plan, Stem, mlp_plan, resnet_plan, wide_resnet_plan
from .resnet import ResNet

_LARGEST_SMALL_IMAGE = 64  # that of Tiny ImageNet, which networks for CIFAR are used on


def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    in_channels: int = 3,
    input_size: int | tuple[int, int] | None = None,
    width: float | None = None,
    stem: Stem | None = None,
    shortcut_weight: float | None = None,
    norm: Norm | None = None,
    activation: str | None = None,
    negative_slope: float | None = None,
    method: Method | None = None,
    clamp: bool = False,
    dropout: float = 0.0,
    distribution: Distribution = "orthogonal",
    delta: bool = True,
    generator: torch.Generator | None = None,
) -> ResNet | MLP:
    r"""The network called `name`, a new `nn.Module` with freshly drawn weights.

    Names are those of `list_models`, `mlp` of any depth, and `wide_resnet` of any depth 6n + 4.
    `width` multiplies the channels of a ResNet (1 if left out; also 0.25), widens a Wide ResNet (2)
    and is the number of units of an MLP's layers (256). An MLP flattens images of `input_size`;
    other networks take images of every size, and up to 64 get the `stem` "cifar" (3x3, stride 1) in
    place of "imagenet" (7x7, stride 2, max-pooling). Wide ResNets have that of CIFAR anyway.

    | form          | `shortcut_weight` | `norm`               | activation and weights        |
    |---------------|-------------------|----------------------|-------------------------------|
    | standard      | None              | "batch" (or "layer") | ReLU, $\sigma_w = \sqrt 2$    |
    | rescaled      | $w$ in [-1, 1]    | "none"               | solved for `method`           |
    | vanilla       | 0 (MLP: None)     | "none"               | solved for `method`           |
    | shortcut-free | 0 (MLP: None)     | "batch" or "layer"   | ReLU, $\sigma_w = \sqrt 2$    |

    The `method` is TAT() if left out, its activation leaky ReLU (DKS: softplus, EOC: ReLU). The
    network itself is traced for it, and what was found is `model.shaping`; `clamp` is for `solve`.
    "layer" normalises all channels and locations of a sample together, and may have a `method` too.
    `activation="prelu"`, with slopes that are trained from `negative_slope` on (0.25), has none.
    Where layers are normalised, weights keep q = 1: $\sigma_w^2 = 1 / E[\varphi(z)^2]$.

    Weights are Orthogonal Delta ones, or Gaussian at the centre by `distribution`; without `delta`
    all of a kernel is drawn. `dropout` acts before the logits. Random numbers come from
    `generator`, or from torch's own.

    >>> model = create_model("mlp20", in_channels=1, input_size=8, num_classes=10, width=32)
    >>> model.shaping.solution.targets["mu0"], model(torch.zeros(5, 1, 8, 8)).shape
    (0.9, torch.Size([5, 10]))
    >>> standard = create_model("resnet18", input_size=32, num_classes=10, width=0.25)
    >>> standard.shaping is None
    True
    """
    demand_kinds({"num_classes": num_classes, "in_channels": in_channels, "width": width,
                  "shortcut_weight": shortcut_weight, "negative_slope": negative_slope,
                  "method": method, "dropout": dropout})  # fmt: skip
    sides = None if input_size is None else _sides(input_size)
    plan = _plan(name, width, stem, sides, shortcut_weight, norm)
    interface = _interface(plan, in_channels, sides, num_classes, dropout)
    choice = chosen(plan, Wish(activation, negative_slope, method, clamp))
    network = built(plan, interface, choice.activation)
    initialize_(
        network,
        sigma_w=choice.sigma_w,
        sigma_b=choice.sigma_b,
        distribution=distribution,
        delta=delta,
        generator=generator,
    )
    network.shaping = choice.shaping
    return network


def _plan(
    name: str,
    width: float | None,
    stem: Stem | None,
    sides: tuple[int, int] | None,
    shortcut_weight: float | None,
    norm: Norm | None,
) -> Plan:
    family, depth = parsed(name)
    if norm is not None and norm not in get_args(Norm):
        raise ValueError(f"norm={norm!r} was asked for; it is one of {', '.join(get_args(Norm))}.")
    if family == "mlp":
        if shortcut_weight is not None or stem is not None:
            asked = "stem" if shortcut_weight is None else "shortcut_weight"
            raise ValueError(
                f"A {asked} was asked for, but {name} has none: it is a chain of linear layers. "
                "Leave it out, or take a resnet."
            )
        return mlp_plan(depth, width, norm or "none")
    if shortcut_weight is not None and not -1.0 <= shortcut_weight <= 1.0:
        raise ValueError(
            f"shortcut_weight={shortcut_weight:g} was asked for, but a normalised sum needs one in "
            "[-1, 1]. Use 0 for no shortcuts, 0.8, or None for ordinary sums."
        )
    if shortcut_weight is None and norm == "none":
        raise ValueError(
            f"{name} was asked for with ordinary sums and norm='none', but then q grows with every "
            "block. Give a shortcut_weight, such as 0.8, or 0 for no shortcuts."
        )
    weight = None if shortcut_weight is None else float(shortcut_weight)
    norm = norm or ("batch" if weight is None else "none")
    if family == "resnet":
        return resnet_plan(depth, width, _stem(stem, sides), weight, norm)
    return wide_resnet_plan(depth, width, _stem(stem or "cifar", sides), weight, norm)


def _stem(stem: Stem | None, sides: tuple[int, int] | None) -> Stem:
    """The stem that was asked for, or that suits images of that size."""
    if stem is not None and stem not in get_args(Stem):
        raise ValueError(f"stem={stem!r} was asked for; it is one of {', '.join(get_args(Stem))}.")
    if stem is not None:
        return stem
    small = sides is not None and max(sides) <= _LARGEST_SMALL_IMAGE
    return "cifar" if small else "imagenet"


def _interface(
    plan: Plan,
    in_channels: int,
    sides: tuple[int, int] | None,
    num_classes: int,
    dropout: float,
) -> Interface:
    for label, count in (("in_channels", in_channels), ("num_classes", num_classes)):
        if count < 1:
            raise ValueError(f"{label}={count} was asked for, but it counts from 1.")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(
            f"dropout={dropout:g} was asked for, but it is a probability below 1, such as 0.2."
        )
    if isinstance(plan, MLPPlan):
        if sides is None:
            raise ValueError(
                "An MLP was asked for without input_size, but its first layer reads every pixel. "
                "Give the size of the images, such as 28, or 1 for vectors of in_channels numbers."
            )
        return Interface(int(in_channels) * math.prod(sides), int(num_classes), dropout)
    return Interface(int(in_channels), int(num_classes), dropout)


def _sides(input_size: int | tuple[int, int]) -> tuple[int, int]:
    sides = input_size if isinstance(input_size, tuple | list) else (input_size, input_size)
    for side in sides:
        demand_kinds({"input_size": side})
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(
            f"input_size={input_size} was asked for, but an image has a height and a width, each 1 "
            "or more. Give one number for both, such as 224, or a pair."
        )
    return int(sides[0]), int(sides[1])
