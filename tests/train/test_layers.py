"""What is logged of layers is what they do, and it changes nothing."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skipless.cli import main
from skipless.optim import KFAC
from skipless.record import Record
from skipless.train.engine import Engine
from skipless.train.layers import LayerLog, mean_cosine
from skipless.train.settings import Settings
from toy_training import run_folder, toy_data, toy_model

SETTINGS = Settings(
    batch_size=8, steps=9, log_every=1, checkpoint_every=3, keep=9, seed=2, evaluate_every=9
)
LAYERS = ["0", "5"]  # with weights: the convolution, the logits


def cosines(rows: np.ndarray) -> float:
    """The mean over all pairs, one by one."""
    pairs = itertools.combinations(rows.reshape(len(rows), -1).astype(float), 2)
    return float(np.mean([a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in pairs]))


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)) + 0.5
    assert mean_cosine(rows).item() == pytest.approx(cosines(rows.numpy()), rel=1e-5)
    same = rows[:1] * torch.tensor([[1.0], [2.0], [1e-20]])
    assert mean_cosine(same).item() == pytest.approx(1.0, rel=1e-5)
    silent = torch.cat([same[:2], torch.zeros(1, 40)])  # a row without a direction has none
    assert mean_cosine(silent).item() == pytest.approx(1 / 3, rel=1e-5)


def trained(
    folder: Path, settings: Settings, *, dropout: float = 0.0, kfac: bool = False
) -> tuple[Record, Engine]:
    model = toy_model(dropout)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if kfac:
        optimizer = KFAC(model, 0.01, preset="cifar10", burn_in=1)
    engine = Engine(model, optimizer, toy_data(), settings)
    engine.run(run_folder(folder), progress=False)
    return Record.read(folder), engine


def layer_rows(record: Record) -> list[dict[str, object]]:
    return [
        {name: value for name, value in row.items() if name != "seconds"}
        for row in record.metrics
        if row["kind"] == "layers"
    ]


def by_hand() -> tuple[dict[str, float], Tensor]:
    """What the first step must log, computed layer by layer, and the loss."""
    engine = Engine(
        toy_model(), torch.optim.SGD(toy_model().parameters(), 0.1), toy_data(), SETTINGS
    )
    images, labels = next(iter(engine.training.epoch(0)))
    model, expected, z = toy_model(), {}, images
    for name, layer in model.named_children():
        z = layer(z)
        if name in LAYERS:
            own = z.detach().numpy()
            expected |= {f"q/{name}": float((own.astype(float) ** 2).mean())}
            expected |= {f"c/{name}": cosines(own)}
    loss = nn.functional.cross_entropy(z, labels, label_smoothing=0.1)
    loss.backward()
    for name in LAYERS:
        weight = model.get_parameter(f"{name}.weight")
        assert weight.grad is not None
        for what, tensor in (("weight", weight.detach()), ("gradient", weight.grad)):
            expected[f"{what}/{name}"] = float(np.sqrt((tensor.double().numpy() ** 2).sum()))
    return expected, loss


def test_the_first_line_is_of_the_initial_network_and_of_gradients_before_clipping(
    tmp_path: Path,
) -> None:
    record, _ = trained(tmp_path / "run", replace(SETTINGS, log_kernel=4, clip=0.01))
    rows = layer_rows(record)
    assert [row["step"] for row in rows] == [1, 4, 8]
    expected, _ = by_hand()
    about = {"kind", "step", "epoch"}
    assert rows[0].keys() == expected.keys() | about
    for name, value in expected.items():
        assert rows[0][name] == pytest.approx(value, rel=1e-4), name
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize(
    ("changed", "kfac"),
    [
        ({}, False),
        ({"precision": "bfloat16"}, False),
        ({"accumulate": 2, "average": 0.9}, False),
        ({"clip": 1.0}, True),
    ],
)
def test_losses_do_not_depend_on_what_is_logged(tmp_path: Path, changed: dict, kfac: bool) -> None:
    plain = replace(SETTINGS, **changed)
    logged = replace(plain, log_kernel=2, log_layers="*")
    runs = {
        name: trained(tmp_path / name, settings, dropout=0.3, kfac=kfac)[0]
        for name, settings in (("plain", plain), ("logged", logged))
    }
    for kind, name in (("train", "loss"), ("train", "accuracy"), ("validation", "loss")):
        assert runs["logged"].series(kind, name) == runs["plain"].series(kind, name)
    assert not layer_rows(runs["plain"])
    rows = layer_rows(runs["logged"])
    assert [row["step"] for row in rows] == [1, 2, 4, 6, 8]
    # Activations and BatchNorm have kernels as well, but only layers with weights have norms.
    assert {f"q/{n}" for n in "012345"} | {f"weight/{n}" for n in "015"} <= rows[0].keys()
    assert "weight/2" not in rows[0]
    assert all(math.isfinite(float(str(v))) for r in rows for n, v in r.items() if "/" in n)


def test_a_run_that_resumes_logs_the_same_lines(tmp_path: Path) -> None:
    settings = replace(SETTINGS, log_kernel=2)
    whole, _ = trained(tmp_path / "whole", settings)
    trained(tmp_path / "half", settings)
    for step in (6, 9):  # as if it had been killed after step 3
        (tmp_path / "half" / "checkpoints" / f"step-{step:08}").rename(tmp_path / str(step))
    model = toy_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    engine = Engine(model, optimizer, toy_data(), settings)
    engine.run(tmp_path / "half", resume=True, progress=False)
    assert layer_rows(Record.read(tmp_path / "half")) == layer_rows(whole)


def test_a_compiled_network_logs_norms_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda _: None)  # which takes seconds
    settings = replace(SETTINGS, log_kernel=2, compile=True)
    model = toy_model()
    with pytest.warns(UserWarning, match="q and c of layers are not logged"):
        engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), toy_data(), settings)
    assert engine.layers is not None
    with engine.layers.watch():
        model(torch.randn(3, 2, 4, 4)).sum().backward()
    assert engine.layers.numbers().keys() == {
        f"{n}/{i}" for n in ("weight", "gradient") for i in LAYERS
    }


def test_by_default_eight_layers_from_the_first_to_the_last_are_logged() -> None:
    deep = nn.Sequential(*(nn.Linear(2, 2) for _ in range(50)), nn.BatchNorm1d(2, affine=False))
    assert list(LayerLog(deep, None).layers) == ["0", "7", "14", "21", "28", "35", "42", "49"]
    assert list(LayerLog(deep[:3], None).layers) == ["0", "1", "2"]
    assert list(LayerLog(deep, "49, 3?,1").layers) == ["1", *(f"{n}" for n in range(30, 40)), "49"]


def test_layers_that_are_unused_shared_or_not_of_images_do_no_harm() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.shared(self.shared(x))

    model, x = Odd(), torch.ones(1, 3)
    log = LayerLog(model, None)
    with log.watch():
        model(x)
    first = model.shared(x).square().mean().item()
    numbers = log.numbers()
    assert numbers["q/shared"] == pytest.approx(first)  # of its first call
    assert numbers.keys() == {"q/shared", "weight/shared", "weight/unused"}  # one image: no c
    with log.watch():
        pass
    assert "q/shared" not in log.numbers()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log-kernel", "0"], "log_kernel must be from 1 to"),
        (["--log-layers", "fc"], "log_layers fc needs log_kernel"),
        (
            ["--log-kernel", "5", "--log-layers", "fc,conv"],
            "'conv' matches none of layers.0.linear",
        ),
    ],
)
def test_wrong_layers_are_named_before_anything_is_written(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["train", "--model", "mlp:14", "--width", "8", "--output", str(tmp_path / "run")]
    assert main([*small, *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
