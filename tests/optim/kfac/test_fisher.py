"""K-FAC's curvature, and the steps by it, are those of dense matrices from brute force."""

from collections.abc import Callable, Iterator
from math import nan

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from optim.kfac.dense_fisher import (
    Array,
    DenseKFAC,
    Vectors,
    brute_force_factors,
    dense_fisher,
    summed_loss,
    terms,
)
from skipless.optim import KFAC
from skipless.optim.kfac.blocks import CurvatureBlock, Eigenbases
from skipless.optim.settings import Fisher, Loss

LOSSES: tuple[Loss, ...] = ("cross_entropy", "binary_cross_entropy", "mse")


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def kfac(model: nn.Module, lr: float | None = 0.5, **settings: object) -> KFAC:
    """K-FAC with the exact Fisher matrix and plain steps, unless other settings are given."""
    plain = {"momentum": 0.0, "norm_constraint": None, "burn_in": 0, "inverse_period": 1}
    return KFAC(model, lr, **(plain | {"fisher": "exact"} | settings))  # pyright: ignore


def block_of(optimizer: KFAC, module: nn.Module) -> CurvatureBlock:
    blocks = optimizer._estimate.blocks
    return next(block for layer, block in blocks.of_layer.items() if layer.module is module)


def factors_of(optimizer: KFAC, module: nn.Module) -> list[tuple[Array, Array]]:
    """The factors of the inputs and of the outputs of each group of a layer."""
    block = block_of(optimizer, module)
    of_inputs = block.inputs if block.inputs.ndim == 3 else torch.diag_embed(block.inputs)
    return list(zip(of_inputs.numpy(), block.outputs.numpy(), strict=True))


def some_labels(outputs: Tensor, loss: Loss) -> Tensor:
    shape = outputs[:, 0].shape if loss == "cross_entropy" else outputs.shape
    drawn = torch.randint(2, shape)
    return drawn if loss == "cross_entropy" else drawn.to(outputs.dtype)


def step(optimizer: KFAC, model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> Array:
    """What a step changes all parameters by."""
    before = Vectors(model).values
    optimizer.zero_grad()
    outputs = model(inputs)
    optimizer.curvature(outputs)
    (summed_loss(outputs, labels, loss) / terms(outputs, loss)).backward()
    optimizer.step()
    return Vectors(model).values - before


def same(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("loss", "batch"), [("mse", 6), ("cross_entropy", 1)])
def test_the_fisher_matrix_of_one_layer_is_the_dense_one(loss: Loss, batch: int) -> None:
    model, inputs = nn.Linear(4, 3), torch.randn(batch, 4)
    optimizer = kfac(model, lr=0.5, damping=0.1, loss=loss)
    whole = dense_fisher(model, inputs, loss)
    labels = some_labels(model(inputs), loss)
    gradient = Vectors(model).gradient(summed_loss(model(inputs), labels, loss))
    gradient /= terms(model(inputs), loss)
    change = step(optimizer, model, inputs, labels, loss)
    ((of_inputs, of_outputs),) = factors_of(optimizer, model)
    (order,) = Vectors(model).indices(model)
    same(np.kron(of_outputs, of_inputs), whole[np.ix_(order, order)])
    # The factored damping adds to the product what is left of (A + πγ)⊗(G + γ/π), with γ² = 0.1.
    pi = np.sqrt((np.trace(of_inputs) / 5) / (np.trace(of_outputs) / 3))
    extra = np.kron(of_outputs, pi * np.eye(5)) + np.kron(np.eye(3) / pi, of_inputs)
    damped = whole[np.ix_(order, order)] + np.sqrt(0.1) * extra + 0.1 * np.eye(15)
    same(change[order], -0.5 * np.linalg.solve(damped, gradient[order]))


def test_every_diagonal_block_of_a_deep_linear_network_is_the_dense_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 3))
    inputs = torch.randn(7, 3)
    optimizer = kfac(model, loss="mse")
    whole = dense_fisher(model, inputs, "mse")
    step(optimizer, model, inputs, torch.randn(7, 3), "mse")
    for module in model:
        ((of_inputs, of_outputs),) = factors_of(optimizer, module)
        (order,) = Vectors(model).indices(module)
        same(np.kron(of_outputs, of_inputs), whole[np.ix_(order, order)])


