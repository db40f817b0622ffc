"""Gradients that are looked at on the way are those that autograd gives when it is asked."""

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from skipless.optim.kfac.scores import backward_at


def layers(count: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(3, 3).double() for _ in range(count)]


def chain(x: Tensor) -> list[Tensor]:
    outputs: list[Tensor] = []
    for layer in layers(4):
        outputs.append(layer(outputs[-1].tanh() if outputs else x))
    return outputs


def diamond(x: Tensor) -> list[Tensor]:
    """Two branches that meet, one of them by a shortcut; what was before them comes last."""
    first, left, right, last = layers(4)
    a = first(x)
    b, c = left(a.relu()), right(a.sigmoid())
    return [a, b, c, last(b * c + a)]


def two_beginnings(x: Tensor) -> list[Tensor]:
    """The second one is at the end of a short branch, and yet no other layer is before it."""
    first, middle, other, last = layers(4)
    a, c = first(x), other(2.0 * x)
    b = middle(a.tanh())
    return [a, b, c, last(b + c)]


def shared(x: Tensor) -> list[Tensor]:
    layer, last = layers(2)
    a = layer(x)
    b = layer(a.tanh())
    return [a, b, last(b + a)]


def alone(x: Tensor) -> list[Tensor]:
    return [layers(1)[0](x)]


@pytest.mark.parametrize("network", [chain, diamond, two_beginnings, shared, alone])
def test_gradients_at_layers_are_those_of_autograd(network) -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    outputs = network(x)
    scores = torch.randn_like(outputs[-1])
    *expected, at_inputs = torch.autograd.grad(
        [outputs[-1]], [*outputs, x], [scores], retain_graph=True
    )
    found: dict[int, Tensor] = {}

    def see(index: int, gradient: Tensor) -> None:
        assert index not in found
        found[index] = gradient.clone()

    edges = [get_gradient_edge(output) for output in outputs]
    for leaves in ([], [x]):
        found.clear()
        at_leaves = backward_at(outputs[-1], scores, edges, leaves, see)
        assert sorted(found) == list(range(len(outputs)))
        for index, gradient in found.items():
            torch.testing.assert_close(gradient, expected[index], rtol=1e-14, atol=1e-14)
        assert len(at_leaves) == len(leaves)
        for gradient in at_leaves:
            torch.testing.assert_close(gradient, at_inputs, rtol=1e-14, atol=1e-14)


def test_layers_that_the_outputs_do_not_depend_on_are_not_seen() -> None:
    used, unused, other = layers(3)
    x = torch.ones(2, 3, dtype=torch.float64)
    a, dead = used(x), unused(x)
    outputs = other(a.detach())
    edges = [get_gradient_edge(t) for t in (a, dead, outputs)]
    seen: list[int] = []
    found = backward_at(
        outputs, torch.ones_like(outputs), edges, [used.weight], lambda index, _: seen.append(index)
    )
    assert seen == [2]
    assert found == [None]


def test_no_more_than_one_gradient_is_kept_at_a_time() -> None:
    edges: list[GradientEdge] = []
    x = torch.ones(2, 3, dtype=torch.float64)
    for layer in layers(9):
        x = layer(x.tanh())
        edges.append(get_gradient_edge(x))
    kept: list[weakref.ref[Tensor]] = []
    most = 0

    def see(index: int, gradient: Tensor) -> None:
        nonlocal most
        most = max(most, sum(own() is not None for own in kept))
        kept.append(weakref.ref(gradient))

    backward_at(x, torch.ones_like(x), edges, [], see)
    assert len(kept) == 9
    assert most <= 1


def test_hooks_are_removed_even_after_an_error() -> None:
    a, b = layers(2)
    first = a(torch.ones(2, 3, dtype=torch.float64))
    last = b(first)
    edges = [get_gradient_edge(first), get_gradient_edge(last)]

    def stop(index: int, gradient: Tensor) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        backward_at(last, torch.ones_like(last), edges, [], stop)
    last.sum().backward()
    assert a.weight.grad is not None


class Solver(torch.autograd.Function):
    """Its backward pass runs another one through the layers before it, as implicit layers do."""

    @staticmethod
    def forward(ctx, value: Tensor, inner: Tensor, inputs: Tensor) -> Tensor:
        ctx.inner, ctx.inputs = inner, inputs
        return value.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (more,) = torch.autograd.grad(ctx.inner, ctx.inputs, gradient, retain_graph=True)
        return gradient + more, None, None


def test_passes_inside_of_the_pass_are_not_seen() -> None:
    first, second, last = layers(3)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    a = first(x)
    b = second(a.tanh())
    outputs = last(Solver.apply(b, b, x))
    edges = [get_gradient_edge(t) for t in (a, b, outputs)]
    scores = torch.randn_like(outputs)
    expected = torch.autograd.grad([outputs], edges, [scores], retain_graph=True)
    found: dict[int, list[Tensor]] = {0: [], 1: [], 2: []}
    backward_at(outputs, scores, edges, [], lambda index, g: found[index].append(g.clone()))
    for index, gradients in found.items():
        assert len(gradients) == 1
        torch.testing.assert_close(gradients[0], expected[index], rtol=1e-14, atol=1e-14)
