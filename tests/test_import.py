"""What `import skipless` brings, and what installing it does."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import skipless

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "jax", "keras", "tensorflow", "flax", "matplotlib")
FRAMEWORKS = ("torch", "jax", "keras")

# Asks the import system itself, so that an import that failed and was caught counts as well,
# and the test means something where a framework is not installed.
SCRIPT = f"""
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in {HEAVY}:
            print("imported", name)

sys.meta_path.insert(0, Watch())
import skipless
assert not any(name.startswith(("numpy", "scipy")) for name in sys.modules)
for name in skipless.__all__:
    getattr(skipless, name)
print("found", *(name for name in {HEAVY} if name in sys.modules))
"""


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return found[0].lower()


def test_import_leaves_every_framework_alone() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert result.stderr == ""
    assert result.stdout.split() == ["found"]


# What people wait for: help, figures and reports, which load neither torch nor matplotlib unasked.
LIGHT = """
import sys
from skipless.cli import main
from skipless.runs import configuration, kernels, outcome
for command in ("solve", "plot", "check", "train", "deploy", "models", "data", "report"):
    assert main([command, "--help"]) == 0
assert main(["solve", "mlp:100"]) == 0
assert kernels.report_runs([]).rows == []
assert not {"torch", "matplotlib"} & set(sys.modules), sorted(sys.modules)
"""


def test_help_solving_and_reports_do_not_import_torch() -> None:
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", skipless.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(skipless, name) is not None


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_names_the_extra_that_brings_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / name
    room.mkdir()
    (room / "__init__.py").write_text(f"import {name}")
    monkeypatch.setattr(skipless, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"skipless.{name}", raising=False)
    monkeypatch.delitem(vars(skipless), name, raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"pip install 'skipless\[{name}\]'"):
        getattr(skipless, name)


HIDDEN = """
import sys
sys.modules[{hidden!r}] = None  # as if it were not installed
try:
    import {room}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("room", "hidden", "extra"),
    [
        ("skipless.jax", "jax", "jax"),
        ("skipless.jax.convert", "flax", "jax"),
        ("skipless.keras", "keras", "keras"),
        ("skipless.torch", "torch", "torch"),
    ],
)
def test_a_room_that_is_imported_by_its_name_tells_the_extra_too(room, hidden, extra) -> None:
    script = HIDDEN.format(room=room, hidden=hidden)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == (
        f"{room} needs {hidden}, which is not installed: pip install 'skipless[{extra}]'\n"
    )


def test_rooms_are_found_by_dir_and_on_first_use() -> None:
    rooms = {"jax", "keras", "models", "onnx", "optim", "torch"}
    assert rooms | set(skipless.__all__) == set(dir(skipless))
    for name in rooms:
        assert getattr(skipless, name).__name__ == f"skipless.{name}"


@pytest.mark.parametrize("name", ["optim.KFAC", "models", "onnx"])
def test_rooms_without_torch_name_the_extra_that_brings_it(name: str) -> None:
    hidden = f"import sys; sys.modules['torch'] = None; import skipless; skipless.{name}"
    result = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    assert result.stderr.splitlines()[-1] == (
        f"ImportError: skipless.{name} needs torch, which is not installed: "
        "pip install 'skipless[torch]'"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = skipless.nonsense  # pyright: ignore[reportAttributeAccessIssue]


def test_a_bare_install_brings_numpy_scipy_and_click_only() -> None:
    declared = metadata.requires("skipless") or []
    bare = {name_of(line) for line in declared if "extra ==" not in line}
    assert bare == {"numpy", "scipy", "click"}


def test_the_version_is_the_installed_one() -> None:
    assert skipless.__version__ == metadata.version("skipless")


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    direct = {
        name_of(line)
        for lines in (
            project["build-system"]["requires"],
            project["project"]["dependencies"],
            *extras,
        )
        for line in lines
    }
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if re.fullmatch(r"[\w.-]+==[\w.]+", line)
    }
    assert direct - {"skipless"} <= pinned
