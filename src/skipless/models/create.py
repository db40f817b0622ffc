"""create_model: a network by its name, in the form that is asked for, shaped and drawn.

The activation of a network and the scale of its weights, given or solved for.

Names of networks: a family and a depth, `resnet50` or, as the command line has it, `mlp:50`.

demand_kinds: refuses what is of the wrong type, before it fails somewhere deep in a network.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType
from typing import Literal, cast, get_args

import torch
from torch import nn

from skipless.core.activations import Activation, leaky_relu
from skipless.core.activations import activation as look_up
from skipless.core.graph import Graph
from skipless.core.maps import q_map
from skipless.core.solution import DKS, EOC, TAT, Method
from skipless.core.solve import solve
from skipless.torch.activations import ShapedActivation
from skipless.torch.init import Distribution, initialize_
from skipless.torch.trace import trace

from .networks import (
    MLP,
    RESNETS,
    ActivationFactory,
    Interface,
    MLPPlan,
    Norm,
    Plan,
    ResNet,
    ResNetPlan,
    Shaping,
    Stem,
    built,
    mlp_plan,
    nearest_wide_depths,
    resnet_plan,
    wide_resnet_plan,
)

_USUAL = {TAT: "leaky_relu", DKS: "softplus", EOC: "relu"}
_USUAL_PRELU_SLOPE = 0.25  # He et al. (2015)


@dataclass(frozen=True)
class Wish:
    """What was asked for; None is the usual one of the plan."""

    activation: str | None
    negative_slope: float | None
    method: Method | None
    clamp: bool


@dataclass(frozen=True)
class Choice:
    """What the network gets."""

    activation: ActivationFactory
    sigma_w: float
    sigma_b: float = 0.0
    shaping: Shaping | None = None


def chosen(plan: Plan, wish: Wish) -> Choice:
    """The activation that `plan` gets, which without normalisation is solved for if it can be."""
    if wish.activation == "prelu":
        return _parametric(wish)
    if str(wish.activation).lower() == "prelu":  # not in the table, which would suggest another
        raise ValueError(f"No activation is called {wish.activation!r}. Did you mean 'prelu'?")
    if wish.method is None and plan.norm != "none":
        return _as_it_is(wish)
    return _solved(plan, wish)


def _parametric(wish: Wish) -> Choice:
    """PReLU, whose slopes are trained, with the weights that suit their initial value."""
    if wish.method is not None:
        raise ValueError(
            f"{type(wish.method).__name__} was asked for with prelu, but its slopes are trained, "
            "and a method finds those that are not. Leave the method out, or use leaky_relu."
        )
    slope = _USUAL_PRELU_SLOPE if wish.negative_slope is None else wish.negative_slope
    return Choice(lambda channels: nn.PReLU(channels, slope), _preserving(leaky_relu(slope)))


def _as_it_is(wish: Wish) -> Choice:
    phi = look_up(wish.activation or "relu", wish.negative_slope)
    plain = phi is look_up("relu")
    return Choice(lambda _: nn.ReLU() if plain else ShapedActivation(phi), _preserving(phi))


def _solved(plan: Plan, wish: Wish) -> Choice:
    method = TAT() if wish.method is None else wish.method
    asked = f"{type(method).__name__} was to shape the network"
    if isinstance(plan, ResNetPlan) and plan.shortcut_weight is None:
        raise ValueError(
            f"{asked} with ordinary sums, whose terms normalisation weighs in a way that the "
            "theory does not follow. Give a shortcut_weight (0 for none) with norm='none' or "
            "'layer', or leave the method out."
        )
    if plan.norm == "batch":
        raise ValueError(
            f"{asked} with batch normalisation, which takes away what the samples of a batch have "
            "in common, so that no C map describes it. Use norm='none' or 'layer', or leave the "
            "method out."
        )
    if wish.negative_slope is not None and not isinstance(method, EOC):
        raise ValueError(
            f"{asked} with negative_slope={wish.negative_slope:g}, but it finds the slope itself. "
            "Leave one of them out, or use EOC()."
        )
    phi = look_up(wish.activation or _USUAL.get(type(method), "relu"), wish.negative_slope)
    graph = _graph(plan.thin())
    solution = solve(graph, method, phi, clamp=wish.clamp)
    shaping = Shaping(method, graph, solution)
    shaped = lambda _: ShapedActivation.from_solution(solution)
    return Choice(shaped, solution.sigma_w, solution.sigma_b, shaping)


@lru_cache(maxsize=64)
def _graph(plan: Plan) -> Graph:
    """The graph of `plan`, traced once in a process."""
    with torch.device("cpu"):
        network = built(plan, Interface(1, 1), lambda channels: nn.ReLU()).eval()
        return trace(network, torch.zeros(1, 1, 1, 1))


def _preserving(phi: Activation) -> float:
    """The σ_w with which a layer behind φ puts out q = 1 where φ reads q = 1; √2 for ReLU."""
    return q_map(phi, 1.0) ** -0.5


Family = Literal["mlp", "resnet", "wide_resnet"]

_NAME = re.compile(r"(mlp|resnet|wide_resnet):?([1-9]\d{0,5})")
# Of the families that have every depth, those that the paper or its reference architecture uses.
_WELL_KNOWN = (
    *(f"mlp{depth}" for depth in (20, 50, 100)),
    *(f"resnet{depth}" for depth in RESNETS),
    *(f"wide_resnet{depth}" for depth in (16, 28, 40, 100, 142, 202, 304)),
)


def list_models(pattern: str = "*") -> list[str]:
    """The well-known names that fit `pattern`, with the wildcards of a shell.

    `create_model` also takes `mlp` of any depth, and `wide_resnet` of any depth 6n + 4.

    >>> list_models("resnet*")
    ['resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet152', 'resnet200']
    """
    return [name for name in _WELL_KNOWN if fnmatchcase(name, pattern)]


def parsed(name: str) -> tuple[Family, int]:
    """The family and the depth that `name` stands for, if there is such a network.

    >>> parsed("resnet50"), parsed("mlp:1000")
    (('resnet', 50), ('mlp', 1000))
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"The model {name!r} was asked for, but there is none. {_advice(name)}")
    family, depth = cast(Family, found[1]), int(found[2])
    if family == "resnet" and depth not in RESNETS:
        raise ValueError(
            f"The model {name!r} was asked for, but ResNets of that depth are not defined. "
            f"{_advice(family + found[2])}"
        )
    if family == "wide_resnet" and (depths := nearest_wide_depths(depth)) != (depth,):
        nearest = " or ".join(f"wide_resnet{legal}" for legal in depths)
        raise ValueError(
            f"The model {name!r} was asked for, but a Wide ResNet has a depth of 6n + 4: three "
            f"stages of n blocks with two layers each. Use {nearest}."
        )
    return family, depth


