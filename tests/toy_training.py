"""A small problem that the tests of the engine train on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from skipless.record import write_run
from skipless.train.data import Data
from skipless.train.engine import Engine
from skipless.train.settings import Settings


@dataclass(frozen=True)
class Toy:
    """Noisy images of three classes, moved by `draws` as a crop would."""

    images: Tensor
    labels: Tensor
    slow: bool = False
    draws: int = 3

    def __len__(self) -> int:
        return len(self.images)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(indices)
        images = self.images[rows]
        if draws is not None:
            images = images + 0.1 * draws[:, :1, None, None]
        return images, self.labels[rows]


def toy_data(train: int = 48, validation: int = 17) -> Data:
    generator = torch.Generator().manual_seed(5)
    centres = torch.randn(7, 2, 4, 4, generator=generator)

    def split(size: int) -> Toy:
        labels = torch.randint(0, 7, (size,), generator=generator)
        return Toy(centres[labels] + torch.randn(size, 2, 4, 4, generator=generator), labels)

    return Data("toy", 7, (2, 4, 4), split(train), split(validation))


def toy_model(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(96, 7),
    )


def toy_engine(settings: Settings, *, lr: float = 0.1, dropout: float = 0.0) -> Engine:
    model = toy_model(dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    return Engine(model, optimizer, toy_data(), settings)


def run_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    write_run(path, {"configuration": {}})
    return path
