"""Imports run one way: the table below is the whole of it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted((SOURCE / "skipless").rglob("*.py"))

PACKAGE = "__init__"  # the public names
ROOMS = {
    "core", "optim", "record", "torch", "jax", "keras", "models", "train", "report", "experiments",
    "cli",
}  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "optim": set(),
    "record": set(),
    "torch": {"core", "report"},
    "jax": {"core"},
    "keras": {"core"},
    "models": {"core", "torch"},
    "train": {"record"},
    "report": {"record"},
    "experiments": {PACKAGE} | ROOMS - {"cli"},
    "cli": {PACKAGE} | ROOMS,
    PACKAGE: {"core", "torch", "models", "jax", "keras"},
}
CORE_MAY_IMPORT = {"numpy", "scipy", "skipless"} | sys.stdlib_module_names
NO_IDEA = {"utils", "misc", "common", "helpers"}
MAX_LINES = 350


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
    return [name for name in ours if room(name) not in {home} | MAY_IMPORT[home]]


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_lives_in_a_room_and_imports_only_what_that_room_may(path: Path) -> None:
    assert room_of(path) in MAY_IMPORT
    assert forbidden(path.read_text(), package_of(path), room_of(path)) == []


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) == "core"], ids=relative)
def test_the_mathematics_needs_only_numpy_and_scipy(path: Path) -> None:
    imported = {name.split(".")[0] for name in imports(path.read_text(), package_of(path))}
    assert imported <= CORE_MAY_IMPORT


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_is_small_and_its_name_is_an_idea(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines < MAX_LINES
    assert not NO_IDEA & set(path.relative_to(SOURCE).with_suffix("").parts)


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
        ("skipless.experiments", "from skipless.cli import main"),
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
        ("skipless.experiments", "import skipless as sk\nfrom ..train import engine"),
        ("skipless.cli", "import_module(f'skipless.experiments.{name}')"),
    ],
)
def test_an_import_that_the_table_allows_passes(package: str, line: str) -> None:
    assert forbidden(line, package, package.split(".")[1]) == []
