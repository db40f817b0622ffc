"""`skipless report`, as users call it."""

import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from html_pages import Reader, fetched
from skipless.cli import main
from skipless.record import LOCK, RUN, MetricsFile, write_run
from skipless.report.sections import Section
from skipless.runs.configuration import Configuration

SHAPED = Configuration(model="mlp:14", method="tat", eta=0.8, data="imagefolder:/no/such", epochs=2)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, one of them a level deeper."""
    for name, top1 in (("first", 0.875), ("deep/second", 0.5)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        write_run(folder, {"configuration": SHAPED.as_mapping(), "solution": {}})
        journal = MetricsFile(folder)
        for epoch in (1, 2):
            at = {"epoch": epoch, "loss": 1 / epoch, "seconds": 7.0 * epoch}
            journal.append("train", 10 * epoch, {**at, "accuracy": 0.25})
            journal.append("validation", 10 * epoch, {**at, "top1": top1})
    return tmp_path / "runs"


def test_runs_at_any_depth_become_one_page(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(runs), str(runs / "first"), "-o", str(page)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "Best: first classifies 87.5% of the validation images correctly, at epoch 1. Next: "
        "second, 50.0%.",
        f"Page: {page}",
    ]
    assert shown.err == ""
    text = page.read_text(encoding="utf-8")
    found = Reader(text)
    assert fetched(text) == []
    rest = ["25.0%", "0.5", "2", "14"]
    settings = "model mlp:14, method tat, eta 0.8, data imagefolder:/no/such, optimizer sgd, "
    assert found.within("td") == [
        *["finished", "87.5%", "87.5%", *rest],
        *["finished", "50.0%", "50.0%", *rest],
        settings + "epochs 2, batch size 128",
    ]
    assert found.within("th")[-3:] == ["first", "second", "Settings of all"]
    titles = [word for tag, word in found.texts if tag == "text"]
    assert {"Training loss", "Validation accuracy", "From input to output"} <= set(titles)
    assert "c: 0 → 0.800" in titles  # η is C_f(0)


def test_results_of_experiments_go_beside_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Path] = []

    def read_sections(paths: Sequence[Path], *, curves: bool) -> list[Section]:
        assert curves
        given.extend(paths)
        return [Section("table-1", "Table 1", "", ["c"], [["0.123"]])]

    reproduce = types.ModuleType("reproduce")
    monkeypatch.setattr(reproduce, "read_sections", read_sections, raising=False)
    monkeypatch.setitem(sys.modules, "skipless.paper.reproduce", reproduce)
    (tmp_path / "results").mkdir()
    files = [tmp_path / "results" / "figure-2.jsonl", tmp_path / "table-1.jsonl"]
    for file in files:
        file.write_text("{}\n")
    page = tmp_path / "page.html"
    arguments = [str(runs), str(tmp_path / "results"), str(files[1]), "-o", str(page)]
    assert main(["report", *arguments]) == 0
    assert given == files
    found = Reader(page.read_text(encoding="utf-8"))
    assert found.within("h2") == ["What the runs reached", "Table 1"]
    assert found.within("h1") == ["Runs and results"]


def item(folder: Path) -> Path:
    """Results of an item, as `skipless reproduce` leaves them, with one of its runs."""
    run = folder / "runs" / "0123456789ab"
    run.mkdir(parents=True)
    write_run(run, {"configuration": SHAPED.as_mapping()})
    (run / LOCK).touch()
    (folder / "table-1.jsonl").write_text("{}\n")
    return folder


def test_a_folder_of_ones_own_runs_has_no_claims_of_reproduce(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = item(runs / "reproduce" / "cpu")
    page = tmp_path / "page.html"
    assert main(["report", str(runs), "-o", str(page)]) == 0
    shown = capsys.readouterr()
    assert shown.err == (
        f"note: left out results of skipless reproduce; to see them, name {results}\n"
    )
    found = Reader(page.read_text(encoding="utf-8"))
    assert found.within("h1") == ["Runs"]
    assert "0123456789ab" not in found.within("th")


def test_the_runs_of_an_item_are_in_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce = types.ModuleType("reproduce")
    section = Section("table-1", "Table 1", "", ["c"], [["0.123"]])
    monkeypatch.setattr(reproduce, "read_sections", lambda paths, curves: [section], raising=False)
    monkeypatch.setitem(sys.modules, "skipless.paper.reproduce", reproduce)
    folder, page = item(tmp_path / "cpu"), tmp_path / "page.html"
    assert main(["report", str(folder), "-o", str(page)]) == 0
    assert Reader(page.read_text(encoding="utf-8")).within("h1") == ["Results"]
    (folder / "table-1.jsonl").unlink()  # so no item is done yet
    assert main(["report", str(folder), "-o", str(page)]) == 0
    assert Reader(page.read_text(encoding="utf-8")).within("h1") == ["Runs"]


def test_without_torch_the_page_is_written_without_c_maps(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "skipless.runs.training", None)
    page = tmp_path / "page.html"
    assert main(["report", str(runs), "-o", str(page)]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: the report has no C maps of")
    assert "Validation accuracy" in page.read_text(encoding="utf-8")
    assert "From input to output" not in page.read_text(encoding="utf-8")


def test_a_damaged_run_among_others_is_left_out_with_a_note(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "first" / RUN).write_text("{")
    page = tmp_path / "page.html"
    assert main(["report", str(runs), "-o", str(page)]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert "is damaged" in note
    assert "second" in page.read_text(encoding="utf-8")
    assert main(["report", str(runs / "first"), "-o", str(page)]) == 2
