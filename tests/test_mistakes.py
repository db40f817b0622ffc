"""The mistakes that newcomers make: each is told what was asked, what was found, and what to do."""
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
        (lambda g: solve(100), "takes a Graph first"),
        (lambda g: solve("mlp:100"), "takes a Graph first"),
        (lambda g: solve(g, "tat"), r"'tat' for a method, but it takes TAT\(\.\.\.\)"),
        (lambda g: solve(g, TAT), "takes TAT"),
        (lambda g: solve(g, None), "takes TAT"),
        (lambda g: solve(g, TAT(), None), "asked for by None; give its name"),
        (lambda g: solve(g, TAT(), np.tanh), "give its name"),
        (lambda g: TAT("0.9"), "eta = '0.9' was asked for, but a number is needed"),
        (lambda g: TAT(eta=np.array([0.9])), "a number is needed"),
        (lambda g: DKS(None), "a number is needed"),
        (lambda g: EOC("0"), "a number is needed"),
        (lambda g: Graph.chain("100"), "depth is a whole number; found '100'"),
        (lambda g: Graph.chain(100.0), "depth is a whole number"),
        (lambda g: Graph([1, 2]), r"must be Input, Affine, .*, got 1\."),
        (lambda g: Graph.residual(3, shortcut_weight="0.8"), "is a number; found '0.8'"),
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
@pytest.mark.parametrize("method", [TAT(), DKS])
def test_a_method_is_no_solution(call, method) -> None:
    with pytest.raises(TypeError, match="for a solution, but that is what `solve` returns"):
        call(method)
