"""What `import skipless` brings, and what installing it does."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import skipless
from skipless._install import install_line

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
    with pytest.raises(ImportError, match=rf"pip install .*\[{name}\]'"):
        getattr(skipless, name)


# Without it, pip would bring 5 GB for CUDA.
CPU_BUILD = " --extra-index-url https://download.pytorch.org/whl/cpu"

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
        ("skipless.jax.modules", "flax", "jax"),
        ("skipless.keras", "keras", "keras"),
        ("skipless.torch", "torch", "torch"),
    ],
)
def test_a_room_that_is_imported_by_its_name_tells_the_extra_too(room, hidden, extra) -> None:
    script = HIDDEN.format(room=room, hidden=hidden)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    line = install_line(extra) + CPU_BUILD * (hidden == "torch")
    assert result.stdout == f"{room} needs {hidden}, which is not installed: {line}\n"


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
        + install_line("torch")
        + CPU_BUILD
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


COMMIT = "0123456789abcdef0123456789abcdef01234567"
PYTHON = shlex.quote(sys.executable)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Records an installation as installers do (PEP 610); it is found before the real one."""
    record = tmp_path / "site" / "skipless-9.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: skipless\nVersion: 9\n")
    monkeypatch.syspath_prepend(record.parent)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.chdir(tmp_path)

    def write(origin: dict[str, object] | None, installer: str = "pip") -> None:
        (record / "INSTALLER").write_text(f"{installer}\n")
        if origin is not None:
            (record / "direct_url.json").write_text(json.dumps(origin))

    return write


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'skipless[plot]'"),
        (
            {"url": "https://host/r.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"pip install 'skipless[plot] @ git+https://host/r.git@{COMMIT}'",
        ),
        (
            {"url": "file:///skipless-9.whl", "archive_info": {}},
            "pip install 'skipless[plot] @ file:///skipless-9.whl'",
        ),
    ],
)
def test_the_install_line_names_where_skipless_came_from(installed, origin, line) -> None:
    installed(origin)
    assert install_line("plot") == line


@pytest.mark.parametrize(("editable", "flag"), [(True, "-e "), (False, "")])
def test_the_install_line_of_a_clone_has_its_folder_and_tested_versions(
    installed, editable: bool, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    installed({"url": clone.as_uri(), "dir_info": {"editable": True} if editable else {}})
    assert install_line("plot,train") == f"pip install {flag}'{clone}[plot,train]'"
    (clone / "constraints.txt").touch()
    assert install_line("plot") == f"pip install -c '{clone}/constraints.txt' {flag}'{clone}[plot]'"
    monkeypatch.chdir(clone)
    assert install_line("plot") == f"pip install -c constraints.txt {flag}'.[plot]'"


@pytest.mark.parametrize(
    ("installer", "extras", "option"),
    [
        ("pip", "deploy,train", CPU_BUILD),
        ("uv", "torch", " --torch-backend cpu"),
        ("pip", "plot,jax", ""),
    ],
)
def test_the_install_line_brings_the_cpu_build_of_a_missing_torch(
    installed, installer: str, extras: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(None, installer)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert install_line(extras).endswith(f"'skipless[{extras}]'{option}")


@pytest.mark.parametrize(
    ("installer", "line"),
    [("pip", f"{PYTHON} -m pip install"), ("uv", f"uv pip install --python {PYTHON}")],
)
def test_the_install_line_reaches_an_environment_that_is_not_activated(
    installed, installer: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(None, installer)
    monkeypatch.setenv("PATH", "/nowhere")
    assert install_line("plot") == f"{line} 'skipless[plot]'"


# Hides the packages of the extra `train` but those of `torch`.
WITHOUT = """
import sys
for name in "matplotlib optuna PIL safetensors sklearn tensorboard tqdm yaml".split():
    sys.modules[name] = None
from skipless.cli import main
for line in sys.argv[1:]:
    print("returns", main(line.split()))
    print("end", file=sys.stderr)
"""


def test_commands_do_what_they_can_and_name_the_line_that_installs_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)  # the line depends on the folder that it is for
    check = "check mlp:3 --eta 0.3 --width 30 --seeds 2"
    (tmp_path / "table1.jsonl").touch()
    commands = [check, "plot mlp:30", "train", "reproduce table1", "report table1.jsonl"]
    run = [sys.executable, "-c", WITHOUT, *commands]
    told = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    table, *others = re.split(r"returns (\d)\n", told.stdout)
    assert "width 30" in table
    assert others[0] in "01"
    assert re.search(r"^ *1 +1 +1 +1$", others[1], re.MULTILINE)  # all maps have C(1) = 1
    assert others[2:] == ["2", "", "2", "", "2", "", "2", ""]
    errors = told.stderr.split("end\n")[:-1]
    assert [error.count("\n") for error in errors] == [1] * 5
    for error, extra in zip(errors, ("plot", "plot", "train", "train", "train"), strict=True):
        assert error.endswith(f"which is not installed: {install_line(extra)}\n")
    assert list(tmp_path.iterdir()) == [tmp_path / "table1.jsonl"]
