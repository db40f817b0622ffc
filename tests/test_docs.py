"""What README, the site and the examples show runs as it stands.

Blocks of Python and of commands are run. A block that is marked as `sh` takes too long for that, or
needs what is not here: each of its commands is read as the command line would read it.
"""

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from skipless.cli import main, skipless

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}:{number}", block)
        for page in PAGES
        for number, (name, block) in enumerate(FENCED.findall(page.read_text(encoding="utf-8")))
        if name == language
    ]


PYTHON = blocks("python")
COMMANDS = [
    (name, line)
    for name, block in blocks("")
    for line in block.splitlines()
    if line.startswith("skipless ")
]


READ = [
    (name, command)
    for language in ("sh", "")
    for name, block in blocks(language)
    for command in block.replace("\\\n", " ").splitlines()
    if command.strip() and (language == "sh" or command.startswith("make "))
]


def test_there_is_something_to_run() -> None:
    assert len(PYTHON) >= 3
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in PYTHON])
def test_python_blocks_run(code: str) -> None:
    exec(compile("import skipless as sk\n" + code, "block", "exec"), {})


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in COMMANDS])
def test_commands_run(line: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()[1:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in READ])
def test_other_commands_are_understood(line: str) -> None:
    match shlex.split(line, comments=True):
        case []:
            pass
        case ["make", *targets]:
            assert set(targets) <= TARGETS
        case ["pip", "install", package, *_]:
            _, extras = re.fullmatch(r"(skipless|\.)\[([\w,]+)\]", package).groups()  # pyright: ignore
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
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


def test_the_converted_resnet_of_the_example_agrees_trains_and_folds(capsys) -> None:
    runpy.run_path(str(ROOT / "examples" / "convert_resnet.py"))["main"](blocks=3)
    out = capsys.readouterr().out
    assert re.search(r"nodes agree within", out)
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", out)]
    assert losses[-1] < losses[0]
    assert re.search(r"its activations are LeakyReLU; outputs differ by [\d.]+e-0[5-9]", out)
