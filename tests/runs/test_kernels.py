"""C maps of runs: those of the networks trained, without their data or their width."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skipless.core.solution import TAT
from skipless.models import create_model
from skipless.record import Json, Record
from skipless.runs.configuration import Configuration
from skipless.runs.kernels import network_curve, report_runs

MLP = Configuration(model="mlp:14", method="tat", eta=0.8)


def record(configuration: Configuration, solution: Json, **extra: Json) -> Record:
    said: dict[str, Json] = configuration.as_mapping() | extra
    return Record(Path("run"), {"configuration": said, "solution": solution}, ())


def test_the_map_of_a_run_meets_the_target_that_it_was_shaped_for() -> None:
    curve = network_curve(MLP)
    assert curve is not None
    assert np.interp(0.0, curve.c, curve.global_map) == pytest.approx(0.8)  # η is C_f(0)
    assert curve.layers.size == 1 + 14
    assert curve.layers[-1] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("model", "width", "weight"),
    [("resnet18", 0.125, 0.5), ("wide_resnet10", 1.0, 0.5), ("wide_resnet10", 3.0, 0.5)],
)
def test_the_map_is_that_of_the_network_in_its_width(
    model: str, width: float, weight: float
) -> None:
    given = Configuration(model=model, width=width, shortcut_weight=weight, method="tat", eta=0.5)
    whole = create_model(model, width=width, shortcut_weight=weight, method=TAT(eta=0.5))
    assert whole.shaping is not None
    curve = network_curve(given)
    assert curve is not None
    assert curve.local_map == pytest.approx(whole.shaping.solution.c_map(curve.c), abs=1e-12)


def test_a_network_that_was_not_shaped_has_none() -> None:
    assert network_curve(Configuration(model="resnet18")) is None
    assert report_runs([record(Configuration(model="resnet18"), None)]).charts == []


def test_runs_whose_data_is_gone_keep_their_c_maps() -> None:
    gone = replace(MLP, data="imagefolder:/no/such", width=4096.0)
    assert [chart.title for chart in report_runs([record(gone, {})]).charts] == [
        "From input to output",
        "Layer by layer",
    ]


def test_unknown_options_change_no_c_map() -> None:
    assert len(report_runs([record(MLP, {}, colour="red", lr="fast")]).charts) == 2


@pytest.mark.parametrize(("name", "value"), [("model", "vgg16"), ("eta", "high")])
def test_an_unknown_network_is_a_warning(name: str, value: str) -> None:
    with pytest.warns(UserWarning, match=rf"the report has no C maps of run: .*{value}"):
        section = report_runs([record(MLP, {}, **{name: value})])
    assert section.charts == []
    assert len(section.rows) == 1
