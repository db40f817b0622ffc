"""Users' mistakes, and the errors and warnings they get."""

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipless.optim import KFAC


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


INPUTS = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 3


def step(model: nn.Module, optimizer: KFAC) -> None:
    optimizer.zero_grad()
    outputs = model(INPUTS)
    optimizer.curvature(outputs)
    F.cross_entropy(outputs, LABELS).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lr": "0.1"}, "lr must be finite and >= 0, got '0.1'"),
        ({"lr": True}, "lr must be finite and >= 0, got True"),
        ({"damping": float("inf")}, "damping must be finite and >= 0, got inf"),
        ({"damping": None}, "damping must be finite and >= 0, got None"),
        ({"momentum": None}, "momentum must be in [0, 1), got None"),
        ({"l2": -1.0}, "l2 must be finite and >= 0, got -1.0"),
        ({"inverse_period": "50"}, "inverse_period must be an integer >= 1, got '50'"),
        ({"inverse_period": 2.5}, "inverse_period must be an integer >= 1, got 2.5"),
        ({"curvature_period": 0}, "curvature_period must be an integer >= 1, got 0"),
        ({"damping_period": 0}, "damping_period must be an integer >= 1, got 0"),
        ({"burn_in": -1}, "burn_in must be an integer >= 0, got -1"),
        ({"curvature_ema": 1.0}, "curvature_ema must be in [0, 1), got 1.0"),
        ({"damping": float("nan")}, "damping must be finite and >= 0, got nan"),
        ({"input_stride": 0}, "input_stride must be an integer >= 1, got 0"),
        ({"seed": None}, "seed must be an integer >= 0, got None"),
        ({"eigenbasis": "no"}, "eigenbasis must be True or False, got 'no'"),
        ({"damping": 0.0}, "damping + l2 must be > 0, got 0: the curvature of a batch is zero"),
        ({"loss": "nll"}, "loss must be one of cross_entropy, binary_cross_entropy, mse, got"),
        ({"fisher": "true"}, "fisher must be one of sampled, exact, empirical, got 'true'"),
        ({"preset": "mnist"}, "preset must be one of cifar10, imagenet, batchnorm, got 'mnist'"),
    ],
)
def test_settings_out_of_range_are_named_as_they_were_given(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        KFAC(network(), **dict[str, Any](lr=0.1) | settings)


def test_parameters_instead_of_the_model_are_refused() -> None:
    parameters: Any = network().parameters()
    with pytest.raises(
        TypeError, match=re.escape("KFAC(model, ...), not KFAC(model.parameters(), ...)")
    ):
        KFAC(parameters, lr=0.1)


def test_sparse_embeddings_are_refused_at_once() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="got layer 0 with sparse=True"):
        KFAC(model, lr=0.1)


@pytest.mark.parametrize(
    ("loss", "targets", "says"),
    [
        ("cross_entropy", None, "got NoneType"),
        ("cross_entropy", F.one_hot(LABELS), r"of shape \(8,\), got \(8, 3\)"),
        ("cross_entropy", LABELS - 100, "classes from 0 to 2"),
        ("cross_entropy", LABELS.double(), "classes from 0 to 2"),
        ("mse", torch.zeros(8), r"of shape \(8, 3\), got \(8,\)"),
    ],
)
def test_labels_that_do_not_fit_are_refused(loss: Any, targets: Any, says: str) -> None:
    model = network()
    optimizer = KFAC(model, 0.1, loss=loss, fisher="empirical")
    with pytest.raises(ValueError, match=says):
        optimizer.curvature(model(INPUTS), targets)


def test_mistakes_show_in_steps_that_measure_nothing_too() -> None:
    model = network()
    optimizer = KFAC(model, 0.1, burn_in=0, curvature_period=10)
    step(model, optimizer)
    wrong: Any = "rubbish"
    with pytest.raises(TypeError, match="such as logits, got str"):
        optimizer.curvature(wrong)


def test_a_model_that_was_cast_raises() -> None:
    model = network()
    optimizer = KFAC(model, 0.1)
    outputs = model.float()(INPUTS.float())
    with pytest.raises(RuntimeError, match="Create the optimiser after moving or casting"):
        optimizer.curvature(outputs)


def test_layers_that_are_unfrozen_later_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = KFAC(model, 0.1, burn_in=0)
    step(model, optimizer)
    assert not caplog.records
    model[0].requires_grad_(True)
    step(model, optimizer)
    (record,) = caplog.records
    assert record.message.startswith("K-FAC does not train 0.weight, 0.bias, which were frozen")


def test_attention_that_cannot_be_differentiated_twice_raises() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(4, 4)
            self.out = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.project(x).view(2, 1, 4, 4)
            return self.out(F.scaled_dot_product_attention(h, h, h).view(8, 4))

    model = Attention()
    optimizer = KFAC(model, None, damping=1.0, burn_in=0)
    outputs = model(INPUTS.float())
    optimizer.curvature(outputs)
    F.cross_entropy(outputs, LABELS).backward()
    with pytest.raises(RuntimeError, match="Set a learning rate, or, for attention"):
        optimizer.step()


def test_passes_made_before_measuring_are_each_measured() -> None:
    models = network(), network()
    parts = INPUTS.split(4)
    for model, early in zip(models, (False, True), strict=True):
        optimizer = KFAC(model, 0.1, burn_in=0)
        made = [model(part) for part in parts] if early else [None, None]
        for part, outputs in zip(parts, made, strict=True):
            outputs = model(part) if outputs is None else outputs
            optimizer.curvature(outputs)
            (outputs.square().sum() / 8).backward()
        optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_whose_products_overflow_are_no_reason_to_stop() -> None:
    model = network().float()
    optimizer = KFAC(model, 0.1, burn_in=0, norm_constraint=1e-3)
    weight = next(model.parameters())
    start = weight.detach().clone()
    outputs = model(INPUTS.float())
    optimizer.curvature(outputs)
    (F.cross_entropy(outputs, LABELS) * 1e25).backward()
    optimizer.step()
    assert weight.isfinite().all()
    assert not torch.equal(weight, start)
