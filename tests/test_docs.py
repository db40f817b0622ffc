"""What README, the site and the examples show runs as it stands."""

import re
import runpy
from pathlib import Path

import pytest

from skipless.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
