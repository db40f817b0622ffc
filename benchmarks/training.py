"""Images a second of the engine, beside a loop written by hand, and with JPEG files to decode.

    python benchmarks/training.py

All loops take turns in one run, and of the times of their steps the first quartiles are compared,
because a machine may be busy with other things, which only ever slows a step down. For the same
reason the loops on one thread are timed by the seconds that they spend on their core; whether
decoding stalls a step, only the clock on the wall can tell. The engine does more in its steps: it
follows a schedule, keeps losses and accuracy, looks for NaN, and writes its journal. `skipless
train` takes SGD in one kernel, where PyTorch by default has a loop.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.optim import Optimizer

from skipless.models import create_model
from skipless.optim import create_optimizer
from skipless.record import write_run
from skipless.report.tables import table
from skipless.train.batches import Batches
from skipless.train.data import Data, load_data
from skipless.train.engine import Engine
from skipless.train.process import joined
from skipless.train.settings import Settings

ROUNDS, STEPS = 6, 10
BATCH = 32
SIZE = 64
CLASSES = 4


def network(name: str, data: Data) -> nn.Module:
    torch.manual_seed(0)
    channels, *size = data.shape
    model = create_model(
        name,
        num_classes=data.num_classes,
        in_channels=channels,
        input_size=(size[0], size[1]),
        width=0.25 if name == "resnet18" else 128,
    )
    if name == "resnet18":
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def plain_sgd(model: nn.Module) -> Optimizer:
    """What one writes by hand."""
    return torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)


def our_sgd(model: nn.Module) -> Optimizer:
    """What `skipless train` takes."""
    return create_optimizer("sgd", model, lr=1e-4)


def stamps_of(optimizer: Optimizer, clock: Callable[[], float]) -> list[float]:
    """A list that will hold when each step ended."""
    stamps: list[float] = []
    optimizer.register_step_post_hook(lambda *_: stamps.append(clock()))
    return stamps


def by_hand(name: str, data: Data) -> list[float]:
    """Seconds of each step of the plainest loop that does the same."""
    model = network(name, data)
    optimizer = plain_sgd(model)
    stamps = stamps_of(optimizer, time.process_time)
    images = name == "resnet18"
    for inputs, labels in Batches(data.train, BATCH).epoch(0):
        if images:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels, label_smoothing=0.1).backward()
        optimizer.step()
        if len(stamps) > STEPS:
            break
    return list(np.diff(stamps))


def by_engine(
    name: str,
    data: Data,
    make: Callable[[nn.Module], Optimizer] = our_sgd,
    workers: int = 0,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """Seconds of each step of the engine."""
    model = network(name, data)
    optimizer = make(model)
    stamps = stamps_of(optimizer, clock)
    settings = Settings(
        batch_size=BATCH,
        steps=STEPS + 1,
        label_smoothing=0.1,
        channels_last=name == "resnet18",
        workers=workers,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), {})
        Engine(model, optimizer, data, settings).run(Path(folder), progress=False)
    return list(np.diff(stamps))


def jpeg_folder(folder: Path) -> Path:
    """Photographs, as far as a decoder can tell: smooth noise of 128 x 128 pixels."""
    chance = np.random.default_rng(0)
    for part, count in (("train", BATCH * (STEPS + 1) // CLASSES), ("val", 2)):
        for label in range(CLASSES):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            for number in range(count):
                small = chance.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(small).resize((128, 128)).save(place / f"{number}.jpg", quality=90)
    return folder


def compared(title: str, loops: dict[str, Callable[[], list[float]]]) -> None:
    """Let the loops take turns, and print their rates and the ratios to the first."""
    seconds: dict[str, list[float]] = {label: [] for label in loops}
    for _ in range(ROUNDS):
        for label, loop in loops.items():
            seconds[label] += loop()
    rates = {label: BATCH / float(np.quantile(own, 0.25)) for label, own in seconds.items()}
    first = next(iter(rates.values()))
    rows = [[label, f"{rate:.0f}", f"{rate / first:.3f}"] for label, rate in rates.items()]
    print(f"{title}\n\n{table(['loop', 'images/s', 'ratio'], rows)}\n", flush=True)


def main() -> None:
    size = f"synthetic:3x{SIZE}x{SIZE}:{CLASSES}"
    with (
        joined("cpu", threads=1),  # the other cores are for decoding
        tempfile.TemporaryDirectory() as top,
    ):
        for name, data in (
            ("resnet18", load_data(f"synthetic:3x32x32:{CLASSES}")),
            ("mlp:50", load_data("digits")),
        ):
            compared(
                f"{name} on {data.name}, batches of {BATCH}",
                {
                    "by hand": partial(by_hand, name, data),
                    "engine, the same optimiser": partial(by_engine, name, data, plain_sgd),
                    "engine, as skipless train": partial(by_engine, name, data),
                },
            )
        files = load_data(f"imagefolder:{jpeg_folder(Path(top))}", image_size=SIZE)
        memory = load_data(size)
        compared(
            f"resnet18 on {SIZE} x {SIZE} images, batches of {BATCH}",
            {
                "engine, images in memory": partial(
                    by_engine, "resnet18", memory, clock=time.perf_counter
                ),
                "engine, JPEG files, 1 worker": partial(
                    by_engine, "resnet18", files, workers=1, clock=time.perf_counter
                ),
            },
        )


if __name__ == "__main__":
    main()
