"""The activation of a network and the scale of its weights, given or solved for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from skipless.core.activations import Activation, leaky_relu
from skipless.core.activations import activation as look_up
from skipless.core.graph import Graph
from skipless.core.maps import q_map
from skipless.core.methods import DKS, EOC, TAT, Method
from skipless.core.solve import solve
from skipless.torch.activations import ShapedActivation
from skipless.torch.trace import trace

from .build import built
from .layers import ActivationFactory
from .plans import Interface, Plan, ResNetPlan
from .shaping import Shaping

_USUAL = {TAT: "leaky_relu", DKS: "softplus", EOC: "relu"}
_USUAL_PRELU_SLOPE = 0.25  # He et al. (2015)


@dataclass(frozen=True)
class Wish:
    """What was asked for; None is the usual one of the plan."""

    activation: str | None
    negative_slope: float | None
    method: Method | None
    clamp: bool


@dataclass(frozen=True)
class Choice:
    """What the network gets."""

    activation: ActivationFactory
    sigma_w: float
    sigma_b: float = 0.0
    shaping: Shaping | None = None


def chosen(plan: Plan, wish: Wish) -> Choice:
    """The activation that `plan` gets, which without normalisation is solved for if it can be."""
    if wish.activation == "prelu":
        return _parametric(wish)
    if str(wish.activation).lower() == "prelu":  # not in the table, which would suggest another
        raise ValueError(f"No activation is called {wish.activation!r}. Did you mean 'prelu'?")
    if wish.method is None and plan.norm != "none":
        return _as_it_is(wish)
    return _solved(plan, wish)


def _parametric(wish: Wish) -> Choice:
    """PReLU, whose slopes are trained, with the weights that suit their initial value."""
    if wish.method is not None:
        raise ValueError(
            f"{type(wish.method).__name__} was asked for with prelu, but its slopes are trained, "
            "and a method finds those that are not. Leave the method out, or use leaky_relu."
        )
    slope = _USUAL_PRELU_SLOPE if wish.negative_slope is None else wish.negative_slope
    return Choice(lambda channels: nn.PReLU(channels, slope), _preserving(leaky_relu(slope)))


def _as_it_is(wish: Wish) -> Choice:
    phi = look_up(wish.activation or "relu", wish.negative_slope)
    plain = phi is look_up("relu")
    return Choice(lambda _: nn.ReLU() if plain else ShapedActivation(phi), _preserving(phi))


def _solved(plan: Plan, wish: Wish) -> Choice:
    method = TAT() if wish.method is None else wish.method
    asked = f"{type(method).__name__} was to shape the network"
    if isinstance(plan, ResNetPlan) and plan.shortcut_weight is None:
        raise ValueError(
            f"{asked} with ordinary sums, whose terms normalisation weighs in a way that the "
            "theory does not follow. Give a shortcut_weight (0 for none) with norm='none' or "
            "'layer', or leave the method out."
        )
    if plan.norm == "batch":
        raise ValueError(
            f"{asked} with batch normalisation, which takes away what the samples of a batch have "
            "in common, so that no C map describes it. Use norm='none' or 'layer', or leave the "
            "method out."
        )
    if wish.negative_slope is not None and not isinstance(method, EOC):
        raise ValueError(
            f"{asked} with negative_slope={wish.negative_slope:g}, but it finds the slope itself. "
            "Leave one of them out, or use EOC()."
        )
    phi = look_up(wish.activation or _USUAL.get(type(method), "relu"), wish.negative_slope)
    graph = _graph(plan.thin())
    solution = solve(graph, method, phi, clamp=wish.clamp)
    shaping = Shaping(method, graph, solution)
    shaped = lambda _: ShapedActivation.from_solution(solution)
    return Choice(shaped, solution.sigma_w, solution.sigma_b, shaping)


@lru_cache(maxsize=64)
def _graph(plan: Plan) -> Graph:
    """The graph of `plan`, traced once in a process."""
    with torch.device("cpu"):
        network = built(plan, Interface(1, 1), lambda channels: nn.ReLU()).eval()
        return trace(network, torch.zeros(1, 1, 1, 1))


def _preserving(phi: Activation) -> float:
    """The σ_w with which a layer behind φ puts out q = 1 where φ reads q = 1; √2 for ReLU."""
    return q_map(phi, 1.0) ** -0.5