def ending_in_classes(*layers: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    """A network of these layers and a linear one for three classes, and a batch for it."""
    body = nn.Sequential(*layers, nn.Tanh(), nn.Flatten())
    inputs = torch.randn(3, *shape)
    return nn.Sequential(body, nn.Linear(body(inputs).shape[1], 3)), inputs


CONVOLUTIONS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "padded": lambda: ending_in_classes(
        nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2, bias=False), shape=(2, 3, 4)
    ),
    "strided": lambda: ending_in_classes(
        nn.Conv2d(2, 3, 3, stride=(2, 1), padding=(1, 0)), shape=(2, 5, 4)
    ),
    "dilated": lambda: ending_in_classes(
        nn.Conv2d(2, 2, (3, 2), dilation=2, padding=2), shape=(2, 4, 3)
    ),
    "even, to the same size": lambda: ending_in_classes(
        nn.Conv2d(2, 2, (2, 3), padding="same"), shape=(2, 3, 3)
    ),
    "around": lambda: ending_in_classes(
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), shape=(2, 3, 4)
    ),
    "one by one": lambda: ending_in_classes(nn.Conv2d(3, 2, 1, stride=2), shape=(3, 3, 3)),
    "in groups": lambda: ending_in_classes(
        nn.Conv2d(4, 6, 3, padding=1, groups=2), shape=(4, 3, 3)
    ),
    "in groups, no bias": lambda: ending_in_classes(
        nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, bias=False), shape=(4, 3, 3)
    ),
    "depthwise": lambda: ending_in_classes(
        nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 2, 1), shape=(3, 3, 3)
    ),
    "depthwise, two each": lambda: ending_in_classes(
        nn.Conv2d(2, 4, 2, groups=2, bias=False), shape=(2, 3, 3)
    ),
    "a scale for each channel": lambda: ending_in_classes(
        nn.Conv2d(2, 4, 1, groups=2, bias=False), shape=(2, 2, 2)
    ),
    "of sequences": lambda: ending_in_classes(
        nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), shape=(2, 7)
    ),
    "of volumes": lambda: ending_in_classes(
        nn.Conv3d(2, 2, (1, 2, 2), stride=(1, 2, 1), padding=(0, 1, 1), groups=2),
        shape=(2, 2, 2, 3),
    ),
}


def assert_three_steps_agree(
    model: nn.Module,
    batches: list[Tensor],
    *,
    loss: Loss = "cross_entropy",
    bound: float = 0.001,
    same_layers: dict[nn.Module, nn.Module] | None = None,
) -> None:
    """With all that makes a step: damping, penalty, norm constraint, momentum, running means."""
    lr, momentum, l2 = 0.3, 0.8, 0.02
    settings = {"damping": 0.05, "l2": l2, "curvature_ema": 0.7, "loss": loss}
    optimizer = kfac(model, lr, momentum=momentum, norm_constraint=bound, **settings)
    dense = DenseKFAC(model, damping=0.05, l2=l2, ema=0.7, loss=loss, same=same_layers)
    velocity = np.zeros_like(dense.vectors.values)
    for inputs in batches:
        outputs = model(inputs)
        labels = some_labels(outputs, loss)
        dense.see(inputs)
        gradient = dense.gradient(summed_loss(outputs, labels, loss) / terms(outputs, loss))
        direction = dense.direction(gradient)
        shortened = min(1.0, np.sqrt(bound / (lr**2 * (direction @ gradient))))
        assert (shortened < 1.0) == (bound < 1.0)
        velocity = momentum * velocity - lr * shortened * direction
        same(step(optimizer, model, inputs, labels, loss), velocity)
        for module in dense.seen[0]:
            for found, expected in zip(
                factors_of(optimizer, module), dense.factors(module), strict=True
            ):
                same(found[0], expected[0])
                same(found[1], expected[1])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_three_steps_of_a_convolutional_network_are_those_by_dense_matrices(kind: str) -> None:
    model, inputs = CONVOLUTIONS[kind]()
    batches = [inputs, torch.randn_like(inputs), torch.randn_like(inputs)]
    assert_three_steps_agree(model, batches)


