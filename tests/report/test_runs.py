"""Runs side by side: the table holds what records say, and records with gaps are no obstacle."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from skipless.record import METRICS, RUN, Json, Record
from skipless.report.charts import HEADER, runs_section
from skipless.report.figures import CMapCurve
from skipless.report.page import sections_page
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


def lines(chart: Chart) -> dict[str, Line]:
    return {line.label: line for line in chart.lines}


def test_the_table_holds_the_numbers_of_the_record(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / "first", rows(0.8125, speed=2.02))])
    (row,) = section.rows
    assert dict(zip(section.header, row, strict=True)) == {
        "run": "first",
        "model": "mlp:50, tat",
        "optimizer": "lars",
        "learning rate": "0.03",
        "epochs": "2",
        "training accuracy": "93.8%",  # 1 - 0.25 / 4
        "training loss": "0.25",
        "validation": "81.2%",
        "best": "87.5%",
        "seconds": "40",
    }
    assert dict(section.facts) == {
        "Versions": "python 3.11.7, torch 2.13.0",
        "Machine": "Linux x86_64, 2 cores, 1 thread, A100, A100",
        "Dates": "2026-11-16",
    }


def test_the_charts_show_losses_and_accuracies_where_they_were_measured(tmp_path: Path) -> None:
    section = runs_section([run(tmp_path / "first", rows(0.8125))])
    loss, accuracy = section.charts
    assert lines(loss)["first"].points == [(0.5, 2.0), (1.0, 1.0), (1.5, 0.5), (2.0, 0.25)]
    assert lines(accuracy)["first"].points == [(1.0, 87.5), (2.0, 81.25)]
    assert lines(accuracy)["first"].value == "81.2%"


@pytest.mark.parametrize(("speed", "by_time"), [(1.05, False), (1.5, True)])
def test_runs_of_different_speed_are_also_shown_by_time(
    tmp_path: Path, speed: float, by_time: bool
) -> None:
    records = [run(tmp_path / "a", rows(0.8)), run(tmp_path / "b", rows(0.7, speed))]
    charts = runs_section(records).charts
    both = [("Training loss", "epoch"), ("Validation accuracy", "epoch")]
    timed = [(title, "seconds of training") for title, _ in both]
    assert titles(charts) == both + timed * by_time
    if by_time:
        assert lines(charts[3])["b"].points == [(15.0, 87.5), (30.0, pytest.approx(70.0))]


def test_of_many_runs_the_charts_show_the_six_best_and_say_so(tmp_path: Path) -> None:
    best = [0.91, 0.99, 0.92, 0.98, 0.93, 0.97, 0.94, 0.96]
    records = [run(tmp_path / f"r{n}", rows(top1)) for n, top1 in enumerate(best)]
    records.append(run(tmp_path / "never", [row for row in rows(0) if row["kind"] == "train"]))
    section = runs_section(records)
    assert len(section.rows) == 9
    for chart in section.charts:
        assert [line.label for line in chart.lines] == ["r1", "r3", "r4", "r5", "r6", "r7"]
        assert [line.style for line in chart.lines] == list(range(6))
    assert "The charts show the 6 runs with the best validation accuracy." in section.introduction
    assert "The charts" not in runs_section(records[:6]).introduction


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    section = runs_section([run(path, rows(0.8)) for path in paths])
    assert [row[0] for row in section.rows] == ["a/run", "b/run", "c"]


def test_a_run_that_ended_early_says_how_far_it_came(tmp_path: Path) -> None:
    (row,) = runs_section([run(tmp_path / "a", rows(0.8)[:3])]).rows
    assert row[HEADER.index("epochs")] == "1 of 2"


def test_a_loss_that_became_no_number_is_called_diverged(tmp_path: Path) -> None:
    end: dict[str, Json] = {"kind": "train", "step": 25, "epoch": 2.5, "loss": None}
    section = runs_section([run(tmp_path / "a", [*rows(0.8), end])])
    assert section.rows[0][HEADER.index("training loss")] == "diverged"
    line = lines(section.charts[0])["a"]
    assert (line.value, line.broken_off) == ("diverged", True)
    assert math.isnan(line.points[-1][1])


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
    ({}, [{"step": 5, "loss": 1.0}, {"kind": 3, "step": 1}, 7, "text", None, []]),
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
        assert all(len(row) == len(HEADER) for row in section.rows)
        page = sections_page("Runs", "", [section])
        assert "nan" not in page.split("</style>")[1]
        assert "inf" not in page.split("</style>")[1]


def c_map(power: int) -> CMapCurve:
    c = np.linspace(-1.0, 1.0, 21)
    whole = 1 - (1 - c) / 2**power
    return CMapCurve("", c, whole, whole, np.array([0.0, 1 - 2.0**-power]))


def test_c_maps_keep_the_style_of_their_run_and_equal_ones_share_a_line(tmp_path: Path) -> None:
    records = [run(tmp_path / name, rows(0.8)) for name in "abcd"]
    curves = {records[1].folder: c_map(3), records[2].folder: c_map(5), records[3].folder: c_map(3)}
    whole, layers = runs_section(records, curves).charts[2:]
    for chart in (whole, layers):
        assert [(line.label, line.style) for line in chart.lines] == [("b and 1 more", 1), ("c", 2)]
    assert lines(whole)["c"].value == "c: 0 → 0.969"  # 1 - 1/32
