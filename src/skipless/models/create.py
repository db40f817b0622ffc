"""`create_model`: a network by its name, with its activation solved for and its weights drawn."""

import difflib
import math
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args

import torch
from torch import nn

from skipless._deprecated import renamed_arguments
from skipless.core.activations import Activation, leaky_relu
from skipless.core.activations import activation as look_up
from skipless.core.arguments import require_flag
from skipless.core.graph import Graph
from skipless.core.maps import q_map
from skipless.core.solution import DKS, EOC, TAT, Method, Solution
from skipless.core.solve import solve
from skipless.torch.activations import ShapedActivation, Slopes, TrainableTReLU, which_slopes
from skipless.torch.init import Distribution, initialize_
from skipless.torch.trace import trace

from .networks import (
    MLP,
    ActivationFactory,
    MLPPlan,
    Norm,
    Plan,
    ResNet,
    ResNetPlan,
    Shaping,
    Stem,
    build_network,
)

_NAME = re.compile(r"(mlp|resnet|wide_resnet):?([1-9]\d{0,5})")
# Blocks of each stage, and whether they are bottlenecks (He et al. 2015, table 1; He et al. 2016).
RESNETS: dict[int, tuple[tuple[int, ...], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
# Depths of the open-ended families that the paper or its reference architecture uses.
_WELL_KNOWN = (
    *(f"mlp{depth}" for depth in (20, 50, 100)),
    *(f"resnet{depth}" for depth in RESNETS),
    *(f"wide_resnet{depth}" for depth in (16, 28, 40, 100, 142, 202, 304)),
)
_MAX_DEPTH = 100_000
_MAX_CHANNELS = 2**24  # of a first stage: the bytes of any later layer still fit 63 bits
_DEFAULT_ACTIVATION = {TAT: "leaky_relu", DKS: "softplus", EOC: "relu"}
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "num_classes": ((Integral,), "an integer, such as 10"),
    "in_chans": ((Integral,), "an integer, such as 3"),
    "img_size": ((Integral,), "an integer for both sides, such as 224, or a pair"),
    "width": ((Real, NoneType), "a number, such as 2, or None"),
    "shortcut_weight": ((Real, NoneType), "a number in [0, 1), such as 0.8, or None"),
    "negative_slope": ((Real, NoneType), "a number, such as 0.25, or None"),
    "method": ((TAT, DKS, EOC, NoneType), "a method, such as TAT(eta=0.9)"),
    "drop_rate": ((Real,), "a probability below 1, such as 0.2"),
}


def list_models(pattern: str = "*") -> list[str]:
    """The well-known names that match `pattern`, with a shell's wildcards.

    `create_model` also takes `mlp` of any depth, and `wide_resnet` of any depth 6n + 4.

    >>> list_models("resnet*")
    ['resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet152', 'resnet200']
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a string such as 'resnet*', got {pattern!r}")
    return [name for name in _WELL_KNOWN if fnmatchcase(name, pattern)]


@renamed_arguments(in_channels="in_chans", input_size="img_size", dropout="drop_rate")
def create_model(
    name: str,
    *,
    num_classes: int = 1000,
    in_chans: int = 3,
    img_size: int | tuple[int, int] | None = None,
    width: float | None = None,
    stem: Stem | None = None,
    shortcut_weight: float | None = None,
    norm: Norm | None = None,
    activation: str | None = None,
    negative_slope: float | None = None,
    method: Method | None = None,
    clamp: bool = False,
    drop_rate: float = 0.0,
    distribution: Distribution = "orthogonal",
    delta: bool = True,
    trainable_slope: bool | Slopes = False,
    generator: torch.Generator | None = None,
) -> ResNet | MLP:
    r"""The network called `name`, with freshly drawn weights.

    | form          | `shortcut_weight` | `norm`               | activation and weights        |
    |---------------|-------------------|----------------------|-------------------------------|
    | standard      | None              | "batch" (or "layer") | ReLU, $\sigma_w = \sqrt 2$    |
    | rescaled      | $w$ in [0, 1)     | "none"               | solved for `method`           |
    | vanilla       | 0 (MLP: None)     | "none"               | solved for `method`           |
    | shortcut-free | 0 (MLP: None)     | "batch" or "layer"   | ReLU, $\sigma_w = \sqrt 2$    |

    The network itself is traced to solve for its activation; `model.shaping` has the result. In
    normalised networks, weights keep q = 1: $\sigma_w^2 = 1 / E[\varphi(z)^2]$.

    Args:
        name: One of `list_models()`, `mlp` of any depth, or `wide_resnet` of any depth 6n + 4.
        num_classes: Number of logits.
        in_chans: Channels of an image.
        img_size: Size of an image. An MLP needs it, to flatten images; other networks take any
            size, and up to 64 get the stem "cifar".
        width: Factor of a ResNet's channels (default 1; 0.25 works, too), widening factor of a Wide
            ResNet (2), or units of an MLP's layers (256).
        stem: "imagenet" (7x7, stride 2, max-pooling) or "cifar" (3x3, stride 1), the default of
            Wide ResNets.
        shortcut_weight: See the table.
        norm: "layer" normalises all channels and locations of a sample together, and may have a
            `method`, too.
        activation: By default leaky ReLU for TAT, softplus for DKS, ReLU for EOC. "prelu" trains
            its slopes, from `negative_slope` (0.25), and has no method.
        negative_slope: Of leaky ReLU without a method, or with EOC.
        method: `TAT()` by default, if the form is shaped. With `EOC(spread=...)` the first layer
            scales inputs to the q value of the solution.
        clamp: Take the nearest reachable target, as in `solve`.
        drop_rate: Dropout before the logits.
        distribution: Of weights: Orthogonal Delta, or Gaussian at the centre; or "looks_linear",
            with which a ReLU network is linear at first, and without shortcuts isometric.
        delta: If false, draw whole kernels.
        trainable_slope: Train the slopes of leaky ReLU from those that TAT finds, one for each
            "channel" (True) or "layer".
        generator: Of random numbers; by default torch's own.

    >>> model = create_model("mlp20", in_chans=1, img_size=8, num_classes=10, width=32)
    >>> model.shaping.solution.targets["mu0"], model(torch.zeros(5, 1, 8, 8)).shape
    (0.9, torch.Size([5, 10]))
    >>> standard = create_model("resnet18", img_size=32, num_classes=10, width=0.25)
    >>> standard.shaping is None
    True
    """
    _require_types(
        num_classes=num_classes, in_chans=in_chans, width=width, shortcut_weight=shortcut_weight,
        negative_slope=negative_slope, method=method, drop_rate=drop_rate,
    )  # fmt: skip
    for label, count in (("num_classes", num_classes), ("in_chans", in_chans)):
        if count < 1:
            raise ValueError(f"{label} must be >= 1, got {count}")
    require_flag("clamp", clamp)
    require_flag("delta", delta)
    if not 0.0 <= drop_rate < 1.0:
        raise ValueError(f"drop_rate must be in [0, 1), got {drop_rate:g}")
    sides = None if img_size is None else _sides(img_size)
    plan = _plan(name, width, stem, sides, shortcut_weight, norm)
    inputs = int(in_chans)
    if isinstance(plan, MLPPlan):
        if sides is None:
            raise ValueError(
                "An MLP needs img_size, because its first layer reads every pixel. Give the size "
                "of the images, such as 28, or 1 for vectors of in_chans numbers."
            )
        inputs *= math.prod(sides)
    slopes = which_slopes(trainable_slope)
    if distribution == "looks_linear":
        _require_looks_linear(plan, activation, method, slopes)
        factory, shaping, sigmas = lambda _: nn.ReLU(), None, dict[str, float]()
    else:
        factory, sigmas, shaping = choose_activation(
            plan, activation, negative_slope, method, clamp, slopes
        )
    network = build_network(
        plan, factory, inputs=inputs, num_classes=int(num_classes), drop_rate=drop_rate
    )
    drawn: dict[str, Any] = {**sigmas, "distribution": distribution, "delta": delta}
    initialize_(network, **drawn, generator=generator)
    if isinstance(method, EOC) and method.spread is not None and shaping is not None:
        _begin_at_q_(network, shaping.solution)
    network.shaping = shaping
    return network


def _begin_at_q_(network: nn.Module, solution: Solution) -> None:
    """Scale the first layer so that inputs of q = 1 have the q value of the solution behind it.

    On the edge of chaos q converges slowly, and the Jacobian of layers with a larger one is further
    from an isometry.
    """
    first = next(m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    with torch.no_grad():
        first.weight.mul_(math.sqrt(solution.q - solution.sigma_b**2) / solution.sigma_w)


def parse_name(name: str) -> tuple[str, int]:
    """The family and the depth of the network called `name`.

    >>> parse_name("resnet50"), parse_name("mlp:1000")
    (('resnet', 50), ('mlp', 1000))
    """
    found = _NAME.fullmatch(str(name))
    if found is None or (found[1] == "resnet" and int(found[2]) not in RESNETS):
        reason = ": ResNets of that depth are not defined" if found else ""
        close = difflib.get_close_matches(str(name).replace(":", ""), _WELL_KNOWN)
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(
            f"There is no model {name!r}{reason}. {hint}There are "
            f"{', '.join(list_models('resnet*'))}; mlp takes any depth (mlp50), and wide_resnet "
            "any depth 6n + 4 (wide_resnet100)."
        )
    family, depth = found[1], int(found[2])
    if depth > _MAX_DEPTH:
        raise ValueError(f"{family} has at most {_MAX_DEPTH} layers, got {name}")
    if family == "wide_resnet" and (depths := nearest_wide_depths(depth)) != (depth,):
        nearest = " or ".join(f"wide_resnet{valid}" for valid in depths)
        raise ValueError(
            f"There is no model {name!r}: a Wide ResNet has a depth of 6n + 4, three stages of n "
            f"blocks with two layers each. Use {nearest}."
        )
    return family, depth


def nearest_wide_depths(depth: int) -> tuple[int, ...]:
    """`depth` itself if a Wide ResNet can have it, else its valid neighbours.

    >>> nearest_wide_depths(100), nearest_wide_depths(101), nearest_wide_depths(3)
    ((100,), (100, 106), (10,))
    """
    below = depth - (depth - 4) % 6
    if below < 10:  # one block per stage
        return (10,)
    return (below,) if below == depth else (below, below + 6)


def choose_activation(
    plan: Plan,
    activation: str | None,
    slope: float | None,
    method: Method | None,
    clamp: bool,
    slopes: Slopes | None,
) -> tuple[ActivationFactory, dict[str, float], Shaping | None]:
    """The activation of a network, the σ_w and σ_b that go with it, and how it was solved for."""
    if slopes is not None and (activation == "prelu" or (method is None and plan.norm != "none")):
        raise ValueError(
            "trainable_slope starts from the slope that TAT finds, and needs method=TAT(). The "
            "slopes of activation='prelu', which starts from negative_slope, are trained anyway."
        )
    if activation == "prelu":
        if method is not None:
            raise ValueError(
                f"prelu trains its slopes, so {type(method).__name__} cannot solve for them. Leave "
                "the method out, or use leaky_relu."
            )
        start = 0.25 if slope is None else slope  # He et al. (2015)
        sigmas = {"sigma_w": _sigma_w_keeping_q(leaky_relu(start))}
        return lambda channels: nn.PReLU(channels, start), sigmas, None
    if str(activation).lower() == "prelu":  # not in the table, which would suggest another
        raise ValueError(f"No activation is called {activation!r}. Did you mean 'prelu'?")
    if method is None and plan.norm != "none":
        phi = look_up("relu" if activation is None else activation, slope)
        is_relu = phi is look_up("relu")
        factory = lambda _: nn.ReLU() if is_relu else ShapedActivation(phi)
        return factory, {"sigma_w": _sigma_w_keeping_q(phi)}, None
    method = TAT() if method is None else method
    _require_shapeable(plan, method, slope)
    usual = _DEFAULT_ACTIVATION.get(type(method), "relu")
    phi = look_up(usual if activation is None else activation, slope)
    graph = _graph(plan.thin())
    solution = solve(graph, method, phi, clamp=clamp)
    factory: ActivationFactory = lambda _: ShapedActivation.from_solution(solution)
    if slopes is not None:
        TrainableTReLU.of(solution)  # which says what is wrong
        factory = lambda n: TrainableTReLU.of(solution, n if slopes == "channel" else 1)
    sigmas = {"sigma_w": solution.sigma_w, "sigma_b": solution.sigma_b}
    return factory, sigmas, Shaping(method, graph, solution)


def _require_looks_linear(
    plan: Plan, activation: str | None, method: Method | None, slopes: Slopes | None
) -> None:
    wrong = {
        "norm": plan.norm if plan.norm != "none" else None,
        "method": method,
        "activation": activation if activation != "relu" else None,
        "trainable_slope": slopes,
        "stem": "imagenet" if isinstance(plan, ResNetPlan) and plan.stem == "imagenet" else None,
    }
    if given := [f"{name}={value!r}" for name, value in wrong.items() if value is not None]:
        raise ValueError(
            "distribution='looks_linear' is for plain ReLU networks without normalisation or "
            f"maximum-pooling: a ResNet with a shortcut_weight and stem='cifar', or an MLP. Got "
            f"{', '.join(given)}."
        )


def _require_shapeable(plan: Plan, method: Method, slope: float | None) -> None:
    what = f"{type(method).__name__} cannot shape"
    if isinstance(plan, ResNetPlan) and plan.shortcut_weight is None:
        raise ValueError(
            f"{what} a network with ordinary sums, whose terms normalisation weighs in a way that "
            "the theory does not follow. Give a shortcut_weight (0 for none) with norm='none' or "
            "'layer', or leave the method out."
        )
    if plan.norm == "batch":
        raise ValueError(
            f"{what} a network with batch normalisation, which removes what the samples of a batch "
            "have in common, so that no C map describes it. Use norm='none' or 'layer', or leave "
            "the method out."
        )
    if slope is not None and not isinstance(method, EOC):
        raise ValueError(
            f"{type(method).__name__} solves for the slope itself, got "
            f"negative_slope={slope:g}. Leave one of them out, or use EOC()."
        )


@lru_cache(maxsize=64)
def _graph(plan: Plan) -> Graph:
    """The graph of `plan`, traced once per process."""
    with torch.device("cpu"):
        network = build_network(plan, lambda _: nn.ReLU(), inputs=1, num_classes=1).eval()
        return trace(network, torch.zeros(1, 1, 1, 1))


def _sigma_w_keeping_q(phi: Activation) -> float:
    """The σ_w with which a layer after φ outputs q = 1 if φ reads q = 1; √2 for ReLU."""
    return q_map(phi, 1.0) ** -0.5


def _plan(
    name: str,
    width: float | None,
    stem: Stem | None,
    sides: tuple[int, int] | None,
    shortcut_weight: float | None,
    norm: Norm | None,
) -> Plan:
    family, depth = parse_name(name)
    _require_choice("norm", norm, (None, *get_args(Norm)))
    if family == "mlp":
        if shortcut_weight is not None or stem is not None:
            given = "stem" if shortcut_weight is None else "shortcut_weight"
            raise ValueError(
                f"{name} has no {given}: it is a chain of linear layers. Leave it out, or use a "
                "resnet."
            )
        units = 256 if width is None else width
        if not 1 <= units <= _MAX_CHANNELS or units != int(units):
            raise ValueError(
                "width of an MLP is its units per layer: it must be an integer from 1 to "
                f"{_MAX_CHANNELS}, such as 256, got {units}"
            )
        return MLPPlan(depth, int(units), norm or "none")
    if shortcut_weight is not None and not 0.0 <= shortcut_weight < 1.0:
        raise ValueError(
            f"shortcut_weight must be in [0, 1), got {shortcut_weight:g} (0 for no shortcuts, "
            "0.8, or None for ordinary sums)"
        )
    if shortcut_weight is None and norm == "none":
        raise ValueError(
            f"With ordinary sums and norm='none', q grows with every block of {name}. Give a "
            "shortcut_weight, such as 0.8, or 0 for no shortcuts."
        )
    if stem is None:
        # Networks for CIFAR are used on Tiny ImageNet, too, whose images have 64 pixels a side.
        small = family == "wide_resnet" or (sides and max(sides) <= 64)
        stem = "cifar" if small else "imagenet"
    _require_choice("stem", stem, get_args(Stem))
    weight = None if shortcut_weight is None else float(shortcut_weight)
    plan = resnet_plan if family == "resnet" else wide_resnet_plan
    return plan(depth, width, stem, weight, norm or ("batch" if weight is None else "none"))


def _sides(img_size: int | tuple[int, int]) -> tuple[int, int]:
    sides = img_size if isinstance(img_size, tuple | list) else (img_size, img_size)
    for side in sides:
        _require_types(img_size=side)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(
            f"img_size must be a positive height and width, or one number for both, such as 224, "
            f"got {img_size}"
        )
    return int(sides[0]), int(sides[1])


def resnet_plan(
    depth: int, width: float | None, stem: Stem, shortcut_weight: float | None, norm: Norm
) -> ResNetPlan:
    """The plan of an ImageNet ResNet whose layers have `width` times the standard channels."""
    blocks, bottleneck = RESNETS[depth]
    channels = _times(64, 1 if width is None else width)
    return ResNetPlan(blocks, bottleneck, channels, channels, stem, shortcut_weight, norm)


def wide_resnet_plan(
    depth: int, width: float | None, stem: Stem, shortcut_weight: float | None, norm: Norm
) -> ResNetPlan:
    """The plan of a Wide ResNet (Zagoruyko & Komodakis 2016) with the widening factor `width`.

    Its depth of 6n + 4 counts the stem, 6n layers in blocks, and three projections.
    """
    blocks, stem_channels = ((depth - 4) // 6,) * 3, 16
    channels = _times(stem_channels, 2 if width is None else width)  # 2: appendix E
    return ResNetPlan(blocks, False, stem_channels, channels, stem, shortcut_weight, norm)


def _times(channels: int, width: float) -> int:
    if not 0.5 <= channels * width <= _MAX_CHANNELS:
        raise ValueError(
            f"width multiplies {channels} channels: at least 1 and at most {_MAX_CHANNELS} must "
            f"result, got {width} (try 1, 2 or 0.25)"
        )
    return max(1, round(channels * width))


def _require_choice(name: str, given: str | None, choices: Sequence[str | None]) -> None:
    if given not in choices:
        raise ValueError(f"{name} must be one of {', '.join(filter(None, choices))}, got {given!r}")


def _require_types(**given: object) -> None:
    """Raise on arguments of the wrong type, before they fail deep in a network."""
    for name, value in given.items():
        types, expected = _TYPES[name]
        if isinstance(value, bool) or not isinstance(value, types):  # a bool is an int in Python
            raise ValueError(f"{name} must be {expected}, got {value!r}")
