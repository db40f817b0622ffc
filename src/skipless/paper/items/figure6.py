"""Figure 6: K-FAC with its curvature updated less often, by steps and by seconds.

    skipless reproduce figure6 --scale cpu

The paper: a step takes 2.5 times that of SGD when the curvature is updated every step and inverted
every 50, and 1.25 times with periods of 10 and 200, without a loss worth mentioning.
"""

import math
from dataclasses import replace

from skipless.paper.item import (
    Cell,
    Claim,
    Fit,
    Item,
    Judgement,
    Results,
    Summary,
    accuracy_curves,
    none_below,
)
from skipless.paper.scales import TRELU, Options, vanilla

ROWS: dict[str, Options] = {
    "SGD": {"optimizer": "sgd"},
    "K-FAC (1, 50)": {
        "optimizer": "kfac",
        "kfac_curvature_period": 1,
        "kfac_inverse_period": 50,
    },
    "K-FAC (10, 200)": {
        "optimizer": "kfac",
        "kfac_curvature_period": 10,
        "kfac_inverse_period": 200,
    },
}
OFTEN, SELDOM = "K-FAC (1, 50)", "K-FAC (10, 200)"
COLUMN = "accuracy"
PAPER = {OFTEN: 2.5, SELDOM: 1.25}  # seconds of a step over those of SGD


def step_ratio(results: Results, row: str) -> float:
    """Seconds of a step over those of SGD: the fastest runs of each, which others disturb least."""

    def fastest(name: str) -> float:
        whole = (t.outcome for t in results.trials if t.row == name and not t.outcome.diverged)
        return min((o.seconds for o in whole if o.seconds is not None), default=math.nan)

    return fastest(row) / fastest("SGD")


def _cheaper(results: Results) -> Judgement:
    ratios = {row: step_ratio(results, row) for row in PAPER}
    if any(math.isnan(ratio) for ratio in ratios.values()):
        return None, ""
    told = ", ".join(f"{row} {ratio:.2f} (paper {PAPER[row]})" for row, ratio in ratios.items())
    return ratios[SELDOM] < 0.75 * ratios[OFTEN], f"seconds of a step over SGD's: {told}"


def _curves(results: Results) -> dict[str, Summary | None]:
    return {row: results.cell(row, COLUMN) for row in ROWS}


ITEM = Item(
    name="figure6",
    title="Figure 6: K-FAC with fewer updates of the curvature",
    label="fig:K-FAC_speed",
    minutes={"cpu": 4},
    introduction="The vanilla TReLU network of 50 layers with K-FAC, whose curvature is updated "
    "every step and inverted every 50, or every 10 and every 200.",
    claims=(
        Claim(
            "Updating less often does not cost accuracy",
            lambda r: none_below(r, [((SELDOM, COLUMN), (OFTEN, COLUMN))]),
        ),
        Claim("Updating less often makes a step a quarter cheaper, or more", _cheaper),
    ),
    cells=tuple(Cell(row, COLUMN, {**vanilla(50), **TRELU, **run}) for row, run in ROWS.items()),
    charts=lambda r: [
        accuracy_curves("Validation accuracy by epoch", _curves(r)),
        accuracy_curves("Validation accuracy by seconds", _curves(r), seconds=True),
    ],
    fits={
        "cpu": Fit(
            change=lambda scale: replace(
                scale,
                options={**scale.options, "evaluate_every": 1},
                rates={**scale.rates, "sgd": (0.03, 0.01), "kfac": (0.01,)},
                epochs=1 / 9,
                seeds=lambda _: 3,
            )
        )
    },
)
