"""Appendix E.1 at a scale that takes seconds, and its figure."""

import pickle

import numpy as np
import pytest

pytest.importorskip("torch")

from skipless import DKS, TAT
from skipless.paper.kernel_error import (
    DISTRIBUTIONS,
    DKS_SOFTPLUS,
    SCALES,
    TRELU,
    draw,
    figure_4,
    main,
    summary,
)


@pytest.fixture(scope="module")
def errors():
    return figure_4(SCALES["smoke"])


def test_the_setting_is_that_of_the_paper(errors) -> None:
    # E.1: η = 0.9 from c = 0 and ζ = 10 from c = 0.8; 100 pairs, 50 networks, widths from 30 on.
    assert (TRELU.method, TRELU.cosine) == (TAT(eta=0.9), 0.0)
    assert (DKS_SOFTPLUS.method, DKS_SOFTPLUS.cosine) == (DKS(zeta=10.0), 0.8)
    assert (SCALES["paper"].pairs, SCALES["paper"].seeds, SCALES["paper"].widths[0]) == (
        100,
        50,
        30,
    )
    assert len(errors) == 2 * len(DISTRIBUTIONS) * len(SCALES["smoke"].widths)


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
    narrow, wide = SCALES["smoke"].widths
    spread = {
        width: np.mean(
            [e.check.comparisons[-1].measured.c.spread for e in errors if e.width == width]
        )
        for width in (narrow, wide)
    }
    assert spread[wide] < spread[narrow]


def test_the_figure_is_drawn_with_all_panels_and_lines(errors, tmp_path) -> None:
    text = draw(pickle.loads(pickle.dumps(errors)), tmp_path / "figure.svg").read_text()
    for setting in (TRELU, DKS_SOFTPLUS):
        for distribution in DISTRIBUTIONS:
            assert f"{setting.name}, {distribution}" in text
    assert all(f"width {width}" in text for width in SCALES["smoke"].widths)
    assert summary(errors).count("\n") == 1 + len(errors)


def test_it_prints_and_draws(errors, monkeypatch, tmp_path, capsys) -> None:
    from skipless.paper import kernel_error as module

    asked = []
    monkeypatch.setattr(module, "figure_4", lambda scale: asked.append(scale) or errors)
    main("cpu", str(tmp_path / "figure.png"))
    assert asked == [SCALES["cpu"]]
    assert "DKS + SoftPlus" in capsys.readouterr().out
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
