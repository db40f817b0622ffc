"""What README, the site and the examples show runs as it stands.

Blocks of Python run in a fresh namespace, those of commands in one empty folder for each page. The
pages of `front_door.py` are run there (`make front-door`), with the environment that they make;
their commands are only read here, as the command line would read them, and so are blocks under a
comment `not run: why`.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from front_door import FRONT_DOOR, MAKES_ENVIRONMENT, script
from pages import FENCED, PAGES, ROOT, Block, read_blocks
from skipless.cli import main, skipless

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CPU_TORCH = (
    "pip install -c constraints.txt --no-deps torch "
    "--extra-index-url https://download.pytorch.org/whl/cpu\n"
)

BLOCKS = {page: list(read_blocks(page)) for page in PAGES}
PYTHON = [
    b
    for page, own in BLOCKS.items()
    if str(page.relative_to(ROOT)) not in FRONT_DOOR
    for b in own
    if b.language == "python" and not b.reason
]
SHELL = [b for own in BLOCKS.values() for b in own if b.language == "sh"]
SESSIONS = [
    page
    for page, own in BLOCKS.items()
    if str(page.relative_to(ROOT)) not in FRONT_DOOR
    and any(b.language == "sh" and not b.reason for b in own)
]


def test_every_block_has_a_language_and_there_is_something_to_run() -> None:
    known = {"python", "sh", "text"}
    assert {b.place: b.language for own in BLOCKS.values() for b in own} == {
        b.place: b.language for own in BLOCKS.values() for b in own if b.language in known
    }
    for page in PAGES:
        fences = re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(BLOCKS[page]), page
    assert len(PYTHON) >= 15
    assert len(SESSIONS) >= 5
    assert all((ROOT / page).is_file() for page in FRONT_DOOR)


def test_the_pages_of_the_front_door_leave_nothing_out() -> None:
    assert [b.place for page in FRONT_DOOR for b in BLOCKS[ROOT / page] if b.reason] == []


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_run_alone_in_an_empty_folder(block: Block, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_commands_run_in_order_in_an_empty_folder(
    page: Path, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    for block in BLOCKS[page]:
        if block.language != "sh" or block.reason:
            continue
        for name, text in block.files.items():
            (tmp_path / name).write_text(text)
        for command in block.commands:
            if command.startswith("skipless "):
                assert main(shlex.split(command, comments=True)[1:]) == 0, command
                assert capsys.readouterr().out, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_with_code_begins_with_the_install_line_that_it_needs(page: Path) -> None:
    """Without the CPU build, before anything could bring the one for CUDA, it would be 5 GB."""
    code = [b for b in BLOCKS[page] if b.language in ("python", "sh") and not b.reason]
    if not code:
        return
    first = code[0].text.removeprefix(MAKES_ENVIRONMENT)
    assert re.search(r"^pip install -c constraints.txt -e (\.|'\.\[[\w,]+\]')", first, re.MULTILINE)
    brings_torch = re.search(r"\[.*\b(torch|train|private)\b.*\]", first)
    assert first.startswith(CPU_TORCH) == bool(brings_torch)
    assert (page.name in ("README.md", "start.md", "index.md")) == (first != code[0].text)


def test_the_front_door_stops_at_the_first_block_that_fails(tmp_path: Path) -> None:
    """In a session like those of a page, but in an environment that exists."""
    (tmp_path / "skipless" / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "skipless" / ".venv" / "bin" / "activate").touch()
    blocks = [
        Block("one", "sh", "mkdir -p .venv\nexport KEPT=1\necho 'kept = 2' > own.py\n", None),
        Block("two", "python", "import os, own\nprint(own.kept + int(os.environ['KEPT']))\n", None),
        Block("three", "python", "own\n", None),
        Block("four", "sh", "echo unreached\n", None),
    ]
    page = script(blocks, tmp_path, None, installed=False).replace("python3 -m venv .venv\n", "")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", "-c", page], env=environment, capture_output=True, text=True)
    assert ran.returncode != 0
    assert "3" in ran.stdout.splitlines()
    assert "NameError" in ran.stderr
    assert ran.stderr.endswith("FAILED: three\n")
    assert "unreached" not in ran.stdout


READ = [(b.place, command) for b in SHELL for command in b.commands]


@pytest.mark.parametrize("line", [pytest.param(line, id=place) for place, line in READ])
def test_other_commands_are_understood(line: str) -> None:
    match shlex.split(line, comments=True):
        case []:
            pass
        case ["make", *targets]:
            assert set(targets) <= TARGETS
        case ["pip", "install", "-c", "constraints.txt", "-e", package, *_]:
            extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", package)
            assert extras is not None
            assert {*filter(None, (extras[1] or "").split(","))} <= {
                *PROJECT["optional-dependencies"]
            }
        case ["pip", "install", *_]:
            assert f"{line}\n" == CPU_TORCH
        case ["python3", "-m", "venv", ".venv"] | [".", ".venv/bin/activate"] | ["export", _]:
            pass
        case ["python", script]:
            assert (ROOT / script).is_file()
        case ["torchrun", *words] if "skipless.cli" in words:
            understood(words[words.index("skipless.cli") + 1 :])
        case ["skipless", *words]:
            understood(words)
        case unknown:
            pytest.fail(f"nobody knows whether {unknown} works")


def understood(words: list[str]) -> None:
    command = skipless.get_command(click.Context(skipless), words[0])
    assert command is not None
    command.make_context(words[0], words[1:])


def test_the_readme_names_targets_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE))
    assert {"demo", "test"} <= targets <= TARGETS


def test_a_command_that_is_wrong_is_not_understood() -> None:
    with pytest.raises(click.UsageError):
        understood(["train", "--learning-speed", "3"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Those from the README too, which the site's own check does not see."""
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = {a or b for a, b in LINK.findall(prose)}
    for target in (t for t in targets if "://" not in t and not t.startswith("mailto:")):
        file, _, anchor = target.partition("#")
        other = page.parent / file if file else page
        assert other.exists(), target
        if anchor and other.suffix == ".md" and other.name != "api.md":
            assert anchor in anchors(other), target


def anchors(page: Path) -> set[str]:
    """The names of its headings, as GitHub and the site make them, and those that are given."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    given = set(re.findall(r"\{#([\w-]+)\}", text))
    headings = re.findall(r"^#+ (.*?)(?: \{#.*)?$", text, re.MULTILINE)
    return given | {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_the_readme_shows_what_solve_returns() -> None:
    import skipless as sk

    trelu = sk.solve(sk.Graph.chain(100), sk.TAT(eta=0.9))
    shown = f"{str(trelu.negative_slope)[:6]}…, {str(trelu.output_scale)[:6]}…"
    assert shown in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_c_maps_prints_a_table_and_writes_a_figure(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "c_maps.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert (tmp_path / "out" / "c_maps.png").read_bytes().startswith(b"\x89PNG")
    for label in ("EOC relu", "TAT leaky_relu", "DKS softplus"):
        assert label in out
    # Orthogonal inputs: 100 ReLU layers make them alike; TAT stops at η, DKS leaves them be.
    assert re.search(r"TAT.*0\.9000", out)
    assert re.search(r"DKS.*0\.0000", out)
