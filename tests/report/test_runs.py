"""Runs side by side: the table holds what records say, and records with gaps are no obstacle."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from html_pages import Reader
from skipless.record import METRICS, RUN, Json, Record
from skipless.report.figures import CMapCurve
from skipless.report.page import sections_page
from skipless.report.runs import runs_section
from skipless.report.sections import Section
from skipless.report.svg import Chart, Line

RUN_JSON: dict[str, Json] = {
    "configuration": {"model": "mlp:50", "method": "tat", "optimizer": "lars", "lr": 0.03,
                      "epochs": 2, "steps": None},
    "started": "2026-11-16T05:42:22+00:00",
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "machine": {"system": "Linux x86_64", "cores": 2, "threads": 1, "gpus": ["A100", "A100"]},
}  # fmt: skip


def rows(top1: float, speed: float = 1.0) -> list[dict[str, Json]]:
    """Two epochs of ten steps."""
    found: list[dict[str, Json]] = []
    for step, loss in ((5, 2.0), (10, 1.0), (15, 0.5), (20, 0.25)):
        at: dict[str, Json] = {"step": step, "epoch": step / 10, "seconds": speed * step}
        found.append({"kind": "train", **at, "loss": loss, "accuracy": 1 - loss / 4})
        if step % 10 == 0:
            value = 0.875 if step == 10 else top1
            found.append({"kind": "validation", **at, "loss": loss, "top1": value})
    return found


def run(folder: Path, lines: list[dict[str, Json]], said: Json = None) -> Record:
    folder.mkdir(parents=True)
    (folder / RUN).write_text(json.dumps(RUN_JSON if said is None else said))
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Record.read(folder)


def titles(charts: Sequence[Chart]) -> list[tuple[str, str]]:
    return [(chart.title, chart.x.name) for chart in charts]


def cells(section: Section) -> dict[str, dict[str, str]]:
    """The cells of each run by the names of their columns."""
    return {name: dict(zip(section.header[1:], own, strict=True)) for name, *own in section.rows}


def lines(chart: Chart) -> dict[str, Line]:
    return {line.label: line for line in chart.lines}


def test_the_table_holds_the_numbers_of_the_record(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / "first", rows(0.8125, speed=2.02))])
    assert cells(section)["first"] == {
        "best": "87.5%",
        "last": "81.2%",
        "training accuracy": "93.8%",  # 1 - 0.25 / 4
        "training loss": "0.25",
        "epochs": "2",
        "seconds": "40",
        "ending": "finished",
    }
    assert dict(section.facts) == {
        "Settings": "model mlp:50, method tat, optimizer lars, lr 0.03, epochs 2",
        "Versions": "python 3.11.7, torch 2.13.0",
        "Machine": "Linux x86_64, 2 cores, 1 thread, A100, A100",
        "Dates": "2026-11-16",
    }


def test_the_charts_show_losses_and_accuracies_where_they_were_measured(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / "first", rows(0.8125))])
    loss, validation, training, accuracy = section.charts
    assert lines(loss)["first"].points == [(0.5, 2.0), (1.0, 1.0), (1.5, 0.5), (2.0, 0.25)]
    assert lines(validation)["first"].points == [(1.0, 1.0), (2.0, 0.25)]
    assert lines(training)["first"].points == [(0.5, 50), (1.0, 75), (1.5, 87.5), (2.0, 93.75)]
    assert lines(accuracy)["first"].points == [(1.0, 87.5), (2.0, 81.25)]
    assert lines(accuracy)["first"].value == "81.2%"
    assert loss.y == validation.y
    assert training.y == accuracy.y


@pytest.mark.parametrize(("speed", "by_time"), [(1.05, False), (1.5, True)])
def test_runs_of_different_speed_are_also_shown_by_time(
    tmp_path: Path, speed: float, by_time: bool
) -> None:
    records = [run(tmp_path / "a", rows(0.8)), run(tmp_path / "b", rows(0.7, speed))]
    charts = runs_section(records).charts
    four = ("Training loss", "Validation loss", "Training accuracy", "Validation accuracy")
    timed = [(title, "seconds of training") for title in (four[0], four[3])]
    assert titles(charts) == [(title, "epoch") for title in four] + timed * by_time
    if by_time:
        assert lines(charts[5])["b"].points == [(15.0, 87.5), (30.0, pytest.approx(70.0))]


def test_what_a_run_logged_of_its_layers_is_shown_by_epoch(tmp_path: Path) -> None:
    names = [f"stages.{n}" for n in range(2, 12)]  # 2, 3, ..., 10, 11
    measured: dict[str, Json] = {}
    for place, name in enumerate(names):
        measured |= {f"q/{name}": 2.0**-place, f"c/{name}": place / 10 - 0.2}
    lines_of = [
        {"kind": "layers", "step": step, "epoch": step / 10, "seconds": step, **measured}
        for step in (1, 10, 20)
    ]
    lines_of[1]["c/stages.2"] = None  # not a number, as in a run that diverges
    alone = runs_section([run(tmp_path / "first", [*rows(0.8), *lines_of])])
    q, c = alone.charts[4:]  # and no charts of gradients and weights, which it lacks
    assert titles([q, c]) == [("q of layers", "epoch"), ("c of layers", "epoch")]
    assert list(lines(q)) == list(lines(c)) == [f"stages.{n}" for n in (2, 4, 6, 7, 9, 11)]
    assert lines(q)["stages.4"].points == [(0.1, 0.25), (1.0, 0.25), (2.0, 0.25)]
    assert lines(q)["stages.11"].value == "0.002"
    assert lines(c)["stages.2"].finite == [(0.1, -0.2), (2.0, -0.2)]
    assert c.y.low == -0.2
    both = runs_section([run(tmp_path / "second", rows(0.7)), Record.read(tmp_path / "first")])
    assert [chart.title for chart in both.charts[4:]] == [
        "q of layers: first",
        "c of layers: first",
    ]


def test_of_many_runs_the_charts_show_the_six_best_and_say_so(tmp_path: Path) -> None:
    best = [0.91, 0.99, 0.92, 0.98, 0.93, 0.97, 0.94, 0.96]
    records = [run(tmp_path / f"r{n}", rows(top1)) for n, top1 in enumerate(best)]
    records.append(run(tmp_path / "never", [row for row in rows(0) if row["kind"] == "train"]))
    section = runs_section(records)
    assert len(section.rows) == 9
    for chart in section.charts:
        assert [line.label for line in chart.lines] == ["r1", "r3", "r5", "r7", "r6", "r4"]
        assert [line.style for line in chart.lines] == list(range(6))
    assert [row[0] for row in section.rows][6:] == ["r2", "r0", "never"]
    assert "The charts show the first 6 runs of the table." in section.introduction
    assert "The charts" not in runs_section(records[:6]).introduction


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    section = runs_section([run(path, rows(0.8)) for path in paths])
    assert [row[0] for row in section.rows] == ["a/run", "b/run", "c"]


def test_a_run_that_ended_early_says_how_far_it_came_and_how_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    section = runs_section([run(folder, rows(0.8)[:3])])  # one of two epochs of ten steps
    assert cells(section)["a b"]["epochs"] == "1 of 2"
    assert cells(section)["a b"]["ending"] == "unfinished"
    again = f"Resume: skipless train --resume --output '{folder}'"
    assert section.conclusion[1] == f"Unfinished: a b, last seen at step 10 of 20. {again}"


def test_a_run_without_its_last_evaluation_is_unfinished(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / "a", rows(0.8)[:-1])])
    assert cells(section)["a"]["ending"] == "unfinished"


def test_runs_that_nothing_was_measured_of_say_so(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / "a", [])])
    assert section.conclusion[0] == "No run has been evaluated."
    assert section.conclusion[1].startswith("Unfinished: a, last seen before its first line. ")


DIVERGED: dict[str, Json] = {
    "kind": "diverged", "step": 13, "epoch": 1.3, "learning_rate": 0.5, "loss": 1e9,
}  # fmt: skip


def test_a_run_that_diverged_says_when_and_at_what_rate_and_leaves_its_chart_at_the_top(
    tmp_path: Path,
) -> None:
    records = [
        run(tmp_path / "lost", [*rows(0.8)[:3], DIVERGED]),
        run(tmp_path / "kept", rows(0.8)),
    ]
    section = runs_section(records)
    assert [row[0] for row in section.rows] == ["kept", "lost"]  # though both are best with 87.5 %
    assert cells(section)["lost"]["ending"].split() == ["diverged", "at", "step", "13"]
    assert cells(section)["lost"]["training loss"] == "1e+09"
    assert section.conclusion[1:] == [
        "Diverged: lost, at step 13 of 20, with learning rate 0.5; the last finite loss is 1e+09."
    ]
    chart = section.charts[0]
    line = lines(chart)["lost"]
    assert (line.value, line.broken_off) == ("diverged", True)
    assert line.points == [(0.5, 2.0), (1.0, 1.0), (pytest.approx(1.3), chart.y.high)]
    assert chart.y.high < 10  # and not 1e9, where the other run would be flat
    assert not lines(chart)["kept"].broken_off


def test_a_loss_that_is_no_number_in_a_record_of_an_earlier_version_is_a_divergence(
    tmp_path: Path,
) -> None:
    end: dict[str, Json] = {"kind": "train", "step": 15, "epoch": 1.5, "loss": None}
    section = runs_section([run(tmp_path / "a", [*rows(0.8)[:3], end])])
    assert section.conclusion[-1] == "Diverged: a, at step 15 of 20; the last finite loss is 1."
    line = lines(section.charts[0])["a"]
    assert (line.value, line.broken_off) == ("diverged", True)
    assert math.isnan(line.points[-1][1])


def test_of_many_runs_that_diverged_five_are_named(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / f"r{n}", [DIVERGED]) for n in range(8)])
    named = [words for words in section.conclusion if words.startswith("Diverged: ")]
    assert len(named) == 5
    assert section.conclusion[-1] == "3 more diverged: see the table."
    assert all("diverged" in row["ending"] for row in cells(section).values())


def said(**given: Json) -> dict[str, Json]:
    """RUN_JSON with other values in its configuration."""
    configuration = RUN_JSON["configuration"]
    assert isinstance(configuration, dict)
    return {**RUN_JSON, "configuration": {**configuration, **given}}


def test_settings_that_differ_are_columns_and_those_that_do_not_are_said_once(
    tmp_path: Path,
) -> None:
    first = {**said(lr=None, clip=1.0, threads=4), "resolved": {"lr": 0.003, "workers": 2}}
    records = [
        run(tmp_path / "a", rows(0.8), first),
        run(tmp_path / "b", rows(0.9), said(lr=0.1, nesterov=True, epochs=3)),
    ]
    defaults: dict[str, Json] = {"lr": None, "clip": None, "nesterov": None, "seed": 0}
    section = runs_section(records, None, {**defaults, "threads": None, "epochs": 90})
    assert section.header[:5] == ["run", "lr", "clip", "nesterov", "ending"]
    assert [row["epochs"] for row in cells(section).values()] == ["2 of 3", "2"]
    assert [row[:4] for row in section.rows] == [
        ["b", "0.1", "–", "yes"],
        ["a", "0.003", "1", "–"],
    ]
    assert section.facts["Settings of all"] == "model mlp:50, method tat, optimizer lars"
    assert section.conclusion[0].startswith("Best: b (lr 0.1, nesterov yes) classifies 90.0% of")


# Two standard errors of the difference at p = 0.97, n = 1000 are 2 sqrt(2 * 0.0291 / 1000) = 1.53 %
@pytest.mark.parametrize(("second", "level"), [(0.955, True), (0.9545, False)])
def test_the_best_run_is_named_with_those_that_may_be_as_good(
    tmp_path: Path, second: float, level: bool
) -> None:
    many: dict[str, Json] = {**said(), "validation_images": 1000}
    records = [run(tmp_path / n, rows(t), many) for n, t in (("a", second), ("b", 0.97))]
    (sentence,) = runs_section(records).conclusion
    best = "Best: b classifies 97.0% of the 1,000 validation images correctly, at epoch 2."
    assert sentence == best + (
        " A gap of up to 1.5 points can be chance on so few images: a may be as good."
        if level
        else f" Next: a, {second:.1%}."
    )


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    records = [
        run(tmp_path / "a", rows(0.9), said(data="digits")),
        run(tmp_path / "b", rows(0.95), said(data="cifar10")),
    ]
    assert [words.split(" classifies")[0] for words in runs_section(records).conclusion] == [
        "On cifar10: Best: b (data cifar10)",
        "On digits: Best: a (data digits)",
    ]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    records = [run(tmp_path / "<b>x & y", rows(0.8)), run(tmp_path / "<i>", [DIVERGED])]
    page = sections_page("Runs", [runs_section(records)])
    assert "<b>x & y" in Reader(page).within("th")
    assert "<b>x" not in page
    assert "<i>" not in page


GAPS: list[tuple[Json, list[Json]]] = [
    ({}, []),
    ({"configuration": None, "versions": "old", "machine": [], "started": None}, []),
    ({"configuration": {"model": "mlp:50"}}, [{"kind": "train", "step": 1}]),
    ({}, [{"kind": "train", "step": 5, "loss": 0.0}]),
    ({}, [{"kind": "train", "step": 5, "epoch": 0, "loss": 0.0, "seconds": 0}]),
    ({}, [{"kind": "train", "step": 5, "epoch": 1, "loss": None, "accuracy": None}]),
    ({}, [{"kind": "validation", "step": 5, "epoch": 1, "top1": None, "seconds": None}]),
    ({}, [{"kind": "train", "step": 5, "epoch": None, "loss": 1.0}]),
    ({}, [{"kind": "train", "step": None, "epoch": 1, "loss": 1.0}]),
    ({}, [{"kind": "train", "step": 5, "epoch": 1, "loss": "high", "seconds": "long"}]),
    ({}, [{"kind": "train", "step": 5, "epoch": 1, "loss": math.inf, "seconds": math.nan}]),
]


@pytest.mark.parametrize(("said", "metrics"), GAPS)
def test_a_record_with_gaps_is_reported_beside_a_whole_one(
    tmp_path: Path, said: Json, metrics: list[dict[str, Json]]
) -> None:
    records = [run(tmp_path / "gaps", metrics, said), run(tmp_path / "whole", rows(0.8))]
    for chosen in (records[:1], records):
        section = runs_section(chosen)
        assert all(len(row) == len(section.header) for row in section.rows)
        page = sections_page("Runs", [section])
        assert "nan" not in page.split("</style>")[1]
        assert "inf" not in page.split("</style>")[1]


def c_map(power: int) -> CMapCurve:
    c = np.linspace(-1.0, 1.0, 21)
    whole = 1 - (1 - c) / 2**power
    return CMapCurve("", c, whole, whole, np.array([0.0, 1 - 2.0**-power]))


def test_c_maps_keep_the_style_of_their_run_and_equal_ones_share_a_line(tmp_path: Path) -> None:
    records = [run(tmp_path / name, rows(0.8)) for name in "abcd"]
    curves = {records[1].folder: c_map(3), records[2].folder: c_map(5), records[3].folder: c_map(3)}
    whole, layers = runs_section(records, curves).charts[4:]
    for chart in (whole, layers):
        assert [(line.label, line.style) for line in chart.lines] == [("b and 1 more", 1), ("c", 2)]
    assert lines(whole)["c"].value == "c: 0 → 0.969"  # 1 - 1/32
