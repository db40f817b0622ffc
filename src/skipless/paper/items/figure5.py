"""Figure 5: Wide ResNets without shortcuts on CIFAR-10, by depth.

    skipless reproduce figure5 --scale cpu

The paper: from depth 100 to 304, EOC drops dramatically, and TAT stays as it is. K-FAC, 200 epochs,
the learning rate falls at 75 and 150, damping 0.01, norm constraint 0.0001 (appendix E.2).
"""

from dataclasses import replace

from skipless.paper.item import (
    Cell,
    Claim,
    Fit,
    Item,
    Pair,
    Results,
    all_above,
    by_column,
    none_below,
)
from skipless.paper.scales import RELU, TRELU, Options, optimised, wide_vanilla

DEPTHS = (100, 154, 202, 250, 304)
ON_CPU = ("100", "202")
METHODS = {"EOC": RELU, "TAT": TRELU}
TRAINING: Options = {"epochs": 200, "marks": "75/200,150/200", "kfac_preset": "cifar10"}

CELLS = tuple(
    Cell(
        method,
        str(depth),
        {**wide_vanilla(depth), **METHODS[method], **optimised("K-FAC"), **TRAINING},
    )
    for method in METHODS
    for depth in DEPTHS
)


def _ends(results: Results) -> tuple[str, str]:
    """The smallest and the largest depth that was run."""
    run = [trial.column for trial in results.trials]
    return (min(run, key=int), max(run, key=int)) if run else ("100", "304")


def _fall(results: Results, method: str) -> list[Pair]:
    """The cells at both ends, if these differ."""
    shallow, deep = _ends(results)
    return [((method, shallow), (method, deep))] if shallow != deep else []


def _rise(results: Results, method: str) -> list[Pair]:
    return [(deep, shallow) for shallow, deep in _fall(results, method)]


ITEM = Item(
    name="figure5",
    title="Figure 5: CIFAR-10, Wide ResNets without shortcuts by depth",
    label="fig:cifar",
    minutes={"cpu": 7},
    introduction="Wide ResNets without shortcuts and normalisation, with ReLU (EOC) and TReLU "
    "(TAT), trained with K-FAC on CIFAR-10. The scale cpu has one learning rate, 0.003.",
    claims=(
        Claim(
            "TAT beats EOC at every depth",
            lambda r: all_above(r, [(("TAT", str(d)), ("EOC", str(d))) for d in DEPTHS]),
        ),
        Claim("EOC drops with depth", lambda r: all_above(r, _fall(r, "EOC"))),
        Claim(
            "TAT at the largest depth is within 2 points of its accuracy at the smallest",
            lambda r: none_below(r, _rise(r, "TAT"), margin=2.0),
        ),
    ),
    cells=CELLS,
    charts=lambda r: [by_column(r, list(METHODS), [str(d) for d in DEPTHS], "depth")],
    fits={
        "full": Fit(
            change=lambda scale: replace(scale, options={**scale.options, "data": "cifar10"})
        ),
        "cpu": Fit(
            keep=lambda cell: cell.column in ON_CPU,
            change=lambda scale: replace(
                scale,
                options={**scale.options, "data": "cifar10", "image_size": 8, "train_size": 5120},
                rates={"kfac": (0.003,)},
                epochs=1 / 40,
                width=1 / 4,
                seeds=lambda _: 1,
            ),
        ),
    },
)
