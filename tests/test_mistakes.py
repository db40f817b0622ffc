"""Mistakes that newcomers make: each error says what is required, what it got and what to do."""
# pyright: reportArgumentType=false

import numpy as np
import pytest
import torch
from torch import nn

import skipless as sk
from skipless import DKS, EOC, TAT, Graph, solve
from skipless.core.predict import predict


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: solve(100), "expects a Graph first, got"),
        (lambda g: solve("mlp:100"), "expects a Graph first, got"),
        (lambda g: solve(g, "tat"), r"expects TAT\(\.\.\.\), .* got 'tat'"),
        (lambda g: solve(g, TAT), "expects TAT"),
        (lambda g: solve(g, None), "expects TAT"),
        (lambda g: solve(g, TAT(), None), "must be a name such as 'tanh', .* got None"),
        (lambda g: solve(g, TAT(), np.tanh), "must be a name such as 'tanh'"),
        (lambda g: TAT("0.9"), "eta must be a number, got '0.9'"),
        (lambda g: TAT(eta=np.array([0.9])), "must be a number, got"),
        (lambda g: DKS(None), "must be a number, got"),
        (lambda g: EOC("0"), "must be a number, got"),
        (lambda g: Graph.chain("100"), "depth must be an integer, got '100'"),
        (lambda g: Graph.chain(100.0), "depth must be an integer, got 100.0"),
        (lambda g: Graph([1, 2]), r"must be Input, Affine, .*, got 1\."),
        (
            lambda g: Graph.residual(3, shortcut_weight="0.8"),
            "shortcut_weight must be a number, got '0.8'",
        ),
    ],
)
def test_a_wrong_type_is_named_with_what_to_give_instead(call, message) -> None:
    with pytest.raises(TypeError, match=message):
        call(Graph.chain(20))


@pytest.mark.parametrize(
    "call",
    [
        lambda method: predict(Graph.chain(3), method),
        lambda method: sk.torch.ShapedActivation.from_solution(method),
        lambda method: sk.torch.check(nn.Linear(3, 3), torch.zeros(2, 3), method),
        lambda method: sk.jax.shaped(method),
        lambda method: sk.jax.check(lambda x: x, np.zeros((2, 3)), solution=method),
        lambda method: sk.keras.ShapedActivation.from_solution(method),
    ],
)
def test_a_method_is_not_a_solution(call) -> None:
    expected = r"Expected a Solution, which `solve` returns, got .*solve\(graph, TAT"
    for method in (TAT(), DKS):
        with pytest.raises(TypeError, match=expected):
            call(method)
