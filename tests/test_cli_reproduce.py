"""`skipless reproduce`, as users call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipless.cli import main
from skipless.paper import reproduce
from skipless.paper.item import Item, Results
from skipless.paper.items import ITEMS
from skipless.paper.reproduce import Wish
from skipless.runs.search import Place


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Place, Wish]]:
    """What would have been run."""
    found: list[tuple[str, str, Place, Wish]] = []

    def reported(item: Item, scale: str, place: Place, wish: Wish) -> str:
        found.append((item.name, scale, place, wish))
        return f"told of {item.name}"

    monkeypatch.setattr(reproduce, "reported", reported)
    return found


def test_the_list_has_a_line_for_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(ITEMS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Name an ITEM, or all. See them: skipless reproduce --list"),
        (["Table 5"], "There is no item 'Table 5'. Is it table5?"),
        (["figure1", "xyz"], "There is no item 'xyz'. See all: skipless reproduce --list"),
        (["table1", "--workers", "0"], "--workers 0 was given; give 1 to 1000."),
        (["table1", "--seeds", "0"], "--seeds 0 was given; give 1 to 1000."),
        (["table1", "--scale", "huge"], "'huge' is not one of"),
    ],
)
def test_a_wrong_word_is_answered_before_anything_is_run(
    words: list[str], said: str, asked: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert asked == []


def test_items_are_run_in_their_order_once_each_at_the_scale_cpu(
    asked: list[tuple[str, str, Place, Wish]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table5", "figure1", "table5"]) == 0
    place = Place(Path("runs/reproduce/cpu"))
    assert asked == [(name, "cpu", place, Wish(None, {})) for name in ("table5", "figure1")]
    assert capsys.readouterr().out == "told of table5\ntold of figure1\n"


def test_all_are_all_items(asked: list[tuple[str, str, Place, Wish]]) -> None:
    assert main(["reproduce", "all", "--scale", "smoke"]) == 0
    assert [name for name, *_ in asked] == list(ITEMS)
    assert {place.folder for _, _, place, _ in asked} == {Path("runs/reproduce/smoke")}


def test_every_option_reaches_the_search(asked: list[tuple[str, str, Place, Wish]]) -> None:
    options = {
        "--scale": "full", "--output": "out", "--storage": "postgresql://host/name",
        "--workers": "3", "--seeds": "2", "--data": "imagefolder:/data", "--data-folder": "/there",
        "--device": "cuda",
    }  # fmt: skip
    words = [word for option in options.items() for word in option]
    assert main(["reproduce", "table4", *words]) == 0
    wish = Wish(2, {"data": "imagefolder:/data", "data_folder": "/there", "device": "cuda"})
    assert asked == [("table4", "full", Place(Path("out"), "postgresql://host/name", 3), wish)]


def test_a_problem_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reported(*_: object) -> str:
        raise FileNotFoundError("The data is not there. Fetch it.")

    monkeypatch.setattr(reproduce, "reported", reported)
    assert main(["reproduce", "table5"]) == 2
    assert capsys.readouterr().err.strip().endswith("The data is not there. Fetch it.")


def test_an_item_ends_with_its_table_verdicts_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "figure2", "--scale", "smoke", "-o", str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert "Figure 2: global C maps by depth" in told
    assert "not run: With depth, the C map of ReLU networks becomes flat at 1." in told
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "figure2.jsonl", "figure2.html", "figure2-1.svg", "figure2-2.svg",
    }  # fmt: skip
    found = Results.read(tmp_path / "new" / "figure2.jsonl")
    assert (found.item, found.scale) == ("figure2", "smoke")
    # TAT was asked for C_f(0) = 0.5, at every depth.
    assert found.value("TReLU", "C_f(0), 30 layers") == pytest.approx(0.5, abs=1e-8)
