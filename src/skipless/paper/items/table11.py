"""Table 11: Orthogonal Delta against Gaussian fan-in initialisation.

    skipless reproduce table11 --scale cpu

The paper: neither is clearly better than the other.
"""

from skipless.paper.item import Cell, Claim, Fit, Item, Judgement, Results, cells, difference, part
from skipless.paper.scales import GAUSSIAN, RELU, TRELU, Options, optimised, standard, vanilla

PAPER = {
    (50, "K-FAC", "Orth Delta"): (76.4, 72.6, 74.6),
    (50, "K-FAC", "Gaussian"): (76.5, 72.5, 74.8),
    (50, "SGD", "Orth Delta"): (76.3, 63.7, 71.0),
    (50, "SGD", "Gaussian"): (76.6, 63.1, 68.7),
    (101, "K-FAC", "Orth Delta"): (77.8, 71.8, 74.2),
    (101, "K-FAC", "Gaussian"): (77.8, 72.3, 74.1),
    (101, "SGD", "Orth Delta"): (77.9, 41.6, 70.0),
    (101, "SGD", "Gaussian"): (78.0, 41.1, 68.7),
}
COLUMNS = ("ResNet", "EOC", "TAT")
INITIALISATIONS: dict[str, Options] = {"Orth Delta": {}, "Gaussian": GAUSSIAN}
SETTINGS = tuple(dict.fromkeys((depth, optimizer) for depth, optimizer, _ in PAPER))


def _network(column: str, depth: int) -> Options:
    networks = {
        "ResNet": standard(depth),
        "EOC": {**vanilla(depth), **RELU},
        "TAT": {**vanilla(depth), **TRELU},
    }
    return networks[column]


CELLS = tuple(
    Cell(
        f"{depth}, {optimizer}, {initialisation}",
        column,
        {**_network(column, depth), **INITIALISATIONS[initialisation], **optimised(optimizer)},
        accuracy,
    )
    for (depth, optimizer, initialisation), accuracies in PAPER.items()
    for column, accuracy in zip(COLUMNS, accuracies, strict=True)
)


def _level(results: Results, column: str) -> Judgement:
    """Whether both initialisations are within the paper's largest difference, or noise."""
    told, level = [], []
    for depth, optimizer in SETTINGS:
        rows = [f"{depth}, {optimizer}, {name}" for name in INITIALISATIONS]
        if (found := cells(results, [(row, column) for row in rows])) is None:
            continue
        gap = difference(*found)
        level.append(abs(gap.points) <= max(LEVEL, gap.noise))  # not if one of them diverged
        told.append(f"{depth}, {optimizer}: orthogonal {found[0]}, Gaussian {found[1]} ({gap})")
    evidence = "; ".join(told) + part(len(level), len(SETTINGS))
    return (all(level), evidence) if level else (None, "")


LEVEL = 2.3  # points: the largest difference in the paper's table

ITEM = Item(
    name="table11",
    title="Table 11: orthogonal against Gaussian initialisation",
    label="table:init",
    minutes={"cpu": 12},
    introduction="Orthogonal weights at the centre of each kernel, or Gaussian ones in all of it.",
    claims=tuple(
        Claim(
            f"{column}: both initialisations are level, as far as the paper's are",
            lambda r, column=column: _level(r, column),
        )
        for column in COLUMNS
    ),
    cells=CELLS,
    fits={"cpu": Fit(keep=lambda cell: cell.row[:2] == "50")},
)