def _advice(name: str) -> str:
    close = difflib.get_close_matches(name, _WELL_KNOWN, n=3)
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    resnets = ", ".join(name for name in _WELL_KNOWN if name.startswith("resnet"))
    return (
        f"{meant}There are {resnets}; mlp takes any depth (mlp50), and wide_resnet any depth "
        "6n + 4 (wide_resnet100)."
    )


# What each argument of create_model may be, and what to give in its place.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "num_classes": ((Integral,), "a whole number, such as 10"),
    "in_channels": ((Integral,), "a whole number, such as 3"),
    "input_size": ((Integral,), "a whole number for both sides, such as 224, or a pair of them"),
    "width": ((Real, NoneType), "a number, such as 2, or leave it out"),
    "shortcut_weight": ((Real, NoneType), "a number in [-1, 1], such as 0.8, or leave it out"),
    "negative_slope": ((Real, NoneType), "a number, such as 0.25, or leave it out"),
    "method": ((TAT, DKS, EOC, NoneType), "a method, such as TAT(eta=0.9)"),
    "dropout": ((Real,), "a probability below 1, such as 0.2"),
}


def demand_kinds(given: Mapping[str, object]) -> None:
    """Nothing, if all arguments in `given` are of their types; numbers may be those of numpy."""
    for name, value in given.items():
        kinds, advice = _KINDS[name]
        if isinstance(value, bool) or not isinstance(value, kinds):  # Python counts with True, too
            raise ValueError(
                f"{name}={value!r} was asked for, which is of type {type(value).__name__}. "
                f"Give {advice}."
            )


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
