"""Links what `pip install` is about to need into another environment, from the one that runs this.

    .venv/bin/python tests/link_packages.py ENVIRONMENT install -c constraints.txt -e '.[torch]'

Only the packages that the requirements name, and what these require, as their metadata say, in the
versions that the constraints allow. pip then finds them installed, or installs what is missing
here. A package of another version must not be linked: pip would replace its files through the link.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


def requirements(arguments: list[str]) -> Iterator[Requirement]:
    """What the arguments of `pip install` ask for; `.[extra]` is looked up in pyproject.toml."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    takes_value = {"-c", "-r", "--constraint", "--index-url", "--extra-index-url"}
    previous = ""
    for argument in arguments[1:]:
        if previous not in takes_value and not argument.startswith("-"):
            if own := re.fullmatch(r"\.(?:\[([\w,]+)\])?", argument):
                yield from of_project(project, (own[1] or "").split(","))
            else:
                yield Requirement(argument)
        previous = argument


def of_project(project: dict, extras: Iterable[str]) -> Iterator[Requirement]:
    lines = list(project["dependencies"])
    for extra in filter(None, extras):
        lines += project["optional-dependencies"][extra]
    for line in lines:
        asked = Requirement(line)
        if asked.name == project["name"]:
            yield from of_project(project, asked.extras)
        else:
            yield asked


def constraints(arguments: list[str]) -> dict[str, SpecifierSet]:
    """The versions that the file after `-c` allows, by package."""
    pins = {}
    for flag, file in pairwise(arguments):
        lines = Path(file).read_text(encoding="utf-8").splitlines() if flag == "-c" else []
        for pin in (Requirement(line) for line in lines if line and not line.startswith("#")):
            pins[canonicalize_name(pin.name)] = pin.specifier
    return pins


def closure(
    asked: Iterable[Requirement], pins: dict[str, SpecifierSet], follow: bool
) -> dict[str, Distribution]:
    """The installed distributions that satisfy the requirements, with all that they require."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = list(asked)
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in done:
            continue
        done.add(key)
        try:
            own = distribution(requirement.name)
        except PackageNotFoundError:
            continue
        if not (requirement.specifier & pins.get(key[0], SpecifierSet())).contains(own.version):
            continue
        found[key[0]] = own
        for line in own.requires or () if follow else ():
            needed = Requirement(line)
            marker = needed.marker
            extras = ("", *requirement.extras)
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def link(own: Distribution, here: Path, there: Path) -> None:
    """Link every file and folder of a distribution that lies directly in site-packages."""
    names = {
        file.parts[0] for file in own.files or () if file.parts[0] not in ("..", "__pycache__")
    }
    for name in names:
        if (here / name).exists() and not (there / name).exists():
            (there / name).symlink_to(here / name)


def main(environment: str, *arguments: str) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    here, there = (Path(p) / "lib" / version / "site-packages" for p in (sys.prefix, environment))
    asked, pins = requirements([*arguments]), constraints([*arguments])
    for own in closure(asked, pins, follow="--no-deps" not in arguments).values():
        link(own, here, there)


if __name__ == "__main__":
    main(*sys.argv[1:])
