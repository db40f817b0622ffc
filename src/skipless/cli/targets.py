"""Options that say how a network is shaped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--eta", type=float, help="TAT, leaky ReLU: C_f(0).  [default: 0.9]"),
            click.option(
                "--tau", type=float, help="TAT, smooth activations: C_f''(1).  [default: 0.3]"
            ),
            click.option("--zeta", type=float, help="DKS: C_f'(1).  [default: 1.5]"),
            click.option("--sigma-b", type=float, help="EOC: scale of the biases.  [default: 0]"),
            click.option(
                "--clamp", is_flag=True, help="Take the nearest target within reach, and say so."
            ),
        )
    ):
        command = option(command)
    return command
