"""Three steps of K-FAC are those of kfac-jax, with which the paper trained, to rounding errors."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from kfac_jax_environment import PYTHON, in_its_environment
from skipless.optim import KFAC
from skipless.optim.kfac.blocks import CurvatureBlock

Arrays = dict[str, np.ndarray]

pytestmark = in_its_environment
L2, DAMPING = 1e-3, 1e-2
SHAPES = {
    "mlp": {"dense0": (7, 6), "dense1": (6, 4), "dense2": (4, 5)},
    "convolutional": {"conv0": (3, 3, 3, 2), "conv1": (3, 3, 2, 4), "dense2": (36, 5)},
}
STRIDES = [1, 2]


@dataclass(frozen=True)
class Case:
    """A network, and steps of a fixed size or, without a learning rate, by the quadratic model."""

    kind: str
    lr: float | None = None
    damping: float = DAMPING
    gain: float = 1.0


# The convolutional network ends with a layer as the MLP's, and JAX takes long to compile.
FIXED = [Case("convolutional", lr=0.01)]
ADAPTIVE = [Case("mlp", damping=1.0), Case("convolutional", damping=1e-4, gain=6.0)]


def task(case: Case) -> Arrays:
    """Weights, three batches, their labels, and those to take curvature with."""
    kind = case.kind
    random = np.random.default_rng(7)
    image = (7,) if kind == "mlp" else (6, 6, 3)
    given: Arrays = {
        "xs": random.normal(size=(3, 8, *image)),
        "labels": random.integers(5, size=(3, 8)),
        "drawn": random.integers(5, size=(3, 8)),
        "strides": np.array(STRIDES),
        "damping": np.array(case.damping),
        "adaptive": np.array(case.lr is None),
    }
    for name, shape in SHAPES[kind].items():
        given[f"{name}_w"] = case.gain * random.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))
        given[f"{name}_b"] = 0.3 * random.normal(size=shape[-1])
    return given


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Arrays]:
    """What kfac-jax makes of all cases, in one process, as it takes long to start."""
    folder = tmp_path_factory.mktemp("kfac_jax")
    command = [str(PYTHON), str(Path(__file__).with_name("kfac_jax_oracle.py"))]
    targets: dict[Case, Path] = {}
    for number, case in enumerate([*FIXED, *ADAPTIVE]):
        source, targets[case] = folder / f"{number}_in.npz", folder / f"{number}_out.npz"
        np.savez(source, **task(case))  # pyright: ignore[reportArgumentType]
        command += [str(source), str(targets[case])]
    without_ours = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = without_ours | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {case: dict(np.load(target)) for case, target in targets.items()}


class ChannelsLast(nn.Module):
    """Pixels in the order in which JAX lays them out."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def network(kind: str, given: Arrays) -> tuple[nn.Sequential, dict[str, nn.Module]]:
    """The network with those weights, and its layers by name."""
    layers: dict[str, nn.Module] = {}
    modules: list[nn.Module] = []
    for index, (name, shape) in enumerate(SHAPES[kind].items()):
        if name.startswith("conv"):
            layer = nn.Conv2d(shape[2], shape[3], 3, stride=STRIDES[index], padding=1)
        else:
            layer = nn.Linear(*shape)
            modules += [ChannelsLast()] if kind == "convolutional" else []
        layer.double().load_state_dict(
            {
                "weight": torch.tensor(as_in_torch(given[f"{name}_w"])),
                "bias": torch.tensor(given[f"{name}_b"]),
            }
        )
        layers[name] = layer
        modules += [layer, nn.Tanh()]
    return nn.Sequential(*modules[:-1]), layers


