"""Soft labels: the loss is Hinton's, and the loop gives the teacher what it gives the student."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skipless.record import Record
from skipless.train.batches import Batches
from skipless.train.data import Data
from skipless.train.engine import Engine, Teacher, soft_label_loss
from skipless.train.memory import estimate_memory
from skipless.train.settings import Settings
from toy_training import Toy, run_folder, toy_data, toy_model

PLAIN = Settings(
    epochs=3, batch_size=12, schedule="constant", warmup=0, log_every=1, label_smoothing=0.1
)


def trained_network() -> nn.Module:
    """A network whose BatchNorm has statistics of its own, which reveal its mode."""
    torch.manual_seed(8)
    network = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 7)
    )
    network(3.0 * torch.randn(64, 2, 4, 4) + 1.0)
    return network


def student() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 7))


def engine(settings: Settings, teacher: Teacher | None, data: Data | None = None) -> Engine:
    model = student()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return Engine(model, optimizer, data or toy_data(), settings, teacher=teacher)


def losses(folder: Path) -> list[float]:
    return Record.read(folder).series("train", "loss")[1]


def curve(folder: Path) -> list[dict[str, object]]:
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in r.items() if k not in timed} for r in Record.read(folder).metrics]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_loss_is_the_divergence_times_the_square_of_the_temperature(temperature: float) -> None:
    generator = np.random.default_rng(0)
    z, v = generator.normal(size=(2, 6, 5)) * 3
    p, q = (np.exp(x / temperature) for x in (v, z))
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    wanted = temperature**2 * (p * np.log(p / q)).sum(axis=1).mean()
    logits = torch.tensor(z, requires_grad=True)
    found = soft_label_loss(logits, torch.tensor(v), temperature)
    assert found.item() == pytest.approx(wanted, rel=1e-12)
    found.backward()
    assert logits.grad is not None
    # Hinton et al., eq. 2, for a mean over 6 samples, times T^2.
    np.testing.assert_allclose(logits.grad, temperature * (q - p) / 6, rtol=1e-9, atol=1e-12)


def by_hand(weight: float, temperature: float) -> tuple[list[float], nn.Module]:
    data, model, teacher = toy_data(), student(), trained_network().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = []
    for epoch in range(3):
        for images, labels in Batches(data.train, 12).epoch(epoch):  # moved, as a crop would be
            with torch.no_grad():
                soft = F.softmax(teacher(images) / temperature, dim=1)
            logits = model(images)
            hard = F.cross_entropy(logits, labels, label_smoothing=0.1)
            # The divergence is the cross-entropy of soft labels, less their entropy.
            entropy = -(soft * soft.log()).sum(dim=1).mean()
            taught = F.cross_entropy(logits / temperature, soft) - entropy
            loss = (1 - weight) * hard + weight * temperature**2 * taught
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found, model


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_losses_are_those_of_a_loop_by_hand(tmp_path: Path, accumulate: int) -> None:
    folder = run_folder(tmp_path / "run")
    trained = engine(
        replace(PLAIN, accumulate=accumulate), Teacher(trained_network(), 0.7, temperature=3.0)
    )
    trained.run(folder)
    wanted, model = by_hand(0.7, 3.0)
    assert losses(folder) == pytest.approx(wanted, rel=1e-4)
    for own, other in zip(trained.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_a_teacher_is_left_as_it_was(tmp_path: Path) -> None:
    network, before = trained_network(), trained_network().state_dict()
    engine(PLAIN, Teacher(network)).run(run_folder(tmp_path / "run"))
    assert not network.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None and not p.requires_grad for p in network.parameters())


def test_a_teacher_without_a_share_changes_nothing(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / name) for name in ("alone", "taught")]
    for folder, teacher in zip(folders, (None, Teacher(trained_network(), 0.0)), strict=True):
        engine(PLAIN, teacher).run(folder)
    assert curve(folders[0]) == curve(folders[1])


def test_a_teacher_with_the_whole_share_leaves_no_use_for_labels(tmp_path: Path) -> None:
    data = toy_data()
    assert isinstance(data.train, Toy)
    other = replace(data.train, labels=(data.train.labels + 1) % 7)
    folders = [run_folder(tmp_path / name) for name in ("right", "wrong")]
    for folder, train in zip(folders, (data.train, other), strict=True):
        engine(PLAIN, Teacher(trained_network(), 1.0), replace(data, train=train)).run(folder)
    assert losses(folders[0]) == losses(folders[1])


def test_a_taught_run_that_is_stopped_resumes_exactly(tmp_path: Path) -> None:
    whole, folder = run_folder(tmp_path / "whole"), run_folder(tmp_path / "run")
    settings = replace(PLAIN, classes_per_batch=2, batch_size=4, epochs=2)
    engine(settings, Teacher(trained_network())).run(whole)
    first = engine(settings, Teacher(trained_network()))

    def stop(*_: object) -> None:
        if first.step + 1 == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    first.optimizer.register_step_post_hook(stop)
    assert first.run(folder).step == 3
    assert engine(settings, Teacher(trained_network())).run(folder, resume=True).finished
    assert curve(folder) == curve(whole)


def test_a_teacher_reads_in_the_precision_and_layout_of_its_student(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    settings = replace(PLAIN, precision="bfloat16", channels_last=True)
    engine(settings, Teacher(trained_network(), 0.7, 3.0)).run(folder)
    assert losses(folder) == pytest.approx(by_hand(0.7, 3.0)[0], rel=0.1)


@pytest.mark.parametrize(
    ("name", "value"), [("weight", -0.1), ("weight", 1.5), ("temperature", 0.0)]
)
def test_what_makes_no_sense_is_named(name: str, value: float) -> None:
    for wrong in (value, float("nan")):
        with pytest.raises(ValueError, match=f"teacher_{name} must be .*, got "):
            Teacher(trained_network(), **{name: wrong})


def test_memory_counts_the_teachers_weights_and_its_largest_layer() -> None:
    model = toy_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    images = torch.randn(4, 2, 4, 4)
    found = estimate_memory(model, optimizer, images, PLAIN, trained_network())
    weights = 2 * 5 * 9 + 5 + 5 + 5 + 20 * 7 + 7 + 5 + 5  # of floats; BatchNorm also counts steps
    # Conv2d reads 2 x 4 x 4 and writes 5 x 2 x 2, more than any layer behind it.
    assert found.teacher == 4 * weights + 8 + 12 * 4 * (32 + 20)
    alone = estimate_memory(toy_model(), optimizer, images, PLAIN)
    assert found.total - alone.total == found.teacher
