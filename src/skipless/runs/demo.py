"""Three networks of 50 layers on 8x8 digits: what `make demo` trains and shows.

    python -m skipless.runs.demo out

Takes about three minutes on two cores. A network without shortcuts and normalisation, with ReLU on
the edge of chaos and with TReLU, beside the ResNet with BatchNorm from which it is made. Each is
trained with every learning rate of one grid, and the page shows its best run.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skipless.record import RUN, Record
from skipless.report.comparison import (
    Contestant,
    NetworkComparison,
    conclusion,
    results_table,
    write_page,
)
from skipless.train.data import load_data

from .configuration import Configuration
from .kernels import network_curve
from .outcome import Outcome
from .search import Place, run_all

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
BASE = Configuration(
    model="resnet50",
    width=0.125,
    epochs=20,
    label_smoothing=0.0,
    threads=1,
    log_every=5,
    checkpoint_every=10**9,  # at the end only
    keep=1,
)


@dataclass(frozen=True)
class DemoNetwork:
    """A network to compare, and how to introduce it."""

    label: str
    description: str
    configuration: Configuration


NETWORKS = (
    DemoNetwork(
        "Vanilla with ReLU",
        "ResNet-50 without any shortcut or normalisation layer, its weights initialised on the "
        "edge of chaos, the best known initialisation for ReLU.",
        replace(BASE, shortcut_weight=0.0, method="eoc"),
    ),
    DemoNetwork(
        "Vanilla with TReLU",
        "The same network, but its ReLUs have a slope below zero, for which skipless solves.",
        replace(BASE, shortcut_weight=0.0, method="tat", eta=0.9),
    ),
    DemoNetwork(
        "ResNet with BatchNorm",
        "The usual ResNet-50, with shortcuts and batch normalisation. Normalisation depends on the "
        "batch, so no C map describes it.",
        BASE,
    ),
)

INTRODUCTION = (
    "Deep networks are thought to need shortcut connections and normalisation layers. Without "
    "them, a network of 50 layers maps any two images to almost the same output, and cannot learn "
    "to tell them apart. skipless gives the activation function a slope below zero, just large "
    "enough that it can."
)


def main(
    folder: Path,
    networks: Sequence[DemoNetwork] = NETWORKS,
    rates: Sequence[float] = RATES,
    workers: int | None = None,
) -> Path:
    """Trains all networks and prints a table; returns the page."""
    place = Place(folder / "demo", workers=workers)
    for old in place.folder.glob(f"runs/*/{RUN}"):  # only runs of an earlier demo
        shutil.rmtree(old.parent)
    (place.folder / "studies.db").unlink(missing_ok=True)
    name = "{0.label}, rate {1:g}".format
    runs = {name(n, rate): replace(n.configuration, lr=rate) for n in networks for rate in rates}
    print(  # noqa: T201
        f"Training {len(networks)} networks of about 50 layers on handwritten digits, each with "
        f"{len(rates)} learning rates: {len(runs)} runs."
    )
    started = time.perf_counter()
    found = run_all("demo", runs, place)
    seconds = time.perf_counter() - started
    outcomes = {n: {rate: found[name(n, rate)] for rate in rates} for n in networks}
    comparison = _comparison(outcomes, place, seconds)
    print("", results_table(comparison), "", conclusion(comparison), sep="\n")  # noqa: T201
    page = write_page(folder / "demo.html", comparison)
    print(f"\nTo see why, open {page.resolve()} in a browser.")  # noqa: T201
    return page


def _comparison(
    outcomes: Mapping[DemoNetwork, Mapping[float, Outcome]], place: Place, seconds: float
) -> NetworkComparison:
    network, runs = next(iter(outcomes.items()))
    given, some = network.configuration, next(iter(runs.values()))
    return NetworkComparison(
        "A 50-layer network without shortcuts",
        INTRODUCTION,
        [_contestant(own, by_rate, place) for own, by_rate in outcomes.items()],
        len(load_data(given.data).validation),
        {
            "Data": "1,797 handwritten digits of 8x8 pixels, from scikit-learn",
            "Training": f"{given.epochs} epochs, batches of {given.batch_size}, SGD with momentum "
            f"0.9, {given.schedule} schedule; seed {given.seed}",
            "Learning rates": ", ".join(f"{rate:g}" for rate in runs) + ", for every network",
            "Time": f"{seconds:.0f} s for all runs, on {some.machine['cores']} cores",
            "Versions": ", ".join(f"{name} {version}" for name, version in some.versions.items()),
            "Date": some.started,
            "Reproduce": "make demo",
        },
    )


def _contestant(
    network: DemoNetwork, outcomes: Mapping[float, Outcome], place: Place
) -> Contestant:
    given, grid = network.configuration, dict.fromkeys(outcomes, math.nan)
    records = {rate: Record.read(place.run(replace(given, lr=rate))) for rate in outcomes}
    for rate, outcome in outcomes.items():
        if not outcome.diverged:
            grid[rate] = records[rate].series("validation", "top1")[1][-1]
    best = max(grid, key=lambda rate: -1.0 if outcomes[rate].diverged else grid[rate])
    return Contestant(
        network.label,
        network.description,
        given.shortcut_weight is None,
        given.shortcut_weight is None,
        outcomes[best].parameters,
        network_curve(given),
        records[best],
        grid,
        outcomes[best].seconds or math.nan,
    )


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    target.mkdir(parents=True, exist_ok=True)
    try:
        main(target)
    except (KeyboardInterrupt, InterruptedError):
        sys.exit("demo: stopped")
