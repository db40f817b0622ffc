"""The mistakes that newcomers make: each is told what was asked, what was found, and what to do."""
# pyright: reportArgumentType=false

import numpy as np
import pytest

from skipless import DKS, EOC, TAT, Graph, solve


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
        (lambda g: Graph([1, 2]), "made of nodes; found 1"),
        (lambda g: Graph.residual(3, shortcut_weight="0.8"), "is a number; found '0.8'"),
    ],
)
def test_a_wrong_type_is_named_with_what_to_give_instead(call, message) -> None:
    with pytest.raises(TypeError, match=message):
        call(Graph.chain(20))