def as_in_torch(weight: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(weight.T if weight.ndim == 2 else weight.transpose(3, 2, 0, 1))


def order_of_inputs(shape: tuple[int, ...]) -> np.ndarray:
    """For each row of JAX's factor of the inputs, the row of ours: pixels, then channels."""
    *kernel, channels, _ = shape
    ours = np.arange(int(np.prod(shape[:-1])))
    if kernel:
        ours = ours.reshape(channels, *kernel).transpose(1, 2, 0).flatten()
    return np.append(ours, len(ours))  # the bias


def inverse_of(block: CurvatureBlock, optimizer: KFAC, order: np.ndarray) -> np.ndarray:
    """The damped inverse that is applied to a layer, inputs first, in JAX's order."""
    stack = optimizer._estimate.blocks._stack_of[block]
    kept = {name: tensor[0].numpy() for name, tensor in stack.tensors(block).items()}
    return np.kron(kept["inverse_inputs"][np.ix_(order, order)], kept["inverse_outputs"])


def close(found: ArrayLike, expected: np.ndarray) -> None:
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0.0, atol=1e-8 * scale)


def assert_three_steps_agree(case: Case, expected: Arrays) -> float:
    """The damping after them."""
    kind, lr, given = case.kind, case.lr, task(case)
    model, layers = network(kind, given)
    optimizer = KFAC(
        model,
        lr,
        momentum=0.9,
        damping=case.damping,
        norm_constraint=1e-4,
        l2=L2,
        curvature_ema=0.95,
        inverse_period=1,
        burn_in=0,
        fisher="empirical",  # with the labels that kfac-jax was made to draw
        damping_period=None if lr else 1,
    )
    for group in optimizer.param_groups:
        group["l2"] = L2  # kfac-jax penalises biases too
    for number, (x, label, drawn) in enumerate(
        zip(given["xs"], given["labels"], given["drawn"], strict=True)
    ):
        inputs = torch.tensor(x if kind == "mlp" else x.transpose(0, 3, 1, 2))

        def closure(inputs: Tensor = inputs, label: object = label, drawn: object = drawn) -> float:
            optimizer.zero_grad()
            logits = model(inputs)
            optimizer.curvature(logits, torch.tensor(drawn))
            loss = F.cross_entropy(logits, torch.tensor(label))
            loss.backward()
            return loss.item()

        optimizer.step(closure)
        own = {key[2:]: value for key, value in expected.items() if key[0] == str(number)}
        assert_state_agrees(optimizer, kind, layers, own)
    return optimizer.damping


def assert_state_agrees(
    optimizer: KFAC, kind: str, layers: dict[str, nn.Module], expected: Arrays
) -> None:
    blocks = {layer.module: own for layer, own in optimizer._estimate.blocks.of_layer.items()}
    for name, module in layers.items():
        block, order = blocks[module], order_of_inputs(SHAPES[kind][name])
        close(block.inputs[0].numpy()[np.ix_(order, order)], expected[f"{name}_A"])
        close(block.outputs[0].numpy(), expected[f"{name}_G"])
        close(module.weight.detach().numpy(), as_in_torch(expected[f"{name}_w"]))  # pyright: ignore
        close(module.bias.detach().numpy(), expected[f"{name}_b"])  # pyright: ignore
        if f"{name}_inverse" in expected:
            close(inverse_of(block, optimizer, order), expected[f"{name}_inverse"])
    if "chosen" in expected:
        assert optimizer.chosen is not None
        close(optimizer.chosen, expected["chosen"])
        close(optimizer.damping, expected["damping"])


@pytest.mark.parametrize("case", FIXED, ids=repr)
def test_steps_of_a_fixed_size_are_those_of_kfac_jax(
    case: Case, expected: dict[Case, Arrays]
) -> None:
    assert_three_steps_agree(case, expected[case])


@pytest.mark.parametrize("case", ADAPTIVE, ids=repr)
def test_steps_by_the_quadratic_model_are_those_of_kfac_jax(
    case: Case, expected: dict[Case, Arrays]
) -> None:
    """Damping falls where there is much of it, and rises where outputs are far from linear."""
    last = assert_three_steps_agree(case, expected[case])
    assert (last < case.damping) == (case.gain == 1.0)
