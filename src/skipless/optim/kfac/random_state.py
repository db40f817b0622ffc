"""The state of PyTorch's random numbers, to draw the same ones twice."""

from __future__ import annotations

import torch
from torch import Tensor

RandomState = tuple[Tensor, tuple[torch.device, Tensor] | None]


def random_state(device: torch.device) -> RandomState:
    """That of the CPU, and of the GPU that `device` may be."""
    own = (device, torch.cuda.get_rng_state(device)) if device.type == "cuda" else None
    return torch.get_rng_state(), own


def set_random_state(state: RandomState) -> None:
    """Draw from there on."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        device, own = state[1]
        torch.cuda.set_rng_state(own, device)
