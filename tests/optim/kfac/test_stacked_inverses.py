"""Layers of one shape are multiplied together, a portion at a time, and each is left by itself."""

import pytest
import torch
from torch import Tensor, nn

from skipless.optim.kfac import blocks
from skipless.optim.kfac.blocks import CurvatureBlock, DampedInverses, Eigenbases, StackedInverses
from skipless.optim.kfac.layers import find_layers

DAMPING = 0.3


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def random_stack(kind: type[StackedInverses], groups: int) -> StackedInverses:
    """Six layers with random numbers; inverses are symmetric."""
    model = nn.Sequential(*(nn.Conv1d(4, 6, 2, groups=groups) for _ in range(6))).double()
    stack = kind([CurvatureBlock(layer) for layer in find_layers(model)[0]])
    for block in stack.blocks:
        for name, tensor in stack.tensors(block).items():
            tensor.copy_(draw(*tensor.shape).abs())
            if name.startswith("inverse"):
                tensor.add_(tensor.mT.clone())
    return stack


def by_kronecker(
    stack: StackedInverses, block: CurvatureBlock, matrix: Tensor, group: int
) -> Tensor:
    """Inverse curvature of one group, written out, times a matrix (rows, columns)."""
    own = [tensor[group] for tensor in stack.tensors(block).values()]
    if len(own) == 2:  # inverses of both factors
        whole = torch.kron(own[0], own[1])
    else:  # axes of both, and the curvature along them
        axes = torch.kron(own[0], own[1])
        whole = axes @ torch.diag(1 / (own[2].flatten() + DAMPING)) @ axes.T
    return (whole @ matrix.flatten()).view_as(matrix)


@pytest.mark.parametrize("kind", [DampedInverses, Eigenbases])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("chosen", [(0, 1, 2, 3, 4, 5), (1, 2, 3), (0, 2, 3, 5), (4,)])
@pytest.mark.parametrize("portion", [1, 2, 6])
def test_any_layers_of_a_stack_are_multiplied_each_by_its_own(
    kind: type[StackedInverses],
    groups: int,
    chosen: tuple[int, ...],
    portion: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    stack = random_stack(kind, groups)
    own = [stack.blocks[index] for index in chosen]
    each = 8 * sum(p.numel() for p in own[0].layer.parameters)
    monkeypatch.setattr(blocks, "CACHED_BYTES", portion * each)
    gradients = {p: draw(*p.shape) for block in own for p in block.layer.parameters}
    found = stack.apply(own, gradients, DAMPING)
    assert set(found) == set(gradients)
    for block in own:
        given, solved = (block.layer.matrices(values) for values in (gradients, found))
        for group in range(groups):
            expected = by_kronecker(stack, block, given[group], group)
            torch.testing.assert_close(solved[group], expected, rtol=1e-10, atol=1e-10)
        for parameter in block.layer.parameters:
            assert found[parameter].is_contiguous()
