"""Names of networks: a family and a depth, `resnet50` or, as the command line has it, `mlp:50`."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase
from typing import Literal, cast

from .plans import RESNETS, nearest_wide_depths

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
