"""Three networks of 50 layers on 8x8 digits: what `make demo` trains and shows.

    python -m skipless.runs.demo out

Takes less than three minutes on two cores, 270 s of CPU. A network without shortcuts and
normalisation, with ReLU on the edge of chaos and with TReLU, beside the ResNet with BatchNorm from
which it is made. Each is trained with every learning rate of one grid, with and without gradient
clipping, from one seed, and with the best of these settings from two more.
"""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skipless.files import write_atomically
from skipless.record import RUN, Record
from skipless.report.comparison import (
    Contestant,
    NetworkComparison,
    SeedRun,
    Tuning,
    comparison_charts,
    conclusion,
    markdown_table,
    results_table,
    write_page,
)
from skipless.report.svg import svg_file
from skipless.train.data import load_data

from .configuration import CLIP, Configuration
from .kernels import network_curve
from .outcome import Outcome
from .place import Place
from .search import run_all

RATES = (0.01, 0.1, 0.3, 1.0)  # 0.001, 0.003, 0.03 and, for the ResNet, 3 were never best
SEEDS = (0, 1, 2)
BASE = Configuration(
    model="resnet50",
    width=0.125,
    epochs=15,
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

Trial = tuple[DemoNetwork, Tuning, int]  # with its seed

INTRODUCTION = (
    "Deep networks are thought to need shortcut connections and normalisation layers. Without "
    "them, a network of 50 layers maps any two images to almost the same output, and is slow to "
    "learn to tell them apart. skipless gives the activation function a slope below zero, just "
    "large enough to keep them apart."
)


def main(
    folder: Path,
    networks: Sequence[DemoNetwork] = NETWORKS,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
    workers: int | None = None,
) -> Path:
    """Trains all networks and prints a table; returns the page."""
    place = Place(folder / "demo", workers=workers)
    for old in place.folder.glob(f"runs/*/{RUN}"):  # only runs of an earlier demo
        shutil.rmtree(old.parent)
    (place.folder / "studies.db").unlink(missing_ok=True)
    started = time.perf_counter()
    runs = _train_all(networks, rates, seeds, place)
    comparison = _comparison(networks, runs, place, time.perf_counter() - started)
    print("", results_table(comparison), "", conclusion(comparison), sep="\n")  # noqa: T201
    page = write_page(folder / "demo.html", comparison)
    write_atomically(folder / "demo.svg", svg_file(*comparison_charts(comparison.contestants)))
    write_atomically(folder / "demo.md", markdown_table(comparison))
    print(f"\nTo see why, open {page.resolve()} in a browser.")  # noqa: T201
    return page


def _train_all(
    networks: Sequence[DemoNetwork], rates: Sequence[float], seeds: Sequence[int], place: Place
) -> dict[Trial, Outcome]:
    """Every network with all settings from the first seed, and its best one from the others."""
    settings = [Tuning(rate, clipped) for clipped in (False, True) for rate in rates]
    trials = [(network, setting, seeds[0]) for network in networks for setting in settings]
    print(  # noqa: T201
        f"{len(networks)} networks of about 50 layers learn to read handwritten digits.\n"
        f"1. Train each with {len(rates)} learning rates, with and without gradient clipping: "
        f"{len(trials)} runs."
    )
    runs = _train("demo", trials, place)
    best = {network: _contestant(network, runs, place).best for network in networks}
    trials = [(*own, seed) for own in best.items() for seed in seeds[1:]]
    print(  # noqa: T201
        f"2. Train each with its best setting from {len(seeds) - 1} more seeds: {len(trials)} runs."
    )
    return runs | _train("more seeds", trials, place)


def _train(study: str, trials: Sequence[Trial], place: Place) -> dict[Trial, Outcome]:
    names = {t: f"{t[0].label}, {t[1]}, seed {t[2]}" for t in trials}
    found = run_all(study, {name: configure(*t) for t, name in names.items()}, place)
    return {trial: found[name] for trial, name in names.items()}


def configure(network: DemoNetwork, setting: Tuning, seed: int) -> Configuration:
    """How one run of the demo is trained."""
    clip = CLIP if setting.clipped else None
    return replace(network.configuration, lr=setting.rate, clip=clip, seed=seed)


def _comparison(
    networks: Sequence[DemoNetwork], runs: Mapping[Trial, Outcome], place: Place, seconds: float
) -> NetworkComparison:
    given, some = networks[0].configuration, next(iter(runs.values()))
    rates = sorted({setting.rate for _, setting, _ in runs})
    seeds = list(dict.fromkeys(seed for _, _, seed in runs))
    return NetworkComparison(
        "A 50-layer network without shortcuts",
        INTRODUCTION,
        [_contestant(network, runs, place) for network in networks],
        len(load_data(given.data).validation),
        {
            "Data": "1,797 handwritten digits of 8x8 pixels, from scikit-learn",
            "Training": f"{given.epochs} epochs, batches of {given.batch_size}, SGD with momentum "
            f"0.9, {given.schedule} schedule",
            "Settings": f"learning rates {', '.join(f'{rate:g}' for rate in rates)}, each with and "
            f"without clipping of gradients to norm {CLIP:g}; seed {seeds[0]}",
            "Seeds": ", ".join(map(str, seeds)) + " for the best setting of each network",
            "Time": f"{seconds:.0f} s for all {len(runs)} runs, on {some.machine['cores']} cores",
            "Versions": ", ".join(f"{name} {version}" for name, version in some.versions.items()),
            "Date": some.started,
            "Reproduce": "make demo",
        },
    )


def _contestant(
    network: DemoNetwork, outcomes: Mapping[Trial, Outcome], place: Place
) -> Contestant:
    own = {trial: outcome for trial, outcome in outcomes.items() if trial[0] == network}
    runs: dict[Tuning, list[SeedRun]] = {}
    for trial, outcome in own.items():
        record = Record.read(place.run(configure(*trial)))
        runs.setdefault(trial[1], []).append(SeedRun(record, outcome.diverged))
    shortcuts = network.configuration.shortcut_weight is None
    return Contestant(
        network.label,
        network.description,
        shortcuts,
        shortcuts,
        next(iter(own.values())).parameters,
        network_curve(network.configuration),
        runs,
    )


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
    target.mkdir(parents=True, exist_ok=True)
    try:
        main(target)
    except (KeyboardInterrupt, InterruptedError):
        sys.exit("demo: stopped")
