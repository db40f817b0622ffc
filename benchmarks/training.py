"""Images a second of the engine, beside a loop written by hand, and with JPEG files to decode.

    python benchmarks/training.py

All loops take turns in one run, and the medians over their steps are compared, because a machine
may be busy with other things. The engine does more in its steps: it follows a schedule, keeps
losses and accuracy, looks for NaN, and writes its journal.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from skipless.models import create_model
from skipless.record import write_run
from skipless.report.tables import table
from skipless.train.batches import Batches
from skipless.train.data import Data, load_data
from skipless.train.engine import Engine
from skipless.train.process import joined
from skipless.train.settings import Settings

ROUNDS, STEPS = 4, 10
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


def stamped(model: nn.Module) -> tuple[torch.optim.SGD, list[float]]:
    """An optimiser that notes when its steps end."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    stamps: list[float] = []
    optimizer.register_step_post_hook(lambda *_: stamps.append(time.perf_counter()))
    return optimizer, stamps


def by_hand(name: str, data: Data) -> list[float]:
    """Seconds of each step of the plainest loop that does the same."""
    model = network(name, data)
    optimizer, stamps = stamped(model)
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


def by_engine(name: str, data: Data, workers: int = 0) -> list[float]:
    """Seconds of each step of the engine."""
    model = network(name, data)
    optimizer, stamps = stamped(model)
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
    """Let the loops take turns, and print their medians and ratios to the first."""
    seconds: dict[str, list[float]] = {label: [] for label in loops}
    for _ in range(ROUNDS):
        for label, loop in loops.items():
            seconds[label] += loop()
    rates = {label: BATCH / statistics.median(own) for label, own in seconds.items()}
    first = next(iter(rates.values()))
    rows = [[label, f"{rate:.0f}", f"{rate / first:.3f}"] for label, rate in rates.items()]
    print(f"{title}\n\n{table(['loop', 'images/s', 'ratio'], rows)}\n", flush=True)


def main() -> None:
    size = f"synthetic:3x{SIZE}x{SIZE}:{CLASSES}"
    with (
        joined("cpu", threads=max(1, (os.cpu_count() or 2) // 2)),
        tempfile.TemporaryDirectory() as top,
    ):
        for name, data in (
            ("resnet18", load_data(f"synthetic:3x32x32:{CLASSES}")),
            ("mlp:50", load_data("digits")),
        ):
            compared(
                f"{name} on {data.name}, batches of {BATCH}",
                {
                    "by hand": lambda name=name, data=data: by_hand(name, data),
                    "engine": lambda name=name, data=data: by_engine(name, data),
                },
            )
        files = load_data(f"imagefolder:{jpeg_folder(Path(top))}", image_size=SIZE)
        memory = load_data(size)
        compared(
            f"resnet18 on {SIZE} x {SIZE} images, batches of {BATCH}",
            {
                "engine, images in memory": lambda: by_engine("resnet18", memory),
                "engine, JPEG files, 1 worker": lambda: by_engine("resnet18", files, workers=1),
            },
        )


if __name__ == "__main__":
    main()
