"""What was measured in the steps since the last line of the journal."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from .process import Process


class Window:
    """Losses and hits of steps, left on their device until someone asks."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []
        self._images = 0
        self._seconds = 0.0
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._losses)

    def resume_clock(self) -> None:
        """Count time from now on; evaluations and checkpoints stop the clock."""
        self._since = time.perf_counter()

    def stop_clock(self) -> float:
        """Seconds since the clock ran, which are added to those of the window."""
        passed = 0.0 if self._since is None else time.perf_counter() - self._since
        self._seconds, self._since = self._seconds + passed, None
        return passed

    def add(self, loss: Tensor, hits: Tensor, images: int) -> None:
        """One step: its loss, and how many of its images were labelled right."""
        self._losses.append(loss)
        self._hits.append(hits)
        self._images += images

    def bad_step(self) -> tuple[int, float] | None:
        """How many steps before the last one the first loss was not finite, and that loss."""
        for index, loss in enumerate(self._values(self._losses)):
            if not math.isfinite(loss):
                return len(self) - 1 - index, loss
        return None

    def last_is_bad(self) -> bool:
        """Whether the last loss is not finite; on a GPU, this waits for it."""
        return not math.isfinite(self._losses[-1].item())

    def summary(self, process: Process) -> dict[str, float]:
        """Mean loss, accuracy and images a second over all processes; the window is empty then."""
        own = [sum(self._values(self._losses)), sum(self._values(self._hits)), self._images]
        losses, hits, images = process.total(torch.tensor(own, dtype=torch.float64)).tolist()
        steps, seconds = len(self), self._seconds
        self._losses, self._hits, self._images, self._seconds = [], [], 0, 0.0
        return {
            "loss": losses / (steps * process.world),
            "accuracy": hits / images,
            "images_per_second": images / seconds if seconds else 0.0,
        }

    def state(self) -> dict[str, Any]:
        """The window in plain types."""
        return {
            "losses": self._values(self._losses),
            "hits": self._values(self._hits),
            "images": self._images,
            "seconds": self._seconds,
        }

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """Take over a window that `state` told."""
        self._losses = list(torch.tensor(state["losses"], dtype=torch.float32, device=device))
        self._hits = list(torch.tensor(state["hits"], dtype=torch.int64, device=device))
        self._images, self._seconds = state["images"], state["seconds"]

    @staticmethod
    def _values(tensors: list[Tensor]) -> list[float]:
        return torch.stack(tensors).tolist() if tensors else []
