"""How often files are right on a data set, and how often they agree with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from skipless.torch.onnx_steps import output, session
from skipless.train.data import Data, Split

_CALIBRATION, _MOST = 256, 5000  # samples
_BATCH = 32


@dataclass(frozen=True)
class Accuracy:
    """Of a file on `samples` validation samples; `agreement` is with the first file."""

    top1: float
    agreement: float
    samples: int


@dataclass(frozen=True)
class Prepared:
    """Data as the network reads them."""

    data: Data
    normalize: Callable[[Tensor], Tensor] | None

    def calibration(self) -> Iterator[np.ndarray]:
        """Batches of training samples, not augmented."""
        return (images for images, _ in self._batches(self.data.train, _CALIBRATION))

    def validation(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of validation samples with their labels; of many, some drawn once for all."""
        return self._batches(self.data.validation, _MOST)

    def _batches(self, split: Split, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(split), generator=generator)[:most].tolist()
        for start in range(0, len(chosen), _BATCH):
            images, labels = split.load(chosen[start : start + _BATCH], None)
            images = images if self.normalize is None else self.normalize(images)
            yield images.numpy(), labels.numpy()


def accuracies(paths: Mapping[str, Path], prepared: Prepared) -> dict[str, Accuracy]:
    """The accuracy of each file on the same samples."""
    sessions = [session(path) for path in paths.values()]
    right, same, samples = [0] * len(sessions), [0] * len(sessions), 0
    for images, labels in prepared.validation():
        answers = [output(running, images).argmax(1) for running in sessions]
        samples += len(labels)
        for number, answer in enumerate(answers):
            right[number] += int((answer == labels).sum())
            same[number] += int((answer == answers[0]).sum())
    return {
        name: Accuracy(r / samples, a / samples, samples)
        for name, r, a in zip(paths, right, same, strict=True)
    }
