"""Items that were run: their results, sections and charts, and the page of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from skipless.paper import ITEMS, reproduce
from skipless.paper.item import (
    Cell,
    Item,
    accuracy_by_column,
    accuracy_curves,
    panel_charts,
)
from skipless.paper.reproduce import (
    Request,
    build_section,
    read_sections,
    report_item,
    run_item,
    training_charts,
)
from skipless.paper.results import Results, Series, Summary, Trial, TriedSetting, Value
from skipless.paper.scales import SMOKE
from skipless.runs import place as place_module
from skipless.runs.configuration import Configuration
from skipless.runs.outcome import Outcome, TrainingCurve, Tried, ValidationCurve
from skipless.runs.place import Place, run_key
from skipless.runs.search import ExperimentResult, Range

MACHINE = {"system": "Linux", "cores": 2}


def outcome(top1: float | None, started: str = "2026-01-02", seconds: float = 30.0) -> Outcome:
    """A run of two epochs with a loss of 2, then 1."""
    return Outcome(
        diverged=top1 is None,
        top1=top1,
        train_loss=1.0,
        train_accuracy=top1,
        seconds=seconds,
        parameters=5,
        validation=ValidationCurve([1.0, 2.0], [0.2, top1 or 0.1], [15.0, 30.0]),
        training=TrainingCurve([1.0, 2.0], [2.0, 1.0], [0.3, 0.4], [15.0, 30.0]),
        started=started,
        machine=dict(MACHINE),
        versions={"torch": "2.13.0"},
    )


def trials(row: str, column: str, values: Sequence[float | None]) -> tuple[Trial, ...]:
    return tuple(
        Trial(row, column, {"lr": 0.1}, seed, outcome(top1)) for seed, top1 in enumerate(values)
    )


DEPTHS = Results(
    "figure1",
    "cpu",
    {
        "started": "2026-01-02",
        "machines": [MACHINE],
        "versions": [{"torch": "2.13.0"}],
        "commits": ["0123456789abcdef"],
        "seconds": 240,
        "left": 5,
    },
    (
        *trials("TAT", "50", [0.80, 0.82]),
        *trials("TAT", "200", [0.79, 0.81]),
        *trials("EOC", "50", [0.70, 0.70]),
        *trials("EOC", "200", [None, 0.30]),
    ),
    tried=(TriedSetting("TAT", "50", "key", Tried({"lr": 0.1}, 0.8, 2.0, "finished", 30.0)),),
)


def test_the_table_has_ours_and_the_papers_at_their_places():
    found = build_section(ITEMS["figure1"], DEPTHS)
    assert found.header == ["ours (paper)", "50", "101", "152", "200", "seeds that learned"]
    assert found.rows == [
        ["EOC", "70.0 ± 0.0 (72.6)", "– (71.8)", "–", "15.0 ± 190.6", "200 1 of 2"],
        # Of 80 and 82: a standard error of 1, times Student's 12.7 at one degree of freedom.
        ["TAT", "81.0 ± 12.7 (74.6)", "– (74.2)", "–", "80.0 ± 12.7", "all"],
    ]
    assert [verdict.word for verdict in found.verdicts] == ["holds", "undecided", "undecided"]


def test_the_facts_say_where_the_results_come_from():
    assert build_section(ITEMS["figure1"], DEPTHS).facts == {
        "Scale": "cpu",
        "Runs": "8 with chosen settings, of which 1 diverged",
        "Tuning": "1 settings, on held-out training images",
        "Each cell": "1 settings, 2 seeds, 2 epochs",
        "Left": "5 runs: this item is not complete",
        "Started": "2026-01-02",
        "Time": "4 minutes of training, all runs together",
        "Machine": "Linux, 2 cores",
        "Versions": "torch 2.13.0",
        "Commit": "0123456789ab",
        "Rerun": "skipless reproduce figure1 --scale cpu",
    }


def test_a_table_of_computed_numbers_has_what_they_should_be():
    values = (Value("DKS", "Q(1)", 1.0000000001, 1.0), Value("DKS", "C_f(0)", 0.25))
    found = build_section(ITEMS["table1"], Results("table1", "cpu", {"seconds": 5}, values=values))
    assert found.rows == [["DKS", "Q(1)", "1", "1"], ["DKS", "C_f(0)", "0.25", ""]]
    assert found.facts["Time"] == "5 s"


def test_what_all_trials_say_of_the_machine_is_said_once():
    late, early = outcome(0.5, "2026-01-03", 10.0), outcome(0.5, "2026-01-01", 5.4)
    late, early = (replace(own, commit="0123") for own in (late, early))
    request = Request("cpu", seeds=2, options={"device": "cpu"}, only="EOC | 50")
    (planned,) = request.plan(ITEMS["figure1"])
    chosen = {"lr": 0.1}
    result = ExperimentResult(
        (Tried(chosen, 0.5, 10.0, "finished", 4.0),), chosen, {0: late, 1: early}
    )
    found = reproduce.collect_results(
        ITEMS["figure1"],
        request,
        [planned],
        {planned.name: planned.experiment},
        {planned.name: result},
    )
    assert found.origin == {
        "started": "2026-01-01",
        "machines": [MACHINE],
        "versions": [{"torch": "2.13.0"}],
        "commits": ["0123"],
        "data": ["fashion-mnist, 20,000 images of 14 x 14"],
        "given": {"device": "cpu", "seeds": 2, "only": "EOC | 50"},
        "seconds": 19,
        "left": 7,  # of 8 settings to try and 2 seeds
    }
    again = build_section(ITEMS["figure1"], found).facts["Rerun"]
    assert again == (
        "skipless reproduce figure1 --scale cpu --device cpu --seeds 2 --only 'EOC | 50'"
    )
    assert [(t.outcome.machine, t.outcome.started, t.chosen) for t in found.trials] == [
        ({}, "2026-01-03", chosen),
        ({}, "2026-01-01", chosen),
    ]
    assert {t.key for t in found.trials} == {
        run_key(planned.experiment.run(chosen, seed)) for seed in (0, 1)
    }


def test_trials_of_several_machines_say_where_each_was_trained():
    """And more that was tried than is wanted, as another record may have, is not missing."""
    one, other = (replace(outcome(0.5), commit=commit) for commit in ("0123", "4567"))
    request = Request("cpu", seeds=2, only="EOC | 50")
    (planned,) = request.plan(ITEMS["figure1"])
    tried = (Tried({"lr": 0.1}, 0.5, 10.0, "finished", 4.0),) * 9
    result = ExperimentResult(tried, {"lr": 0.1}, {0: one, 1: other})
    name = planned.name
    found = reproduce.collect_results(
        ITEMS["figure1"], request, [planned], {name: planned.experiment}, {name: result}
    )
    assert found.origin["left"] == 0
    assert [found.outcome(trial).commit for trial in found.trials] == ["0123", "4567"]
    assert found.origin["commits"] == ["0123", "4567"]


def test_accuracies_are_drawn_over_their_columns_with_confidence_intervals():
    chart = accuracy_by_column(DEPTHS, ["TAT", "EOC"], ["50", "101", "200"], "depth")
    tat, eoc = chart.lines
    assert [x for x, _ in tat.points] == [50.0, 200.0]
    assert [y for _, y in tat.points] == pytest.approx([81.0, 80.0])
    assert tat.bars == pytest.approx([12.706, 12.706], rel=1e-4)  # a standard error of √2 over √2
    assert (tat.value, eoc.value) == ("80.0%", "15.0%")  # of 0 and 30
    assert (chart.x.low, chart.x.high) == (50.0, 200.0)
    assert "nan" not in chart.description


def test_one_seed_has_no_error_bar_and_one_depth_has_an_axis():
    found = Results("figure1", "cpu", {}, trials("TAT", "50", [0.8]))
    chart = accuracy_by_column(found, ["TAT"], ["50"], "depth")
    assert [math.isnan(bar) for bar in chart.lines[0].bars] == [True]
    assert chart.x.low < 50.0 < chart.x.high


def test_curves_are_drawn_by_epoch_or_by_seconds_in_percent():
    cells = {
        "good": Summary({}, (outcome(0.5),), (0,)),
        "bad": Summary({}, (outcome(None),), (0,)),
        "missing": None,
    }
    by_epoch, by_second = (accuracy_curves("t", cells, seconds=by) for by in (False, True))
    assert list(by_epoch.lines[0].points) == [(1.0, 20.0), (2.0, 50.0)]
    assert list(by_second.lines[0].points) == [(15.0, 20.0), (30.0, 50.0)]
    assert [(line.label, line.value) for line in by_epoch.lines] == [
        ("good", "50.0%"),
        ("bad", "diverged"),
    ]
    assert [line.broken_off for line in by_epoch.lines] == [False, True]
    assert (by_epoch.x.high, by_second.x.high) == (2.0, 30.0)


def test_computed_lines_are_drawn_panel_by_panel():
    lines = [
        Series("one", "a", (0.0, 5.0), (0.1, 0.2), (0.01, 0.02)),
        Series("two", "a", (1.0, 2.0), (0.3, 0.4)),
        Series("one", "b", (0.0, 9.0), (0.5, 0.6)),
    ]
    one, two = panel_charts(lines, "layer", "c", 0.0, 1.0)
    assert (one.title, two.title) == ("one", "two")
    assert [line.label for line in one.lines] == ["a", "b"]
    assert [tuple(line.bars) for line in one.lines] == [(0.01, 0.02), ()]
    assert list(two.lines[0].points) == [(1.0, 0.3), (2.0, 0.4)]
    assert (one.x.low, one.x.high) == (0.0, 9.0)


def test_a_page_of_its_own_has_losses_of_each_row_and_the_c_maps_of_its_networks():
    run = {"model": "resnet18", "optimizer": "sgd", "shortcut_weight": 0.5}
    item = Item(
        "T", "", {}, "table2", None,
        (
            Cell("ReLU", "w = 0.5", {**run, "method": "eoc"}),
            Cell("ReLU", "w = 0", {**run, "method": "eoc", "shortcut_weight": 0.0}),
            Cell("BatchNorm", "w = 0.5", {**run, "norm": "batch"}),
            Cell("not run", "w = 0.5", run),
        ),
    )  # fmt: skip
    own = (
        *trials("ReLU", "w = 0.5", [0.5]),
        *trials("ReLU", "w = 0", [None]),
        *trials("BatchNorm", "w = 0.5", [0.5]),
    )
    relu, batch, maps = training_charts(item, Results("table2", "cpu", {}, own))
    assert (relu.title, batch.title) == ("Training loss: ReLU", "Training loss: BatchNorm")
    assert [list(line.points) for line in relu.lines] == [[(1.0, 2.0), (2.0, 1.0)]] * 2
    assert [line.value for line in relu.lines] == ["1", "diverged"]
    assert [line.broken_off for line in relu.lines] == [False, True]
    with_shortcuts, without = maps.lines
    assert with_shortcuts.label.endswith("resnet18, w = 0.5")
    assert without.label.endswith("resnet18")

    def at_zero(line):
        return next(y for x, y in line.points if x == 0.0)

    # Shortcuts keep unrelated inputs apart.
    assert 0.0 < at_zero(with_shortcuts) < at_zero(without) < 1.0


TINY = {
    "model": "mlp:14", "width": 128.0, "optimizer": "sgd", "method": "tat", "batch_size": 2048,
}  # fmt: skip
KEPT = Item(
    name="table2",
    title="Table 2: tiny",
    label=None,
    introduction="",
    claims={"It trains": lambda _: ("holds", "")},
    cells=(Cell("kept", "x", TINY, 50.0), Cell("left out", "x", TINY)),
    smoke=replace(SMOKE, keep=lambda row, column: row == "kept"),
)


def test_an_item_is_run_once_and_leaves_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ITEMS, "table2", KEPT)
    place = Place(tmp_path, workers=1)
    said: list[str] = []
    report = report_item(KEPT, Request("smoke", seeds=2), place, said.append)
    assert len(said) == 1
    assert said[0].startswith("table2: 1 cell, 2 runs with the best, about 1 minute on one CPU.")
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs", "studies.db", "table2.html", "table2.jsonl",
    }  # fmt: skip
    found = Results.read(tmp_path / "table2.jsonl")
    assert [(t.row, t.column, t.seed) for t in found.trials] == [("kept", "x", s) for s in (0, 1)]
    assert len(list((tmp_path / "runs").iterdir())) == 2
    cell = found.cell("kept", "x")
    assert cell is not None
    assert f"{cell} (50.0)" in report
    assert "not run: It trains." in report
    assert str(tmp_path / "table2.html") in report
    page = (tmp_path / "table2.html").read_text(encoding="utf-8")
    assert "Training loss: kept" in page
    assert "From input to output" in page
    assert run_item(KEPT, Request("smoke", seeds=2), place) == found


TUNED = replace(
    KEPT,
    smoke=replace(
        KEPT.smoke,
        options={**KEPT.smoke.options, "epochs": 2, "steps": None, "validation_size": None},
        ranges={"sgd": {"lr": Range(0.001, 0.1)}},
        trials=2,
        least_epochs=1,
        seeds=2,
        held_out=50,
    ),
)


def test_records_of_earlier_results_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(ITEMS, "table2", TUNED)
    place, elsewhere = (Place(tmp_path / name, workers=1) for name in ("a", "b"))
    report_item(TUNED, Request("smoke"), place)
    found = Results.read(tmp_path / "a" / "table2.jsonl")
    assert (len(found.tried), len(found.trials), found.origin["left"]) == (2, 2, 0)
    monkeypatch.setattr("skipless.runs.place.train", None)  # nothing is trained from here on
    records = Request("smoke", records=tmp_path / "a")
    again = run_item(TUNED, records, elsewhere)
    assert again.trials == found.trials
    for name in ("machines", "versions", "commits"):
        assert again.origin[name] == found.origin[name]
    assert again.origin["machines"] != []
    with pytest.raises(FileNotFoundError, match=r"--records .*nowhere is not a folder"):
        run_item(TUNED, Request("smoke", records=tmp_path / "nowhere"), elsewhere)


def test_an_item_that_is_stopped_leaves_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(ITEMS, "table2", TUNED)
    place, train, runs = Place(tmp_path, workers=1), place_module.train, []

    def train_three(configuration: Configuration, *given: object, **more: object) -> object:
        runs.append(configuration)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return train(configuration, *given, **more)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patched:
        patched.setattr(place_module, "train", train_three)
        with pytest.raises(InterruptedError, match="table2-smoke was stopped after 3 of 4 runs"):
            report_item(TUNED, Request("smoke"), place)
    found = Results.read(tmp_path / "table2.jsonl")
    assert (len(found.tried), len(found.trials), found.origin["left"]) == (2, 1, 1)
    assert "this item is not complete" in build_section(TUNED, found).facts["Left"]
    report_item(TUNED, Request("smoke"), place)
    assert Results.read(tmp_path / "table2.jsonl").origin["left"] == 0


def test_cells_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"No cell of table2 .* 'x'. Its cells are kept \| x."):
        Request("smoke", only="x").plan(KEPT)


@pytest.mark.filterwarnings("ignore:C_f:skipless.core.solution.ClampedTargetWarning")
def test_the_cost_is_about_that_of_its_runs():
    """At the scale cpu: 66 s for a TReLU network of 50 layers with SGD, as measured elsewhere."""
    (own,) = ITEMS["table5"].plan("cpu", only="50, SGD, TAT | (L)ReLU")
    runs = 5 + 8 / 2  # five seeds, and eight trials of which most stop early
    assert own.hours() * 3600 == pytest.approx(66 * runs, rel=0.2)
    # Without tuning, the five seeds are left.
    assert own.hours(tuned=False) * 3600 == pytest.approx(66 * 5, rel=0.2)
    # A batch of one image takes about 10 ms, of 4,096 images three times.
    (small,) = ITEMS["batch_sizes"].plan("cpu", only="vanilla, TReLU | 1")
    steps = 3 * 4096
    assert small.hours(tuned=False) * 3600 == pytest.approx(5 * steps * 0.010, rel=0.2)
    (deeper,) = ITEMS["table5"].plan("cpu", only="101, SGD, TAT | (L)ReLU")
    assert deeper.hours() == pytest.approx(own.hours() * 101 / 50)


def test_other_processes_of_torchrun_tell_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reproduce, "run_item", lambda *_: DEPTHS)
    monkeypatch.setenv("RANK", "1")
    assert report_item(ITEMS["figure1"], Request("cpu"), Place(tmp_path)) == ""
    assert not list(tmp_path.iterdir())


def test_the_charts_of_an_item_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reproduce, "run_item", lambda *_: DEPTHS)
    monkeypatch.setattr(reproduce, "training_charts", lambda *_: [])
    report_item(ITEMS["figure1"], Request("cpu"), Place(tmp_path))
    drawing = (tmp_path / "figure1-1.svg").read_text(encoding="utf-8")
    assert drawing.startswith("<svg")
    assert Results.read(tmp_path / "figure1.jsonl") == DEPTHS


def test_results_of_another_scale_are_not_written_over(tmp_path: Path):
    DEPTHS.write(tmp_path / "figure1.jsonl")
    with pytest.raises(
        FileExistsError,
        match=r"figure1.jsonl holds results of the scale cpu.* Name another --output",
    ):
        report_item(ITEMS["figure1"], Request("smoke"), Place(tmp_path))
    assert Results.read(tmp_path / "figure1.jsonl") == DEPTHS


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_is_computed(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        report_item(ITEMS["figure4"], Request("cpu"), Place(tmp_path / "file" / "x"))


def test_results_of_one_item_can_be_shown_side_by_side(tmp_path: Path):
    computed = Results("table1", "cpu", {"seconds": 1}, values=(Value("DKS", "Q(1)", 1.0, 1.0),))
    paths = [computed.write(tmp_path / name / "table1.jsonl") for name in ("a", "b")]
    assert [own.name for own in read_sections(paths)] == ["table1", "table1-2"]


def test_the_list_says_what_items_cost():
    header, rows = reproduce.overview()
    assert header == ["item", "what it shows", "smoke", "cpu", "full"]
    assert [row[0] for row in rows] == list(ITEMS)
    costs = {row[0]: row[2:] for row in rows}
    assert costs["table1"] == ["computed", "computed, 1 min", "computed"]
    # Table 8 at full scale: 18 cells, each of 20 trials and 5 seeds.
    assert costs["table8"][2].startswith("450 runs, ")
    assert costs["table8"][2].endswith(" GPU-hours")
    assert costs["table8"][0] == "18 runs"


def written(folder: Path) -> list[Path]:
    """Files of results, in an order that is not the paper's."""
    folder.mkdir(parents=True, exist_ok=True)
    values = (Value("DKS", "Q(1)", 1.0, 1.0),)
    computed = Results("table1", "cpu", {"seconds": 5}, values=values)
    return [found.write(folder / f"{found.item}.jsonl") for found in (computed, DEPTHS)]


def test_sections_are_in_the_order_of_the_paper(tmp_path: Path):
    assert [own.name for own in read_sections(written(tmp_path))] == ["figure1", "table1"]


def test_results_of_an_unknown_item_are_refused(tmp_path: Path):
    path = replace(DEPTHS, item="table99").write(tmp_path / "table99.jsonl")
    with pytest.raises(
        ValueError, match=r"Unknown item 'table99' .* the items of this version are fig"
    ):
        read_sections([path])
