"""The kernels of real networks are those that they were shaped for."""

from typing import Any

import pytest
import torch

from skipless import EOC, TAT
from skipless.models import MLP, ResNet, create_model
from skipless.torch import Check, check

SMALL: dict[str, Any] = {"num_classes": 64, "in_chans": 8, "img_size": 4}
SEEDS = 10  # fewer leave the standard errors uncertain


def checked(model: ResNet | MLP) -> Check:
    return check(model, torch.zeros(1, 8, 4, 4), seeds=SEEDS, pairs=6)  # it knows its solution


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"shortcut_weight": 0.8, "method": TAT(eta=0.5)}),
        ("wide_resnet16", {"shortcut_weight": 0.0, "width": 4}),
        ("wide_resnet16", {"shortcut_weight": 0.0, "width": 4, "norm": "layer", "method": TAT()}),
        ("mlp20", {}),
    ],
)
def test_q_stays_1_and_orthogonal_samples_end_at_the_cosine_asked_for(
    name: str, options: dict[str, Any]
) -> None:
    result = checked(create_model(name, **SMALL, **options))
    assert {round(row.predicted.q, 9) for row in result.comparisons} == {1.0}
    assert result.agrees, str(result)
    last = result.comparisons[-2].measured  # before the logits, of which there are few
    eta = options.get("method", TAT()).eta or 0.9
    assert last.kind == "Activation"
    assert last.c.mean == pytest.approx(eta, abs=0.02 + 4.0 * last.c.error)


def test_weights_at_the_edge_of_chaos_hold_q_at_2_before_every_relu() -> None:
    options: dict[str, Any] = {"width": 4, "shortcut_weight": 0.8, "method": EOC()}
    result = checked(create_model("wide_resnet16", **SMALL, **options))
    expected = {"Input": 1.0, "Affine": 2.0, "Sum": 2.0, "Activation": 1.0}
    for row in result.comparisons:
        assert row.predicted.q == pytest.approx(expected[row.measured.kind])
    assert result.agrees, str(result)
