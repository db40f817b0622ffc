r"""Empirical c values of finite networks: appendix E.1 and its figure 4.

    python -m skipless.paper.kernel_error paper figure.png

The setting is the paper's: TReLU with η = 0.9 from c = 0, DKS with ζ = 10 and SoftPlus from
c = 0.8; fully-connected networks with Gaussian and with orthogonal weights; 100 pairs of inputs and
50 networks; c behind every activation, with its standard deviation. The paper names the widths 30
and 100, and does not name the depth. We take 100 layers, and widths up to 1000.

The paper finds that TReLU has a small error even at width 30; that under DKS deviations are much
larger, and with Gaussian weights the means at widths 30 and 100 are off; that orthogonal weights
have much smaller errors; and that standard deviations grow with depth. So do we, but:

- The error of DKS at width 30 is large with orthogonal weights too: c ends at 0.42, not at 0.28.
- Under TReLU the deviation is largest at about layer 25, and falls as all c values near 1.

Cost, on one core: 16 minutes; 3 at the scale `cpu`, which leaves out width 1000.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from skipless.core.graph import Graph
from skipless.core.measure import Check
from skipless.core.solution import DKS, TAT, Method
from skipless.core.solve import solve
from skipless.report.figures import draw_kernels
from skipless.runs.check import mlp, panel
from skipless.tables import table
from skipless.torch import check
from skipless.torch.init import Distribution, threads


@dataclass(frozen=True)
class Setting:
    """A method with the activation that it shapes, and the cosine of the inputs."""

    name: str
    method: Method
    activation: str
    cosine: float


TRELU = Setting("TReLU", TAT(eta=0.9), "leaky_relu", 0.0)
DKS_SOFTPLUS = Setting("DKS + SoftPlus", DKS(zeta=10.0), "softplus", 0.8)
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "orthogonal")


@dataclass(frozen=True)
class Scale:
    """How much is computed."""

    depth: int
    widths: tuple[int, ...]
    seeds: int
    pairs: int


SCALES = {
    "smoke": Scale(depth=20, widths=(10, 30), seeds=3, pairs=4),
    "cpu": Scale(depth=100, widths=(30, 100, 300), seeds=50, pairs=100),
    "paper": Scale(depth=100, widths=(30, 100, 300, 1000), seeds=50, pairs=100),
}


@dataclass(frozen=True)
class KernelError:
    """One line of a panel: networks of one width, checked."""

    setting: Setting
    distribution: Distribution
    width: int
    check: Check


def kernel_error(
    setting: Setting, distribution: Distribution, width: int, scale: Scale
) -> KernelError:
    """Networks of one width, checked at the given scale."""
    solution = solve(Graph.chain(scale.depth), setting.method, setting.activation)
    model = mlp(scale.depth, width, solution)
    with threads(1):
        found = check(
            model,
            torch.zeros(1, width),
            solution,
            cosines=(setting.cosine,),
            seeds=scale.seeds,
            pairs=scale.pairs,
            distribution=distribution,
        )
    return KernelError(setting, distribution, width, found)


def figure_4(scale: Scale) -> tuple[KernelError, ...]:
    """All lines of the figure, panel by panel: by distribution, then by setting."""
    return tuple(
        kernel_error(setting, distribution, width, scale)
        for distribution in DISTRIBUTIONS
        for setting in (TRELU, DKS_SOFTPLUS)
        for width in scale.widths
    )


def draw(errors: Sequence[KernelError], path: Path) -> Path:
    """Draw the figure into `path`; bars are standard deviations, as in the paper."""
    grouped: dict[str, dict[str, Check]] = {}
    for error in errors:
        title = f"{error.setting.name}, {error.distribution}"
        grouped.setdefault(title, {})[f"width {error.width}"] = error.check
    panels = [panel(title, checks, "c", bars="spread") for title, checks in grouped.items()]
    return draw_kernels(panels, "Empirical c values of finite networks", path)


def summary(errors: Sequence[KernelError]) -> str:
    """A table of the largest error of mean c, and of c behind the last layer."""
    rows = []
    for error in errors:
        worst = max(error.check.comparisons, key=lambda row: abs(row.c_difference))
        last = error.check.comparisons[-1]
        rows.append(
            [
                error.setting.name,
                error.distribution,
                str(error.width),
                f"{worst.c_difference:+.3f} ± {worst.measured.c.error:.3f}",
                f"{last.predicted.c:.3f}",
                f"{last.measured.c.mean:.3f}",
                f"{last.measured.c.spread:.3f}",
            ]
        )
    head = ["network", "weights", "width", "largest error of c", "last c", "measured", "deviation"]
    return table(head, rows)


def main(scale: str = "smoke", output: str = "kernel_error.png") -> None:
    """Compute the figure at a scale of `SCALES`, print its summary and draw it."""
    errors = figure_4(SCALES[scale])
    click.echo(summary(errors))
    click.echo(draw(errors, Path(output)))


if __name__ == "__main__":
    main(*sys.argv[1:])
