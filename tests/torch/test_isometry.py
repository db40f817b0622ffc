"""Dynamical isometry: the singular values of Jacobians at initialisation."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skipless import EOC, TAT, Graph, UnreachableTargetError, solve
from skipless.models import create_model
from skipless.torch import initialize_, looks_linear_


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def singular_values(model: nn.Module, x: Tensor) -> Tensor:
    """Those of the Jacobian of the outputs at one input."""
    jacobian = torch.func.jacrev(lambda x: model(x[None])[0].flatten())(x)
    return torch.linalg.svdvals(jacobian.reshape(jacobian.shape[0], -1)).detach()


@pytest.mark.parametrize("depth", [1, 50])
def test_a_relu_network_that_looks_linear_is_an_isometry(depth: int) -> None:
    shape: dict[str, Any] = {"in_chans": 12, "img_size": 1, "num_classes": 12, "width": 24}
    model = create_model(f"mlp{depth}", **shape, distribution="looks_linear", generator=seeded())
    assert [type(m) for m in model.modules()].count(nn.ReLU) == depth
    for x in torch.randn(3, 12, 1, 1, generator=seeded(1)):
        error = (depth + 1) * math.sqrt(24) * torch.finfo(torch.float32).eps  # of each layer √n ε
        assert singular_values(model, x).numpy() == pytest.approx(np.ones(12), abs=error)


def test_the_same_with_orthogonal_weights_is_not() -> None:
    layers = [layer for _ in range(20) for layer in (nn.Linear(24, 24), nn.ReLU())]
    model = nn.Sequential(*layers)
    initialize_(model, sigma_w=math.sqrt(2.0), generator=seeded())
    values = singular_values(model, torch.randn(24, generator=seeded(1)))
    assert values.max() > 3.0 * values.median()


def test_a_convolutional_network_that_looks_linear_is_linear_with_or_without_shortcuts() -> None:
    for weight in (0.0, 0.8):
        model = create_model(
            "wide_resnet16", width=0.5, in_chans=2, num_classes=4, img_size=8,
            shortcut_weight=weight, distribution="looks_linear", generator=seeded(),
        ).double().eval()  # fmt: skip
        a, b = torch.randn(2, 3, 2, 8, 8, dtype=torch.float64, generator=seeded(1))
        torch.testing.assert_close(model(2.0 * a - b), 2.0 * model(a) - model(b))
    assert model(a).std() > 0.1


def test_each_layer_has_a_matrix_and_its_negative() -> None:
    weight = looks_linear_(torch.empty(8, 6, 3, 3), 2.0, generator=seeded())
    assert int(weight.count_nonzero()) == 48
    w = weight[:4, :3, 1, 1]
    torch.testing.assert_close(w.T @ w, 4.0 * 4 / 3 * torch.eye(3))
    expected = torch.cat([torch.cat([w, -w], 1), torch.cat([-w, w], 1)])
    assert torch.equal(weight[:, :, 1, 1], expected)
    one = looks_linear_(torch.empty(5, 5), mirror_inputs=False, mirror_outputs=False)
    torch.testing.assert_close(one @ one.T, torch.eye(5))


def test_what_does_not_look_linear_is_refused() -> None:
    for shape in ((3, 4), (4, 3)):
        with pytest.raises(ValueError, match="even number of inner channels"):
            looks_linear_(torch.empty(shape))
    grouped = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2), nn.ReLU())
    with pytest.raises(ValueError, match="and 2 groups"):
        initialize_(grouped, distribution="looks_linear")
    small: dict[str, Any] = {"width": 1 / 8, "img_size": 8, "distribution": "looks_linear"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "norm='batch'"),
        ({"shortcut_weight": 0.0, "method": TAT()}, "method=TAT()"),
        ({"shortcut_weight": 0.0, "activation": "tanh"}, "activation='tanh'"),
        ({"shortcut_weight": 0.0, "stem": "imagenet"}, "stem='imagenet'"),
    ]
    for options, given in cases:
        with pytest.raises(ValueError, match="plain ReLU networks") as error:
            create_model("resnet18", **small, **options)
        assert given in str(error.value)


@pytest.mark.parametrize(("name", "depth"), [("tanh", 30), ("erf", 10)])
def test_squared_singular_values_have_the_spread_asked_for(name: str, depth: int) -> None:
    spread, width = 0.1, 200
    method = EOC(spread=spread)
    shape: dict[str, Any] = {"in_chans": width, "img_size": 1, "num_classes": width, "width": width}
    solution = solve(Graph.chain(depth), method, name)
    scale = solution.q - solution.sigma_b**2  # by the first layer, from q = 1
    means: list[float] = []
    variances: list[float] = []
    for seed in range(6):
        model = create_model(
            f"mlp{depth}", **shape, method=method, activation=name, generator=seeded(seed)
        )
        x = torch.randn(width, 1, 1, generator=seeded(100 + seed))
        squares = singular_values(model, x * math.sqrt(width) / x.norm()).square() / scale
        means.append(float(squares.mean()))
        variances.append(float(squares.var()))
    for found, expected in ((means, 1.0), (variances, spread)):
        error = 4.0 * float(np.std(found, ddof=1)) / math.sqrt(len(found))
        # Up to 1/width, finite width shifts what theory says of an infinite one.
        assert np.mean(found) == pytest.approx(expected, abs=error + expected / width)


def test_the_spread_is_solved_for_on_the_edge_of_chaos() -> None:
    shallow, deep = (solve(Graph.chain(d), EOC(spread=0.1), "tanh") for d in (10, 1000))
    # φ′² = 1 - 2x² near zero, so that the variance is 8 L q².
    assert deep.q == pytest.approx(math.sqrt(0.1 / 8000), rel=0.03)
    assert deep.q < shallow.q
    again = solve(Graph.chain(10), EOC(sigma_b=shallow.sigma_b), "tanh")
    assert (again.sigma_w, again.q) == pytest.approx((shallow.sigma_w, shallow.q))


def test_an_isometry_out_of_reach_says_what_is_within() -> None:
    with pytest.raises(UnreachableTargetError, match="distribution='looks_linear'"):
        solve(Graph.chain(50), EOC(spread=0.1), "relu")
    with pytest.raises(UnreachableTargetError, match="gelu has no edge of chaos at q"):
        solve(Graph.chain(50), EOC(spread=0.1), "gelu")
    with pytest.raises(ValueError, match="without shortcuts only"):
        solve(Graph.residual(3, shortcut_weight=0.5), EOC(spread=0.1), "tanh")
    with pytest.raises(ValueError, match="Give one of them"):
        EOC(sigma_b=0.1, spread=0.1)
    with pytest.raises(ValueError, match="spread must be finite and > 0"):
        EOC(spread=0.0)
