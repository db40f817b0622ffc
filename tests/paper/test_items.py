"""The items: all of the paper's tables and figures, with its numbers, settings and grids."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import published
from paper_source import accuracies, floats, paper_source
from skipless.core.graph import Graph
from skipless.core.solution import ClampedTargetWarning
from skipless.core.solve import solve
from skipless.paper import ITEMS
from skipless.paper.scales import FULL, SCALES
from skipless.runs.kernels import network_curve

SOURCE = paper_source()
needs_source = pytest.mark.skipif(SOURCE is None, reason="the paper's source is not at hand")
TRAINED = [item for item in ITEMS.values() if item.compute is None]


def numbered(labels: list[tuple[str, str]]) -> dict[str, str]:
    """Labels by the names of items: figure1, table1, ..."""
    counts: collections.Counter[str] = collections.Counter()
    names = {}
    for kind, label in labels:
        counts[kind] += 1
        names[f"{kind}{counts[kind]}"] = label
    return names


def test_every_table_and_figure_is_an_item_under_its_number():
    assert {n: i.label for n, i in ITEMS.items() if i.label} == numbered(published.FLOATS)


@needs_source
def test_the_published_list_is_that_of_the_source():
    assert SOURCE is not None
    assert [(kind, label) for kind, label, _ in floats(SOURCE)] == published.FLOATS


@needs_source
@pytest.mark.parametrize("number", range(2, 12))
def test_a_table_has_the_numbers_of_the_source_at_their_places(number):
    assert SOURCE is not None
    item = ITEMS[f"table{number}"]
    body = next(body for _, label, body in floats(SOURCE) if label == item.label)
    printed = accuracies(body)
    if number == 2:  # a standard ResNet stands beside the rows of its optimiser, here before all
        printed = [printed[0], printed[9], *printed[1:9], *printed[10:]]
    if number == 7:  # each cell is "with / without dropout", here a row for all with and without
        lines = [printed[start : start + 12] for start in range(0, len(printed), 12)]
        printed = [value for line in lines for value in (*line[0::2], *line[1::2])]
    assert [cell.paper for cell in item.cells] == printed


def test_no_two_cells_of_an_item_are_the_same_run():
    for item in TRAINED:
        stated = {(*sorted(cell.run.items()), bool(cell.teacher)) for cell in item.cells}
        assert len(stated) == len(item.cells), item.name


@pytest.mark.parametrize("scale", SCALES)
def test_runs_are_distinct_and_have_a_method_that_takes_their_targets(scale):
    for item in TRAINED:
        runs = item.runs(scale)
        assert len({run.name for run in runs}) == len(runs) > 0, item.name
        assert item.cost(scale) == (len(runs), sum(run.configuration.epochs for run in runs))
        for run in runs:
            run.configuration.build_method()


def test_the_full_scale_has_the_papers_settings():
    runs = ITEMS["table4"].runs("full")
    configurations = [run.configuration for run in runs]
    assert {c.epochs for c in configurations} == {90, 180}
    assert {c.batch_size for c in configurations} == {1024}
    assert {c.schedule for c in configurations} == {"step"}
    assert {c.label_smoothing for c in configurations} == {0.1}
    assert {c.width for c in configurations} == {None}
    kfac = [c.kfac for c in configurations if c.optimizer == "kfac"]
    assert {own.preset for own in kfac} == {"imagenet"}
    assert not any(own.early_inverses or own.restarts for own in kfac)
    for optimizer, rates in published.RATES.items():
        if optimizer != "lars":
            assert {c.lr for c in configurations if c.optimizer == optimizer} == set(rates)
    assert {c.l2 for c in configurations} == set(published.L2)
    normalised = [c for c in configurations if c.norm == "batch"]
    assert {c.dropout for c in normalised} == {0.0}
    assert {c.dropout for c in configurations if c.norm is None} == set(published.DROPOUTS)
    assert {c.eta for c in configurations if c.norm is None} == set(published.ETAS)
    # 5 rates, 3 penalties; without BatchNorm also 2 dropout rates and 2 values of eta.
    assert len(runs) == 2 * 2 * 2 * (15 + 2 * 15 * 2 * 2)


def test_smooth_activations_are_searched_over_the_papers_targets():
    configurations = [run.configuration for run in ITEMS["table7"].runs("full")]
    assert {c.tau for c in configurations if c.tau is not None} == set(published.TAUS)
    assert {c.zeta for c in configurations if c.zeta is not None} == set(published.ZETAS)


def test_figure_5_has_the_settings_of_appendix_e():
    for run in ITEMS["figure5"].runs("full"):
        given = run.configuration
        assert (given.data, given.epochs, given.optimizer) == ("cifar10", 200, "kfac")
        assert given.marks == "75/200,150/200"
        assert given.kfac.preset == "cifar10"


def test_the_edge_of_chaos_of_tanh_has_the_papers_weights():
    run = next(
        run
        for run in ITEMS["table5"].runs("smoke")
        if run.cell.column == "Tanh" and "EOC" in run.cell.row
    )
    method = run.configuration.build_method()
    assert method is not None
    solution = solve(Graph.chain(50), method, "tanh")
    assert solution.sigma_w == pytest.approx(1.302, abs=0.003)  # section 5.4


def test_the_scales_of_cpu_keep_the_papers_depths():
    for item in TRAINED:
        stated = {cell.run["model"] for cell in item.cells}
        assert {run.configuration.model for run in item.runs("cpu")} <= stated


def test_the_depth_sweep_of_cpu_reaches_200_layers():
    assert "resnet200" in {run.configuration.model for run in ITEMS["figure1"].runs("cpu")}


def test_runs_that_items_share_are_the_same_configuration():
    runs = {n: {run.configuration for run in ITEMS[n].runs("cpu")} for n in ("table2", "table5")}
    shared = runs["table2"] & runs["table5"]
    # Vanilla networks of 50 layers: EOC and TAT, three seeds, five rates of SGD, one of K-FAC.
    assert len(shared) == 2 * 3 * (5 + 1)


def test_given_options_reach_every_run():
    runs = ITEMS["figure1"].runs("full", seeds=2, given={"data": "parquet:/data"})
    assert {run.configuration.data for run in runs} == {"parquet:/data"}
    assert {run.seed for run in runs} == {0, 1}


def test_the_full_scale_searches_what_a_run_does_not_fix():
    assert "eta" not in FULL.grid(ITEMS["table2"].cells[-1].run)
    assert FULL.grid(ITEMS["table4"].cells[1].run)["eta"] == published.ETAS


def test_the_full_scale_searches_lars_over_the_papers_rates():
    runs = ITEMS["table8"].runs("full")
    found = {run.configuration.lr for run in runs if run.configuration.optimizer == "lars"}
    assert found == set(published.RATES["lars"])


def test_the_scale_cpu_is_what_its_page_says():
    """An eighth of the channels, 2,560 images of 7 x 7, 5 epochs for 90, 64 images for 1,024."""
    sizes = {
        (c.width, c.train_size, c.validation_size, c.image_size, c.data, c.epochs, c.batch_size)
        for c in (run.configuration for run in ITEMS["table5"].runs("cpu"))
    }
    assert sizes == {(0.125, 2560, 2000, 7, "fashion-mnist", 5, 64)}
    wide = {
        (c.width, c.train_size, c.image_size, c.data)
        for c in (run.configuration for run in ITEMS["figure5"].runs("cpu"))
    }
    # Wide ResNets have twice the channels of others at full scale; here a quarter of these.
    assert wide == {(0.5, 5120, 8, "cifar10")}


def test_twice_the_width_is_twice_the_width_at_every_scale():
    for scale in SCALES:
        widths = {run.cell.row[-2:]: run.configuration.width for run in ITEMS["table9"].runs(scale)}
        one, two = (widths[name] for name in ("1x", "2x"))
        assert one is not None
        assert two == 2 * one


@pytest.mark.parametrize(
    ("item", "row", "column"),
    [
        *(("table5", f"101, SGD, {method}", "(L)ReLU") for method in ("EOC", "TAT")),
        *(("figure1", method, depth) for method in ("EOC", "TAT") for depth in ("50", "200")),
        *(("table2", row, "standard ResNet") for row in ("SGD", "K-FAC")),
        *(("table2", f"{row}, TReLU", "w = 0.8") for row in ("SGD", "K-FAC")),
        *(("figure3", row, epochs) for row in ("SGD", "K-FAC") for epochs in ("90", "180")),
    ],
)
def test_what_must_hold_at_the_scale_cpu_has_three_seeds(item, row, column):
    runs = [
        run for run in ITEMS[item].runs("cpu") if (run.cell.row, run.cell.column) == (row, column)
    ]
    assert {run.seed for run in runs} == {run.configuration.seed for run in runs} == {0, 1, 2}


def test_a_run_comes_before_the_options_of_its_scale():
    periods = {
        run.cell.row: (given.kfac.curvature_period, given.kfac.inverse_period)
        for run in ITEMS["figure6"].runs("cpu")
        if (given := run.configuration).optimizer == "kfac"
    }
    assert periods == {"K-FAC (1, 50)": (1, 50), "K-FAC (10, 200)": (10, 200)}


def test_gaussian_weights_fill_their_kernels():
    for run in ITEMS["table11"].runs("smoke"):
        gaussian = run.cell.row.endswith("Gaussian")
        assert run.configuration.distribution == ("gaussian" if gaussian else "orthogonal")
        assert run.configuration.delta is not gaussian


def test_the_largest_shortcut_weight_gets_the_nearest_target():
    run = next(
        run
        for run in ITEMS["table2"].runs("cpu")
        if (run.cell.row, run.cell.column) == ("SGD, TReLU", "w = 0.9")
    )
    with pytest.warns(ClampedTargetWarning, match="out of reach"):
        curve = network_curve(run.configuration)
    assert curve is not None
    assert 0.5 < curve.global_map[np.argmin(np.abs(curve.c))] < 0.9  # the target


def test_networks_of_the_scale_smoke_have_at_most_34_layers():
    models = {run.configuration.model for item in TRAINED for run in item.runs("smoke")}
    assert models == {"resnet18", "resnet34", "wide_resnet10"}
