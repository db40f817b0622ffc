"""`skipless tune`: a short search over rate, target and clipping for a user's own run."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from skipless.core.solution import UnreachableTargetError
from skipless.record import Json
from skipless.tables import table

from .configuration import CLIP, CLIPPED_RATE, Configuration, flag
from .kernels import network_curve
from .outcome import Tried
from .place import Place
from .search import Experiment, Range, Sweep, best_setting, search_all
from .training import DEFAULT_RATES, load_images

TUNABLE = ("lr", "eta", "tau", "zeta", "clip", "kfac_norm_constraint")

_HELD_OUT = 0.1  # of the training images
_ETAS = (0.9, 0.8, 0.6, 0.95)  # the default first
_SMOOTH = {"tau": (Range(0.1, 1.0), 0.3), "zeta": (Range(1.1, 20.0), 1.5)}
_NORM_CONSTRAINT = Range(1e-4, 1e-2), 1e-3
_LOWEST, _HIGHEST = 0.1, 30.0  # of the default learning rate; one that is too high shows early
_LOOKS = 9  # a trial may stop after a ninth of its epochs, and after a third

Choices = Range | tuple[Json, ...]


def plan_sweep(
    configuration: Configuration, given: Collection[str], over: Collection[str], trials: int
) -> Sweep:
    """What is tuned: all of `over`, or without it, all that applies but what is `given`."""
    choices = {name: own for name, own in _choices(configuration).items() if name not in given}
    for name in over:
        if name in given:
            raise ValueError(f"{flag(name)} is given and to be tuned. Drop one of the two.")
        if name not in choices:
            raise ValueError(
                f"{name} does not apply to this run, of which {', '.join(choices)} can be tuned"
            )
    wanted = {*over, "lr"} if "clip" in over else over  # the best rate depends on clipping
    chosen = {name: own for name, own in choices.items() if not over or name in wanted}
    if not chosen:
        raise ValueError("Nothing is left to tune: drop some of the options, such as --lr")
    tuned = replace(_hold_out(configuration), evaluate_every=1, validation_size=None)
    space: dict[str, Choices] = {name: values for name, (values, _) in chosen.items()}
    first = {name: value for name, (_, value) in chosen.items()}
    return Sweep(tuned, space, trials, first, max(1, configuration.epochs // _LOOKS))


def _choices(configuration: Configuration) -> dict[str, tuple[Choices, Json]]:
    """What can be tuned of a run, by option: the values, and the one to try first."""
    rate = DEFAULT_RATES[configuration.optimizer] * (10 if configuration.normalised else 1)
    if configuration.optimizer == "sgd":
        rate = CLIPPED_RATE  # as the first trial is clipped
    found: dict[str, tuple[Choices, Json]] = {"lr": (Range(_LOWEST * rate, _HIGHEST * rate), rate)}
    if configuration.method == "tat" and (etas := _reachable_etas(configuration)):
        found["eta"] = etas, etas[0]
    elif configuration.method in ("tat", "dks"):
        name = "tau" if configuration.method == "tat" else "zeta"
        found[name] = _SMOOTH[name]
    if configuration.optimizer == "kfac":
        found["kfac_norm_constraint"] = _NORM_CONSTRAINT
    else:
        found["clip"] = (CLIP, "none"), CLIP
    return found


def _reachable_etas(configuration: Configuration) -> tuple[float, ...]:
    """The values of η that depth and shortcuts allow; none where η does not apply."""
    if configuration.activation not in (None, "leaky_relu"):
        return ()
    found = []
    for eta in _ETAS:
        try:
            network_curve(replace(configuration, eta=eta, clamp=False))
        except UnreachableTargetError:
            continue
        found.append(eta)
    return tuple(found) or (_ETAS[-2],)


def _hold_out(configuration: Configuration) -> Configuration:
    """The configuration with some training images held out, a tenth unless it says how many."""
    if configuration.held_out is not None:
        return configuration
    everything = len(load_images(replace(configuration, train_size=None)).train)
    used = configuration.train_size or everything
    count = max(1, round(_HELD_OUT * used))
    if configuration.train_size is not None:
        count = min(count, everything - used)
    return replace(configuration, held_out=count)


def tune(sweep: Sweep, place: Place) -> tuple[Tried, ...]:
    """What was tried, in that order."""
    experiment = Experiment(sweep, sweep.configuration, seeds=())
    return search_all("tune", {"": experiment}, place)[""].tried


def format_tuning(sweep: Sweep, tried: Sequence[Tried], given: Mapping[str, object]) -> str:
    """A table of all settings, the best first, and the command that trains with that."""
    best = best_setting(tried)
    ranked = sorted(tried, key=lambda t: (t.chosen == best, t.epochs, t.accuracy or 0.0))
    rows = [
        [
            *(f"{own.chosen[name]}" for name in sweep.space),
            "diverged" if own.accuracy is None else f"{own.accuracy:.2%}",
            f"{own.epochs:g}",
        ]
        for own in reversed(ranked)
    ]
    held_out = f"accuracy on {sweep.configuration.held_out:,} held-out images"
    values = {n: value for n, value in {**given, **best}.items() if value is not None}
    values.pop("held_out", None)  # now on all training images
    words = [
        table([*(name.removeprefix("kfac_") for name in sweep.space), held_out, "epochs"], rows),
        "Trials with fewer epochs were behind, and stopped.",
        "Train with the best setting, on all training images:",
        f"  {_command(values)}",
    ]
    return "\n\n".join(words)


def _command(values: Mapping[str, object]) -> str:
    words = ["skipless train"]
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else f"--no-{flag(name)[2:]}")
        else:
            words.append(f"{flag(name)} {shlex.quote(str(value))}")
    return " ".join(words)
