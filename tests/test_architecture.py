"""Imports run one way: the table below is the whole of it."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted((SOURCE / "skipless").rglob("*.py"))

PACKAGE = "__init__"  # the public names
SHARED = {"_deprecated", "_install", "files", "tables"}  # single modules that any room may import
ROOMS = SHARED | {
    "core", "optim", "record", "torch", "jax", "keras", "onnx", "models", "train", "report", "runs",
    "paper", "frameworks", "cli",
}  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    "tables": set(),
    "files": set(),
    "_deprecated": {PACKAGE},
    "_install": set(),
    "core": set(),
    "optim": set(),
    "record": set(),
    "torch": {"core"},
    "jax": {"core"},
    "keras": {"core"},
    "onnx": {"core", "torch"},
    "models": {"core", "torch"},
    "train": {"record"},
    "report": {"record"},
    "frameworks": {PACKAGE, "core", "torch", "jax", "keras"},
    "runs": {PACKAGE} | ROOMS - {"paper", "cli"},
    "paper": {PACKAGE} | ROOMS - {"cli"},
    "cli": {PACKAGE} | ROOMS,
    PACKAGE: {"core", "torch", "models", "jax", "keras", "onnx", "optim", "frameworks"},
}
CORE_MAY_IMPORT = {"numpy", "scipy", "skipless"} | sys.stdlib_module_names
ADAPTERS = {"torch", "jax", "keras"}
# Core has the shared part of these, and each adapter adds its own.
EXTENDED_BY_ADAPTERS = {"Reading", "Replay"}
NO_IDEA = {"utils", "misc", "common", "helpers"}
MAX_LINES = 600


def room(module: str) -> str:
    """The room of a dotted name: `skipless.core.maps` is in `core`, `skipless.TAT` at the door."""
    match module.split("."):
        case ["skipless"]:
            return PACKAGE
        case ["skipless", name]:
            return name if name in ROOMS else PACKAGE
        case ["skipless", name, *_]:
            return name
        case _:
            raise ValueError(f"{module} is not ours")


def imports(source: str, package: str) -> Iterator[str]:
    """Every dotted name that `source`, a module of `package`, imports at any depth.

    `import_module` counts as far as its name is written out: `f"skipless.torch.{x}"` is in `torch`,
    and a name that is not written out at all could be anything of ours.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                parents = package.split(".")[: len(package.split(".")) + 1 - node.level]
                above = parents if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield from (f"{base}.{alias.name}" for alias in node.names)
            case ast.Call(
                func=ast.Name("import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)) | ast.JoinedStr([ast.Constant(str(name)), *_]), *_],
            ):
                yield (package + name if name.startswith(".") else name).rstrip(".")
            case ast.Call(func=ast.Name("import_module") | ast.Attribute(attr="import_module")):
                yield "skipless"
            case _:
                pass


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).parent.parts)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE / "skipless").parts[0].removesuffix(".py")


def forbidden(source: str, package: str, home: str) -> list[str]:
    """The imports of `source` that a module in the room `home` may not make."""
    ours = [name for name in imports(source, package) if name.split(".")[0] == "skipless"]
    return [name for name in ours if room(name) not in {home} | SHARED | MAY_IMPORT[home]]


def top_packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path.read_text(), package_of(path))}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_modules_live_in_rooms_and_import_only_what_their_room_may() -> None:
    assert {relative(path) for path in MODULES if room_of(path) not in MAY_IMPORT} == set()
    imported = {p: forbidden(p.read_text(), package_of(p), room_of(p)) for p in MODULES}
    assert {relative(path): names for path, names in imported.items() if names} == {}


def test_the_mathematics_needs_only_numpy_and_scipy() -> None:
    offenders = {
        relative(path): foreign
        for path in MODULES
        if room_of(path) == "core" and (foreign := top_packages(path) - CORE_MAY_IMPORT)
    }
    assert offenders == {}


def test_modules_are_small_and_their_names_are_ideas() -> None:
    lines = {relative(path): path.read_text().count("\n") for path in MODULES}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}
    assert [path for path in lines if NO_IDEA & set(Path(path).with_suffix("").parts)] == []


def test_one_class_name_means_one_thing() -> None:
    """Except in the adapters, which give the same name to the same idea."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(room_of(path))
    twice = {name: rooms for name, rooms in homes.items() if len(rooms) > 1}
    assert {
        name: rooms
        for name, rooms in twice.items()
        if len(rooms) != len(set(rooms))
        or set(rooms) - ADAPTERS - ({"core"} if name in EXTENDED_BY_ADAPTERS else set())
    } == {}


def test_the_table_in_the_documentation_is_this_one() -> None:
    everything = {PACKAGE} | ROOMS - SHARED
    documented = {}
    page = (SOURCE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name, allowed in re.findall(r"^\| `(\w+)` +\|[^|]+\|([^|]*)\|$", page, re.MULTILINE):
        named = {PACKAGE if n == "skipless" else n for n in re.findall(r"`(\w+)`", allowed)}
        rooms = everything - named if "everything" in allowed else named
        documented[PACKAGE if name == "skipless" else name] = rooms
    ours = {home: MAY_IMPORT[home] - SHARED for home in MAY_IMPORT if home not in SHARED}
    assert documented.keys() == ours.keys()
    assert {home: documented[home] - {home} for home in ours} == {
        home: ours[home] - {home} for home in ours
    }


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("skipless.core", "import skipless"),
        ("skipless.core", "import skipless.torch.trace"),
        ("skipless.core", "from skipless import TAT"),
        ("skipless.core", "from skipless import torch"),
        ("skipless.core", "from skipless.torch import trace"),
        ("skipless.core", "from .. import torch"),
        ("skipless.core", "from ..torch import trace"),
        ("skipless.core", "def f():\n    from ..torch.trace import trace"),
        ("skipless.core", "import_module('skipless.cli')"),
        ("skipless.core", "importlib.import_module(f'skipless.torch.{name}')"),
        ("skipless.core", "import_module(name)"),
        ("skipless.torch", "from ..jax import init"),
        ("skipless.train", "from skipless.core.graph import Graph"),
        ("skipless.report", "from skipless.models import create_model"),
        ("skipless.runs", "from skipless.cli import main"),
        ("skipless.core", "from skipless.attic import junk"),
    ],
)
def test_a_forbidden_import_is_seen_however_it_is_written(package: str, line: str) -> None:
    assert forbidden(line, package, package.split(".")[1]) != []


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("skipless.core", "from .graph import Graph"),
        ("skipless.core", "from . import graph"),
        ("skipless.core", "import torch"),  # the framework is not our room of the same name
        ("skipless.torch", "import torch\nfrom skipless.core.solve import Solution"),
        ("skipless.runs", "import skipless as sk\nfrom ..train import engine"),
        ("skipless.cli", "import_module(f'skipless.runs.{name}')"),
    ],
)
def test_an_import_that_the_table_allows_passes(package: str, line: str) -> None:
    assert forbidden(line, package, package.split(".")[1]) == []