@pytest.mark.parametrize("bound", [0.001, 100.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_three_steps_by_each_loss_are_those_by_dense_matrices(loss: Loss, bound: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    batches = [torch.randn(4, 3) for _ in range(3)]
    assert_three_steps_agree(model, batches, loss=loss, bound=bound)


@pytest.mark.parametrize("padding", [None, 2])
def test_an_embedding_steps_by_its_dense_matrices(padding: int | None) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=padding), nn.Flatten(), nn.Linear(6, 3))
    batches = [torch.tensor([[0, 2], [1, 1], [2, 3], [4, code]]) for code in (0, 3, 2)]
    assert_three_steps_agree(model, batches)


class Twice(nn.Module):
    """A network that uses its middle layer two times, or two layers that share all they have."""

    def __init__(self, *, modules: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.again = self.middle
        if modules == 2:
            self.again = nn.Linear(4, 4)
            self.again.weight, self.again.bias = self.middle.weight, self.middle.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.middle(self.first(x).tanh()).tanh()).tanh())


@pytest.mark.parametrize("modules", [1, 2])
def test_a_layer_that_is_used_twice_has_rows_from_both_uses(modules: int) -> None:
    model = Twice(modules=modules)
    same_layers: dict[nn.Module, nn.Module] = {model.again: model.middle}
    batches = [torch.randn(4, 3) for _ in range(3)]
    assert_three_steps_agree(model, batches, same_layers=same_layers)


def test_each_time_of_a_sequence_is_a_row() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Flatten(0, 1))
    batches = [torch.randn(2, 3, 3) for _ in range(3)]
    assert_three_steps_agree(model, batches)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_is_divided_by_another_number_tells_it(loss: Loss) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs, optimizer = torch.randn(4, 3), kfac(model, loss=loss)
    optimizer.curvature(model(inputs), divisor=5)
    optimizer._estimate.update(0.0)
    for module, expected in brute_force_factors(model, inputs, loss, divisor=5).items():
        ((of_inputs, of_outputs),) = factors_of(optimizer, module)
        same(of_inputs, expected.inputs[0])
        same(of_outputs, expected.outputs[0])


