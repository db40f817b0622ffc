"""K-FAC's factors and directions are those of curvlinops, another implementation of them."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipless.optim import KFAC
from skipless.optim.settings import Loss

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports uses torch.jit.script
    curvlinops = pytest.importorskip(
        "curvlinops",
        reason="pip install --no-deps curvlinops-for-pytorch==3.0.1 einconv==0.1.0 einops==0.8.2 "
        "linear_operator==0.6.1 (its other dependencies are ours, or are not imported)",
    )

DAMPING = 0.03
LOSSES: dict[Loss, nn.Module] = {
    "cross_entropy": nn.CrossEntropyLoss(),
    "binary_cross_entropy": nn.BCEWithLogitsLoss(),
    "mse": nn.MSELoss(),
}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Linear(4, 3)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False),
        nn.Tanh(),
        nn.Conv2d(5, 2, 1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def labels_for(outputs: Tensor, loss: Loss) -> Tensor:
    if loss == "cross_entropy":
        return torch.randint(outputs.shape[1], outputs.shape[:1])
    return torch.randint(2, outputs.shape).to(outputs.dtype)


def theirs(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> Any:
    """The operator of curvlinops with the expectation over all labels; biases go with weights."""
    operator = curvlinops.KFACLinearOperator(
        model,
        LOSSES[loss],
        list(model.parameters()),
        [(inputs, labels)],
        fisher_type=curvlinops.FisherType.TYPE2,
        kfac_approx=curvlinops.KFACType.EXPAND,
        separate_weight_and_bias=False,
        check_deterministic=False,  # it computes the factors too, and they would add up
    )
    operator.compute_kronecker_factors()
    return operator


def ours(
    model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss, *, eigenbasis: bool = False
) -> tuple[dict[str, tuple[Tensor, Tensor]], list[Tensor], list[Tensor]]:
    """The factors by the layers' names, gradients, and what is subtracted for them in a step."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = KFAC(
        model,
        lr=1.0,
        momentum=0.0,
        damping=DAMPING,
        norm_constraint=None,
        burn_in=0,
        loss=loss,
        fisher="exact",
        eigenbasis=eigenbasis,
    )
    outputs = model(inputs)
    optimizer.curvature(outputs)
    LOSSES[loss](outputs, labels).backward()
    optimizer.step()
    factors = {
        layer.name: (block.inputs, block.outputs)
        for layer, block in optimizer._estimate.blocks.of_layer.items()
    }
    gradients = [parameter.grad for parameter in model.parameters()]
    steps = [old - p.detach() for old, p in zip(before, model.parameters(), strict=True)]
    return factors, gradients, steps  # pyright: ignore[reportReturnType]


def close(found: Tensor, expected: Tensor) -> None:
    error = torch.linalg.vector_norm(found - expected)
    assert float(error) <= 1e-9 * float(torch.linalg.vector_norm(expected))


@pytest.mark.parametrize("network", [dense, convolutional])
@pytest.mark.parametrize("loss", LOSSES)
def test_factors_and_directions_are_those_of_curvlinops(
    network: Callable[[], nn.Module], loss: Loss
) -> None:
    model, inputs = network(), torch.randn(6, 4, 4, 4)
    labels = labels_for(model(inputs), loss)
    operator = theirs(model, inputs, labels, loss)
    inverse = curvlinops.KFACInverseLinearOperator(
        operator, damping=DAMPING, use_heuristic_damping=True
    )
    found, gradients, steps = ours(model, inputs, labels, loss)
    for name, (of_inputs, of_outputs) in found.items():
        close(of_inputs[0], operator._input_covariances[name])
        close(of_outputs[0], operator._gradient_covariances[name])
    for own, other in zip(steps, inverse @ gradients, strict=True):
        close(own, other)


@pytest.mark.parametrize("network", [dense, convolutional])
def test_new_axes_give_the_directions_of_curvlinops_with_exact_damping(
    network: Callable[[], nn.Module],
) -> None:
    model, inputs = network(), torch.randn(6, 4, 4, 4)
    labels = labels_for(model(inputs), "cross_entropy")
    operator = theirs(model, inputs, labels, "cross_entropy")
    inverse = curvlinops.KFACInverseLinearOperator(
        operator, damping=DAMPING, use_exact_damping=True
    )
    _, gradients, steps = ours(model, inputs, labels, "cross_entropy", eigenbasis=True)
    for own, other in zip(steps, inverse @ gradients, strict=True):
        close(own, other)


class Split(nn.Module):
    """A convolution in groups, as one convolution for each group, next to each other.

    curvlinops takes the mean of the inputs over groups, which is no curvature of anything.
    """

    def __init__(self, grouped: nn.Conv2d) -> None:
        super().__init__()
        n = grouped.groups
        self.each = nn.ModuleList(
            nn.Conv2d(
                grouped.in_channels // n,
                grouped.out_channels // n,
                3,
                stride=grouped.stride,  # pyright: ignore[reportArgumentType]
                padding=grouped.padding,  # pyright: ignore[reportArgumentType]
            )
            for _ in range(n)
        )
        assert grouped.bias is not None
        weights, biases = grouped.weight.detach().chunk(n), grouped.bias.detach().chunk(n)
        for own, weight, bias in zip(self.each, weights, biases, strict=True):
            own.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self.each, x.chunk(len(self.each), dim=1), strict=True)
        return torch.cat([own(part) for own, part in parts], dim=1)


def test_a_convolution_in_groups_is_as_many_convolutions_to_curvlinops() -> None:
    grouped = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    split, head, inputs = Split(grouped), nn.Linear(24, 3), torch.randn(6, 4, 4, 4)
    model, equivalent = (
        nn.Sequential(first, nn.Tanh(), nn.Flatten(), head) for first in (grouped, split)
    )
    torch.testing.assert_close(model(inputs), equivalent(inputs))
    labels = labels_for(model(inputs), "cross_entropy")
    operator = theirs(equivalent, inputs, labels, "cross_entropy")
    inverse = curvlinops.KFACInverseLinearOperator(
        operator, damping=DAMPING, use_heuristic_damping=True
    )
    parameters = list(equivalent.parameters())
    loss = nn.functional.cross_entropy(equivalent(inputs), labels)
    directions = inverse @ list(torch.autograd.grad(loss, parameters))
    found, _, steps = ours(model, inputs, labels, "cross_entropy")
    for group, (of_inputs, of_outputs) in enumerate(zip(*found["0"], strict=True)):
        close(of_inputs, operator._input_covariances[f"0.each.{group}"])
        close(of_outputs, operator._gradient_covariances[f"0.each.{group}"])
    close(steps[0], torch.cat([directions[0], directions[2]]))
    close(steps[1], torch.cat([directions[1], directions[3]]))
