"""Appendix E.1 at a scale that takes seconds, and the example that draws its figure."""

import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from skipless import DKS, TAT
from skipless.paper import computed
from skipless.paper.computed import (
    DISTRIBUTIONS,
    DKS_SOFTPLUS,
    KERNEL_SCALES,
    TRELU,
    KernelScale,
    kernel_errors,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "kernel_error.py"


@pytest.fixture(scope="module")
def errors():
    return list(kernel_errors(KERNEL_SCALES["smoke"]))


def test_the_setting_is_that_of_the_paper(errors) -> None:
    # E.1: η = 0.9 from c = 0 and ζ = 10 from c = 0.8; 100 pairs, 50 networks, widths from 30 on.
    assert (TRELU.method, TRELU.cosine) == (TAT(eta=0.9), 0.0)
    assert (DKS_SOFTPLUS.method, DKS_SOFTPLUS.cosine) == (DKS(zeta=10.0), 0.8)
    full = KERNEL_SCALES["full"]
    assert (full.pairs, full.seeds, full.widths[0]) == (100, 50, 30)
    assert len(errors) == 2 * len(DISTRIBUTIONS) * len(KERNEL_SCALES["smoke"].widths)


def test_every_line_starts_at_the_cosine_and_is_predicted_to_end_at_the_target(errors) -> None:
    for error in errors:
        rows = error.check.comparisons
        assert rows[0].measured.c.mean == pytest.approx(error.setting.cosine, abs=1e-6)
        predicted = [row.predicted.c for row in rows]
        if error.setting is TRELU:
            assert predicted[-1] == pytest.approx(0.9, abs=1e-9)
        else:  # "the c value should decrease monotonically"
            assert np.all(np.diff(predicted) <= 1e-12)


def test_deviations_are_larger_in_narrow_networks(errors) -> None:
    narrow, wide = KERNEL_SCALES["smoke"].widths
    spread = {
        width: np.mean(
            [e.check.comparisons[-1].measured.c.spread for e in errors if e.width == width]
        )
        for width in (narrow, wide)
    }
    assert spread[wide] < spread[narrow]


def test_the_example_prints_a_table_and_draws_all_panels_and_lines(
    errors, monkeypatch, tmp_path, capsys
) -> None:
    def at_scale(scale: KernelScale):
        assert scale == KERNEL_SCALES["cpu"]
        return errors

    monkeypatch.setattr(computed, "kernel_errors", at_scale)
    runpy.run_path(str(EXAMPLE))["main"]("cpu", str(tmp_path / "figure.svg"))
    figure = (tmp_path / "figure.svg").read_text()
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 + len(errors) + 1
    for error in errors:
        assert error.panel in figure
        assert f"width {error.width}" in figure
        assert any(line.startswith(error.panel) for line in out)
