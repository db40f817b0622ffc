"""The activations, points and solutions on which every framework is compared with `core`."""

from functools import cache

import numpy as np

from skipless import DKS, EOC, TAT, Graph, Solution, activation_names, solve
from skipless import activation as core_activation
from skipless.core.activations import celu, elu, leaky_relu, soft_shrink, softplus

KNOWN = [
    *map(core_activation, activation_names()),
    *(leaky_relu(slope) for slope in (-0.25, 0.0, 0.3, 1.0)),
    elu(0.3),
    elu(-1e-7),
    celu(0.3),
    softplus(1.7),
    soft_shrink(1.5),
]
# Both tails, and no kink.
TAILS = [1e-6, 1e-3, 0.95, 12.3, 25.6, 39.0, 120.4, 1000.0, 1e6]
POINTS = np.array([*np.linspace(-8.3, 8.3, 40), *TAILS, *(-x for x in TAILS)])
CHAIN = Graph.chain(30)
SHAPED = {
    "TAT leaky_relu": (TAT(), "leaky_relu"),
    "TAT tanh": (TAT(), "tanh"),
    "TAT softplus": (TAT(), softplus(1.7)),
    "DKS leaky_relu": (DKS(), "leaky_relu"),
    "DKS gelu": (DKS(), "gelu"),
    "DKS celu": (DKS(), celu(0.3)),
    "EOC relu": (EOC(), "relu"),
    "EOC leaky_relu": (EOC(), leaky_relu(0.2)),
}


@cache
def solved(name: str) -> Solution:
    """Solves when a test asks: every process imports this module, and few of them need it."""
    return solve(CHAIN, *SHAPED[name])
