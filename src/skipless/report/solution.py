"""What `skipless solve` prints for people."""

from __future__ import annotations

from typing import Any

from .tables import table


def described(answer: dict[str, Any]) -> str:
    """The answer, which as JSON is for programs, as two tables."""
    head = f"{answer['model']}, {answer['method'].upper()} with {answer['activation']}:"
    parameters = [[k, f"{v:.10g}"] for k, v in answer["parameters"].items() if v is not None]
    conditions = [
        [name, f"{target:.6g}", f"{answer['residuals'][name]:.1e}"]
        for name, target in answer["targets"].items()
    ]
    return "\n\n".join(
        [
            head,
            table(["parameter", "value"], parameters),
            table(["condition", "target", "residual"], conditions),
        ]
    )