@pytest.mark.parametrize("loss", LOSSES)
def test_parts_of_a_batch_add_up_to_the_step_of_the_whole(loss: Loss) -> None:
    changes = []
    inputs = torch.randn(6, 2, 3, 3)
    for parts in (1, 3):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(2, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
        labels = some_labels(model(inputs), loss)
        optimizer = kfac(model, loss=loss)
        before = Vectors(model).values
        for x, y in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
            outputs = model(x)
            optimizer.curvature(outputs)
            (summed_loss(outputs, y, loss) / terms(outputs, loss) / parts).backward()
        optimizer.step()
        changes.append(Vectors(model).values - before)
    assert np.abs(changes[0]).max() > 1e-3
    same(changes[1], changes[0])


def assert_mean_is_near(
    optimizer: KFAC,
    model: nn.Module,
    inputs: Tensor,
    read: Callable[[], Array],
    expected: Array,
    draws: int = 300,
) -> None:
    """What is read after each of many draws of labels is right on average."""
    found = []
    for number in range(1, draws + 1):
        optimizer.steps = number
        optimizer.curvature(model(inputs))
        optimizer._estimate.update(0.0)  # nothing is kept of earlier draws
        found.append(read().copy())
    error = np.std(found, axis=0) / np.sqrt(draws)
    off = np.abs(np.mean(found, axis=0) - expected)
    assert (off <= 4 * error + 1e-10).all()
    assert 4 * error.max() < 0.5 * np.abs(expected).max()  # so that this is not an empty claim


class OverTime(nn.Module):
    """A network that predicts a class for each time, from several times: (examples, classes, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix = nn.Conv1d(2, 2, 1), nn.Conv1d(2, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.first(x).tanh())


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_that_are_drawn_give_the_exact_factors_on_average(loss: Loss) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))
    inputs, optimizer = torch.randn(4, 3), kfac(model, fisher="sampled", loss=loss)
    exact = brute_force_factors(model, inputs, loss)[model[0]].outputs[0]
    read = lambda: factors_of(optimizer, model[0])[0][1]
    assert_mean_is_near(optimizer, model, inputs, read, exact)


@pytest.mark.parametrize("fisher", ["sampled", "exact"])
def test_labels_of_one_example_do_not_mix(fisher: Fisher) -> None:
    model, inputs = OverTime(), torch.randn(2, 2, 3)
    optimizer = kfac(model, fisher=fisher)
    exact = brute_force_factors(model, inputs, "cross_entropy")[model.first].outputs[0]
    read = lambda: factors_of(optimizer, model.first)[0][1]
    assert_mean_is_near(optimizer, model, inputs, read, exact)


@pytest.mark.parametrize("fisher", ["sampled", "exact"])
@pytest.mark.parametrize("loss", LOSSES)
def test_other_parameters_have_the_diagonal_on_average(fisher: Fisher, loss: Loss) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.PReLU(4), nn.Linear(4, 3))
    inputs, optimizer = torch.randn(4, 3), kfac(model, fisher=fisher, loss=loss)
    diagonal = np.diag(dense_fisher(model, inputs, loss))
    others = [n for n, _ in model.named_parameters() if n.startswith(("1.", "2."))]
    exact = np.concatenate([diagonal[Vectors(model).places[name]] for name in others])
    means = optimizer._estimate.diagonal.means
    assert [optimizer._estimate.names[p] for p in means] == others
    read = lambda: np.concatenate([mean.numpy() for mean in means.values()])
    assert_mean_is_near(optimizer, model, inputs, read, exact)


def test_other_parameters_step_by_their_diagonal() -> None:
    model, inputs = nn.Sequential(nn.Linear(3, 3), nn.PReLU(3)), torch.randn(1, 3)
    optimizer = kfac(model, damping=0.1, l2=0.05, loss="binary_cross_entropy")
    whole, labels = dense_fisher(model, inputs, "binary_cross_entropy"), torch.ones(1, 3)
    loss = F.binary_cross_entropy_with_logits(model(inputs), labels)
    slopes = Vectors(model).places["1.weight"]
    gradient = Vectors(model).gradient(loss)[slopes]
    change = step(optimizer, model, inputs, labels, "binary_cross_entropy")[slopes]
    # One example, and an output for each slope: the sum over labels is exact, whatever the signs.
    same(change, -0.5 * gradient / (np.diag(whole)[slopes] + 0.15))


def eigenbasis_of(optimizer: KFAC, module: nn.Module) -> tuple[Array, Array]:
    """The axes of one layer, in columns, and the curvature along them."""
    block = block_of(optimizer, module)
    stack = optimizer._estimate.blocks._stack_of[block]
    assert isinstance(stack, Eigenbases)
    kept = {name: tensor.numpy() for name, tensor in stack.tensors(block).items()}
    return np.kron(kept["axes_outputs"][0], kept["axes_inputs"][0]), kept["scales"][0].flatten()


def test_new_axes_invert_the_product_of_the_factors_with_damping() -> None:
    model, inputs = ending_in_classes(nn.Conv2d(4, 4, 2, groups=2), shape=(4, 3, 3))
    optimizer = kfac(model, damping=0.02, l2=0.03, eigenbasis=True)
    dense = DenseKFAC(model, damping=0.02, l2=0.03)
    dense.see(inputs)
    labels = torch.tensor([0, 2, 1])
    gradient = dense.gradient(F.cross_entropy(model(inputs), labels))
    damped = dense.curvature() + 0.05 * np.eye(len(gradient))
    change = step(optimizer, model, inputs, labels, "cross_entropy")
    same(change, -0.5 * np.linalg.solve(damped, gradient))


@pytest.mark.parametrize("fisher", ["sampled", "exact"])
def test_curvature_along_the_axes_is_that_of_the_dense_matrix_on_average(fisher: Fisher) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    inputs = torch.randn(4, 3)
    optimizer = kfac(model, lr=0.0, eigenbasis=True, fisher=fisher)
    step(optimizer, model, inputs, torch.tensor([0, 1, 2, 0]), "cross_entropy")
    axes, products = eigenbasis_of(optimizer, model[0])
    (order,) = Vectors(model).indices(model[0])
    block = dense_fisher(model, inputs, "cross_entropy")[np.ix_(order, order)]
    exact = np.diag(axes.T @ block @ axes)
    assert np.abs(products - exact).max() > 0.05 * exact.max()  # what there is to be gained
    assert_mean_is_near(
        optimizer, model, inputs, lambda: eigenbasis_of(optimizer, model[0])[1], exact
    )


DAMPING, L2 = 0.2, 0.05


def promise(curvature: Array, gradient: Array, change: Array, penalised: Array) -> float:
    """What the quadratic model says of the loss with its penalty."""
    curved = curvature @ change + L2 * penalised * change
    return float(gradient @ change + 0.5 * change @ curved)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_rate_and_momentum_are_best_in_the_dense_quadratic_model(loss: Loss) -> None:
    model, _ = ending_in_classes(nn.Conv2d(2, 2, 2), shape=(2, 3, 3))
    optimizer = kfac(model, None, damping=DAMPING, l2=L2, loss=loss, curvature_ema=0.7)
    dense = DenseKFAC(model, DAMPING, L2, ema=0.7, loss=loss)
    velocity = np.zeros_like(dense.vectors.values)
    for number in range(3):
        inputs = torch.randn(3, 2, 3, 3)
        outputs = model(inputs)
        labels = some_labels(outputs, loss)
        dense.see(inputs)
        gradient = dense.gradient(summed_loss(outputs, labels, loss) / terms(outputs, loss))
        penalty = np.diag(L2 * dense.vectors.penalised + DAMPING)
        curved = dense_fisher(model, inputs, loss) + penalty
        plane = np.stack([dense.direction(gradient), velocity])[: number + 1].T[:, :2]
        best = -np.linalg.solve(plane.T @ curved @ plane, plane.T @ gradient)
        velocity = plane @ best
        same(step(optimizer, model, inputs, labels, loss), velocity)
        assert optimizer.chosen == pytest.approx((-best[0], *best[1:], 0.0)[:2], rel=1e-8)


def test_a_network_of_one_weight_goes_to_the_bottom_of_its_damped_quadratic_model() -> None:
    """The last step is along the natural gradient here, so that they span no plane."""
    model, inputs, labels = nn.Linear(1, 1, bias=False), torch.randn(5, 1), torch.randn(5, 1)
    optimizer = kfac(model, None, damping=DAMPING, loss="mse")
    for _ in range(8):
        gradient = Vectors(model).gradient(F.mse_loss(model(inputs), labels))
        change = step(optimizer, model, inputs, labels, "mse")
        curvature = 2.0 * float(inputs.square().mean())  # the second derivative of the mean square
        np.testing.assert_allclose(change, -gradient / (curvature + DAMPING), rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_where_there_is_no_gradient_nothing_moves_by_the_quadratic_model(steps_before: int) -> None:
    model, inputs = nn.Linear(2, 2), torch.randn(5, 2)
    optimizer = kfac(model, None, loss="mse")
    for _ in range(steps_before):
        step(optimizer, model, inputs, torch.zeros(5, 2), "mse")
    change = step(optimizer, model, inputs, model(inputs).detach(), "mse")
    same(change, np.zeros_like(change))


@pytest.mark.parametrize(
    ("ratio", "factor"),
    [(0.76, 0.9), (0.74, 1.0), (0.26, 1.0), (0.24, 1 / 0.9), (-1.0, 1 / 0.9), (nan, 1 / 0.9)],
)
@pytest.mark.parametrize("lr", [0.3, None])
def test_damping_follows_how_much_of_the_promise_comes_about(
    lr: float | None, ratio: float, factor: float
) -> None:
    """The closure makes up its losses, so that the change is that ratio of what was promised."""
    model, inputs = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), torch.randn(4, 3)
    labels = torch.tensor([0, 1, 2, 0])
    optimizer = kfac(model, lr, damping=DAMPING, l2=L2, damping_period=1)
    dense = DenseKFAC(model, DAMPING, L2)
    dense.see(inputs)
    gradient = dense.gradient(F.cross_entropy(model(inputs), labels))
    curvature = dense.curvature() if lr else dense_fisher(model, inputs, "cross_entropy")
    start, penalised = dense.vectors.values, dense.vectors.penalised

    def closure() -> float:
        change = dense.vectors.values - start
        optimizer.zero_grad()
        outputs = model(inputs)
        optimizer.curvature(outputs)
        F.cross_entropy(outputs, labels).backward()
        if not change.any():
            return 7.0
        penalty = 0.5 * L2 * (penalised * ((start + change) ** 2 - start**2)).sum()
        return 7.0 + ratio * promise(curvature, gradient, change, penalised) - penalty

    assert optimizer.step(closure) == 7.0
    assert optimizer.damping == pytest.approx(DAMPING * factor, rel=1e-12)
