"""Images a second of the engine, beside a loop written by hand, and with JPEG files to decode.

    python benchmarks/training.py

The hand-written loop takes a step after each step of the engine, so that whatever else the machine
does slows both alike, and both are timed by their CPU seconds; ratios are those of the medians, and
of the sums, in which the engine's log counts too. A second hand-written loop instead of the engine
shows the noise. The engine does more in a step: it follows a schedule, keeps losses and accuracy,
looks for NaN, and writes its log. `skipless train` runs SGD in one kernel, where PyTorch by default
has a loop. Only wall-clock time can tell whether decoding stalls a step: there, runs alternate,
and the first quartiles are compared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
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
from skipless.tables import table
from skipless.train.batches import Batches
from skipless.train.data import Data, load_data
from skipless.train.engine import Engine
from skipless.train.process import process_group
from skipless.train.settings import Settings

TURNS = {"resnet18": 60, "mlp:50": 400}
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
        in_chans=channels,
        img_size=(size[0], size[1]),
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


def steps_by_hand(name: str, data: Data) -> Iterator[None]:
    """The plainest loop that does the same, one step at a time."""
    model = network(name, data)
    optimizer = plain_sgd(model)
    for epoch in count():
        for inputs, labels in Batches(data.train, BATCH).epoch(epoch):
            if name == "resnet18":
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels, label_smoothing=0.1).backward()
            optimizer.step()
            yield


class Turns:
    """Seconds of each step of two loops of which one makes a step after each one of the other."""

    def __init__(self, other: Iterator[None]) -> None:
        self.own: list[float] = []
        self.others: list[float] = []
        self._other = other
        self._since: float | None = None  # what comes before the first step's end is setting up

    def __call__(self, *_: object) -> None:
        """A step of the first loop has ended."""
        now = time.process_time()
        if self._since is not None:
            self.own.append(now - self._since)
        start = time.process_time()
        next(self._other)
        self._since = time.process_time()
        self.others.append(self._since - start)

    def ratios(self) -> list[str]:
        """The other loop's seconds over our own: of the median steps, and of all together."""
        own, others = self.own, self.others[1:]  # whose first step is slower, too
        return [
            f"{np.median(others) / np.median(own):.3f}",
            f"{sum(others) / sum(own):.3f}",
            f"{BATCH / np.median(own):.0f}",
        ]


def engine_run(
    name: str, data: Data, optimizer: Optimizer, model: nn.Module, steps: int, workers: int = 0
) -> None:
    settings = Settings(
        batch_size=BATCH,
        steps=steps,
        label_smoothing=0.1,
        channels_last=name == "resnet18",
        workers=workers,
        evaluate_every=steps,  # in epochs: never on the way
        checkpoint_every=steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), {})
        Engine(model, optimizer, data, settings).run(Path(folder), progress=False)


def beside_hand(name: str, data: Data) -> None:
    """Print how the engine does beside a loop by hand."""
    steps, rows = TURNS[name], []
    turns = Turns(steps_by_hand(name, data))
    for _ in islice(steps_by_hand(name, data), steps):
        turns()
    rows.append(["another loop by hand", *turns.ratios()])
    for label, make in (
        ("engine, the same optimiser", plain_sgd),
        ("engine, as skipless train", our_sgd),
    ):
        model = network(name, data)
        optimizer = make(model)
        turns = Turns(steps_by_hand(name, data))
        optimizer.register_step_post_hook(turns)
        engine_run(name, data, optimizer, model, steps)
        rows.append([label, *turns.ratios()])
    head = ["beside a loop by hand", "median", "sum", "images/s"]
    print(f"{name} on {data.name}, batches of {BATCH}, {steps} steps\n\n{table(head, rows)}\n")


def engine_seconds(data: Data, workers: int) -> list[float]:
    """Seconds on the wall of each of a few steps of the engine."""
    model = network("resnet18", data)
    optimizer = our_sgd(model)
    stamps: list[float] = []
    optimizer.register_step_post_hook(lambda *_: stamps.append(time.perf_counter()))
    engine_run("resnet18", data, optimizer, model, STEPS + 1, workers)
    return list(np.diff(stamps))


def jpeg_folder(folder: Path) -> Path:
    """Photographs, to a decoder: smooth noise of 128 x 128 pixels."""
    chance = np.random.default_rng(0)
    for part, images in (("train", BATCH * (STEPS + 1) // CLASSES), ("val", 2)):
        for label in range(CLASSES):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True)
            for number in range(images):
                small = chance.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(small).resize((128, 128)).save(place / f"{number}.jpg", quality=90)
    return folder


def beside_memory(files: Data, memory: Data) -> None:
    """Print how decoding JPEG files does beside images that are in memory."""
    seconds: dict[str, list[float]] = {"images in memory": [], "JPEG files, 1 worker": []}
    for _ in range(ROUNDS):
        seconds["images in memory"] += engine_seconds(memory, workers=0)
        seconds["JPEG files, 1 worker"] += engine_seconds(files, workers=1)
    rates = {label: BATCH / float(np.quantile(own, 0.25)) for label, own in seconds.items()}
    first = next(iter(rates.values()))
    rows = [[label, f"{rate:.0f}", f"{rate / first:.3f}"] for label, rate in rates.items()]
    head = ["engine", "images/s", "ratio"]
    print(f"resnet18, {SIZE} x {SIZE} images, batches of {BATCH}\n\n{table(head, rows)}\n")


def main() -> None:
    with (
        process_group("cpu", threads=1),  # the other cores are for decoding
        tempfile.TemporaryDirectory() as top,
    ):
        beside_hand("resnet18", load_data(f"synthetic:3x32x32:{CLASSES}"))
        beside_hand("mlp:50", load_data("digits"))
        files = load_data(f"imagefolder:{jpeg_folder(Path(top))}", image_size=SIZE)
        beside_memory(files, load_data(f"synthetic:3x{SIZE}x{SIZE}:{CLASSES}"))


if __name__ == "__main__":
    main()
