"""Draw the paper's figure 4: c values of finite networks beside those that theory predicts.

python examples/kernel_error.py cpu
"""

import sys
from pathlib import Path

from skipless.core.measure import Check
from skipless.paper.computed import KERNEL_SCALES, kernel_errors
from skipless.report.figures import draw_kernels
from skipless.runs.check import panel
from skipless.tables import table


def main(scale: str = "smoke", path: str = "kernel_error.png") -> None:
    panels: dict[str, dict[str, Check]] = {}
    rows = []
    for error in kernel_errors(KERNEL_SCALES[scale]):
        panels.setdefault(error.panel, {})[f"width {error.width}"] = error.check
        worst = max(error.check.comparisons, key=lambda row: abs(row.c_difference))
        last = error.check.comparisons[-1]
        rows.append(
            [
                error.panel,
                str(error.width),
                f"{worst.c_difference:+.3f} ± {worst.measured.c.error:.3f}",
                f"{last.predicted.c:.3f}",
                f"{last.measured.c.mean:.3f}",
                f"{last.measured.c.spread:.3f}",
            ]
        )
    print(table(["network", "width", "largest error", "last c", "measured", "deviation"], rows))
    drawn = [panel(title, checks, "c", bars="spread") for title, checks in panels.items()]
    print(draw_kernels(drawn, "Empirical c values of finite networks", Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
