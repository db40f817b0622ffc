"""`skipless reproduce`, as users call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipless.cli import main
from skipless.paper import ITEMS, reproduce
from skipless.paper.item import Item
from skipless.paper.reproduce import Request
from skipless.paper.results import Results
from skipless.runs.place import Place

Call = tuple[str, Request, Place]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The items that would be run."""
    found: list[Call] = []

    def report_item(item: Item, request: Request, place: Place, announce: object) -> str:
        assert callable(announce)
        found.append((item.name, request, place))
        return f"report of {item.name}"

    monkeypatch.setattr(reproduce, "report_item", report_item)
    return found


def test_the_list_has_a_line_for_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(ITEMS)


def test_items_are_run_in_their_order_once_each_at_the_scale_cpu(
    calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table5", "figure1", "table5"]) == 0
    place = Place(Path("runs/reproduce/cpu"))
    assert calls == [(name, Request("cpu"), place) for name in ("table5", "figure1")]
    assert capsys.readouterr().out == "report of table5\nreport of figure1\n"


def test_all_are_all_items(calls: list[Call]) -> None:
    assert main(["reproduce", "all", "--scale", "smoke"]) == 0
    assert [name for name, *_ in calls] == list(ITEMS)
    assert {place.folder for _, _, place in calls} == {Path("runs/reproduce/smoke")}


def test_every_option_reaches_the_search(calls: list[Call]) -> None:
    options = {
        "--scale": "full", "--output": "out", "--storage": "postgresql://host/name",
        "--workers": "3", "--seeds": "2", "--data": "imagefolder:/data", "--data-folder": "/there",
        "--device": "cuda", "--epochs": "30", "--precision": "bfloat16", "--only": "50, * | w = 0*",
        "--records": "results",
    }  # fmt: skip
    words = [word for option in options.items() for word in option]
    assert main(["reproduce", "table4", *words]) == 0
    given = {"data": "imagefolder:/data", "data_folder": "/there", "device": "cuda"}
    given |= {"epochs": 30, "precision": "bfloat16"}
    place = Place(Path("out"), "postgresql://host/name", 3)
    request = Request("full", 2, given, "50, * | w = 0*", Path("results"))
    assert calls == [("table4", request, place)]


def test_a_problem_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report_item(*_: object) -> str:
        raise FileNotFoundError("The data is not there. Fetch it.")

    monkeypatch.setattr(reproduce, "report_item", report_item)
    assert main(["reproduce", "table5"]) == 2
    assert capsys.readouterr().err.strip().endswith("The data is not there. Fetch it.")


def test_an_item_ends_with_its_table_verdicts_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "figure2", "--scale", "smoke", "-o", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert "Figure 2: global C maps by depth" in shown
    assert "not run: With depth, the C map of ReLU networks becomes flat at 1." in shown
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "figure2.jsonl", "figure2.html", "figure2-1.svg", "figure2-2.svg",
    }  # fmt: skip
    found = Results.read(tmp_path / "new" / "figure2.jsonl")
    assert (found.item, found.scale) == ("figure2", "smoke")
    # The target of TAT is C_f(0) = 0.5, at every depth.
    assert found.value("TReLU", "C_f(0), 30 layers") == pytest.approx(0.5, abs=1e-8)
