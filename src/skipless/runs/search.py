"""Many runs by name, each trained once, and settings chosen on held-out training images.

    outcomes = run_all("rates", {"rate 0.1": Configuration(...), ...}, Place(Path("out")))
    sweep = Sweep(Configuration(..., held_out=1000), {"lr": Range(0.01, 1)})
    results = search_all("best", {"ResNet": Experiment(sweep, Configuration(...), (0, 1))}, place)

Any number of workers on any number of machines share the work through an Optuna data base: a SQLite
file on one machine, a server for several, with the same call on each of them. A worker that dies
loses only its run, which another one takes over, from the last checkpoint if they share a disk. A
search that was stopped resumes when it is started again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial

from skipless.record import METRICS, Json, Record

from .configuration import Configuration
from .outcome import Ending, Outcome, Tried
from .place import Place, digest, run_key, run_once, train_to_end
from .study import Database, SharedStudy
from .workers import Job, broadcast, is_main, share_work

_DIGITS = 3  # of a number that is tuned
_REDUCTION = 3  # one trial of so many goes on, at each look
_TUNING_COST = 0.5  # of a trial beside a run that ends, as most are stopped


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, searched by their logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 < self.low < self.high:
            raise ValueError(f"A range needs 0 < low < high, got {self.low:g} and {self.high:g}")


@dataclass(frozen=True)
class Sweep:
    """Options of a run to be chosen by its accuracy on held-out training images.

    Optuna's TPE sampler proposes `trials` settings, the first of them `first`. After
    `least_epochs`, and three and nine times as many, a trial stops unless it is among the best
    third of those that got so far (successive halving).
    """

    configuration: Configuration
    space: Mapping[str, Range | tuple[Json, ...]]  # by option
    trials: int = 8
    first: Mapping[str, Json] = field(default_factory=dict)
    least_epochs: int = 2

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise ValueError(f"trials must be at least 0, got {self.trials}")
        if self.trials and self.configuration.held_out is None:
            raise ValueError("A tuned configuration must have held_out, the images to judge by")

    @property
    def key(self) -> str:
        """A short name that two sweeps share only if they have the same result."""
        space = {n: asdict(c) if isinstance(c, Range) else c for n, c in self.space.items()}
        given = [self.trials, dict(self.first), self.least_epochs]
        return digest([run_key(self.configuration), space, *given])

    def suggest(self, trial: optuna.Trial) -> dict[str, Json]:
        """The values of a trial, with few digits."""
        chosen: dict[str, Json] = {}
        for name, choices in self.space.items():
            if isinstance(choices, Range):
                value = trial.suggest_float(name, choices.low, choices.high, log=True)
                chosen[name] = float(f"{value:.{_DIGITS}g}")
            else:
                chosen[name] = trial.suggest_categorical(name, choices)  # pyright: ignore
        return chosen


def configure(configuration: Configuration, chosen: Mapping[str, Json]) -> Configuration:
    """The configuration with the values that were chosen by tuning."""
    return Configuration.of(configuration.as_mapping(), chosen)


def best_setting(tried: Sequence[Tried]) -> Mapping[str, Json]:
    """The setting that finished with the highest accuracy; if none did, the one that came closest.

    >>> stopped = Tried({"lr": 1.0}, 0.9, epochs=2.0, ending="stopped", seconds=1.0)
    >>> best_setting([stopped, Tried({"lr": 0.1}, 0.5, 10.0, "finished", 5.0)])
    {'lr': 0.1}
    """
    return max(tried, key=lambda t: (t.ending == "finished", t.accuracy or 0.0)).chosen


@dataclass(frozen=True)
class _Search(ABC):
    """What a worker has to know to open the studies of a search and to work on them."""

    name: str
    place: Place
    seconds_until_dead: int
    teachers: Mapping[str, Configuration]  # by the name that runs have as `teacher`

    @property
    @abstractmethod
    def configurations(self) -> Sequence[Configuration]:
        """One for each run, or two for each experiment."""

    @abstractmethod
    def jobs(self, database: Database) -> list[Job]:
        """The studies, each with what a worker does for a trial."""

    @abstractmethod
    def with_threads(self, threads: int) -> "_Search":
        """The search with so many threads for each run that does not say."""

    def train(
        self,
        configuration: Configuration,
        should_stop: Callable[[float, float], bool] = lambda epoch, top1: False,
    ) -> Ending:
        """Trains a run, from its checkpoint if it has one."""
        folder = self.place.run(configuration)
        if (teacher := self.teachers.get(configuration.teacher or "")) is not None:
            # Of the student's seed, and without the images that judge it.
            own = replace(teacher, seed=configuration.seed, held_out=configuration.held_out)
            configuration = replace(configuration, teacher=str(self._train_teacher(own)))
        return train_to_end(configuration, folder, should_stop)

    def _train_teacher(self, configuration: Configuration) -> Path:
        """The folder of a teacher, which the first run that needs it trains."""
        folder = self.place.teacher(configuration)
        if not is_main():
            if broadcast(None):  # the first process says whether all of them train it
                train_to_end(configuration, folder)
            return folder
        trained = False

        def train_run() -> Ending:
            nonlocal trained
            trained = broadcast(True)
            return train_to_end(configuration, folder)

        run_once(folder, train_run, keep_weights=True)
        if not trained:
            broadcast(False)
        return folder


@dataclass(frozen=True)
class _Runs(_Search):
    """Every one of `runs`, once."""

    runs: Mapping[str, Configuration]

    @property
    def configurations(self) -> Sequence[Configuration]:
        return list(self.runs.values())

    def with_threads(self, threads: int) -> "_Runs":
        return replace(self, runs=_with_threads(self.runs, threads))

    def jobs(self, database: Database) -> list[Job]:
        names = sorted(self.runs)
        keys = [run_key(self.runs[name]) for name in names]
        study = SharedStudy(
            database,
            f"{self.name}-{digest([names, keys])}",
            len(names),
            lambda _: optuna.samplers.GridSampler({"run": range(len(names))}),
            distinct=True,
        )

        def train_next(trial: optuna.Trial) -> float:
            configuration = self.runs[names[trial.suggest_int("run", 0, len(names) - 1)]]
            folder = self.place.run(configuration)
            outcome = run_once(folder, lambda: self.train(broadcast(configuration)))
            trial.set_user_attr("outcome", outcome.as_mapping())
            return outcome.top1 or 0.0

        def describe(trial: FrozenTrial) -> str:
            name = names[trial.params["run"]] if trial.params else ""
            return f"{name}{self._progress(name)}"

        return [Job(study, train_next, describe)] if names else []

    def _progress(self, name: str) -> str:
        """The last evaluation of a run, as far as it is on this disk."""
        folder = self.place.run(self.runs[name]) if name else self.place.folder
        if not (folder / METRICS).exists():
            return ""
        record = Record.read(folder)
        epochs, accuracies = (record.series("validation", n)[1] for n in ("epoch", "top1"))
        return f" epoch {epochs[-1]:g}: {accuracies[-1]:.0%}" if epochs else ""

    def outcomes(self, jobs: Sequence[Job]) -> dict[str, Outcome]:
        """The outcome of each run by its name, once all are done."""
        names = sorted(self.runs)
        done = {names[t.params["run"]]: t for job in jobs for t in job.study.trials()}
        return {name: Outcome.of(done[name].user_attrs["outcome"]) for name in self.runs}


@dataclass(frozen=True)
class Experiment:
    """A run to tune, and then to train with the best setting from several seeds.

    Without `trials`, its tuning takes the first setting. What is `known` of it from an earlier
    search need not be tuned again.
    """

    sweep: Sweep
    final: Configuration
    seeds: tuple[int, ...]
    known: tuple[Tried, ...] = ()

    @property
    def key(self) -> str:
        """A short name that two experiments share only if they have the same result."""
        known = [dict(best_setting(self.known))] if self.known else []
        return digest([self.sweep.key, run_key(self.final), self.seeds, *known])

    def run(self, chosen: Mapping[str, Json], seed: int) -> Configuration:
        """The final run with a setting and a seed."""
        return replace(configure(self.final, chosen), seed=seed)

    def final_runs(self) -> dict[int, Configuration]:
        """The final runs by their seed, if no more tuning is needed."""
        chosen = best_setting(self.known) if self.known else self.sweep.first
        return {seed: self.run(chosen, seed) for seed in self.seeds}


@dataclass(frozen=True)
class ExperimentResult:
    """What was tried for an experiment, and the outcomes of its final runs by their seed."""

    tried: tuple[Tried, ...]
    chosen: Mapping[str, Json] | None  # None while it is tuned
    outcomes: Mapping[int, Outcome]


@dataclass(frozen=True)
class _Experiments(_Search):
    """All of `experiments`: each is tuned, and its final runs can start as soon as it is."""

    experiments: Mapping[str, Experiment]

    @property
    def configurations(self) -> Sequence[Configuration]:
        return [
            c for own in self.experiments.values() for c in (own.sweep.configuration, own.final)
        ]

    def with_threads(self, threads: int) -> "_Experiments":
        def give(configuration: Configuration) -> Configuration:
            return _with_threads({"": configuration}, threads)[""]

        return replace(
            self,
            experiments={
                name: replace(
                    own,
                    sweep=replace(own.sweep, configuration=give(own.sweep.configuration)),
                    final=give(own.final),
                )
                for name, own in self.experiments.items()
            },
        )

    def jobs(self, database: Database) -> list[Job]:
        found = []
        for name, experiment in self.experiments.items():
            tuning = None
            if experiment.sweep.trials and not experiment.known:
                found.append(tuning := self._sweep_job(database, name, experiment.sweep))
            found.append(self._final_job(database, name, experiment, tuning))
        return found

    def _sweep_job(self, database: Database, name: str, sweep: Sweep) -> Job:
        key = sweep.key
        study = SharedStudy(
            database,
            f"tuning-{key}",
            sweep.trials,
            lambda count: optuna.samplers.TPESampler(
                n_startup_trials=max(3, sweep.trials // 2),
                multivariate=len(sweep.space) > 1,
                constant_liar=True,
                seed=int(key, 16) % 2**31 + count,
            ),
            optuna.pruners.SuccessiveHalvingPruner(
                min_resource=sweep.least_epochs, reduction_factor=_REDUCTION
            ),
            sweep.first,
        )

        def try_next(trial: optuna.Trial) -> float:
            return self._try(trial, sweep)

        def describe(trial: FrozenTrial) -> str:
            last = trial.last_step
            at = "" if last is None else f" epoch {last}: {trial.intermediate_values[last]:.0%}"
            return f"{name}, tuned{at}"

        return Job(study, try_next, describe, sweep.configuration.epochs * _TUNING_COST)

    def _final_job(
        self, database: Database, name: str, experiment: Experiment, tuning: Job | None
    ) -> Job:
        study = SharedStudy(
            database,
            f"seeds-{experiment.key}",
            len(experiment.seeds),
            lambda _: optuna.samplers.GridSampler({"seed": range(len(experiment.seeds))}),
            distinct=True,
        )

        def train_next(trial: optuna.Trial) -> float:
            seed = experiment.seeds[trial.suggest_int("seed", 0, len(experiment.seeds) - 1)]
            chosen = _choose(experiment, tuning)
            configuration = experiment.run(chosen, seed)
            folder = self.place.run(configuration)
            outcome = run_once(folder, lambda: self.train(broadcast(configuration)))
            trial.set_user_attr("chosen", dict(chosen))
            trial.set_user_attr("outcome", outcome.as_mapping())
            return outcome.top1 or 0.0

        describe = lambda trial: f"{name}, seed {trial.params.get('seed', '')}"
        return Job(study, train_next, describe, experiment.final.epochs, after=tuning)

    def _try(self, trial: optuna.Trial, sweep: Sweep) -> float:
        chosen = sweep.suggest(trial)
        configuration = configure(sweep.configuration, chosen)
        reported: set[int] = set()

        def is_hopeless(epoch: float, top1: float) -> bool:
            step = int(epoch)
            if step < 1 or step in reported:
                return False
            reported.add(step)
            trial.report(top1, step)
            return trial.should_prune()

        outcome = run_once(
            self.place.run(configuration),
            lambda: self.train(broadcast(configuration), is_hopeless),
        )
        curve = outcome.validation
        for epoch, top1 in zip(curve.epochs, curve.top1, strict=True):
            is_hopeless(epoch, top1)  # for the pruner, where another search has trained it
        epochs = curve.epochs[-1] if curve.epochs else 0.0
        tried = Tried(chosen, outcome.top1, epochs, outcome.ending, outcome.seconds)
        trial.set_user_attr("tried", asdict(tried))
        if outcome.stopped:
            raise optuna.TrialPruned
        return outcome.top1 or 0.0

    def results(self, jobs: Sequence[Job]) -> dict[str, ExperimentResult]:
        """What there is of each experiment, by its name, also while workers are still at it."""
        found, left = {}, iter(jobs)
        for name, experiment in self.experiments.items():
            final = next(left)
            tuning = None
            if experiment.sweep.trials and not experiment.known:
                tuning, final = final, next(left)
            tuned = tuning is None or tuning.is_done()
            done = {experiment.seeds[t.params["seed"]]: t.user_attrs for t in final.study.trials()}
            found[name] = ExperimentResult(
                experiment.known if tuning is None else _tried(tuning),
                _choose(experiment, tuning) if tuned else None,
                {
                    seed: Outcome.of(done[seed]["outcome"])
                    for seed in experiment.seeds
                    if seed in done
                },
            )
        return found


def _tried(tuning: Job) -> tuple[Tried, ...]:
    return tuple(Tried(**trial.user_attrs["tried"]) for trial in tuning.study.trials())


def _choose(experiment: Experiment, tuning: Job | None) -> Mapping[str, Json]:
    """The best setting of an experiment that has been tuned."""
    tried = experiment.known if tuning is None else _tried(tuning)
    return best_setting(tried) if tried else experiment.sweep.first


def _with_threads(runs: Mapping[str, Configuration], threads: int) -> dict[str, Configuration]:
    return {n: replace(c, threads=threads) if c.threads is None else c for n, c in runs.items()}


def run_all(
    study: str,
    runs: Mapping[str, Configuration],
    place: Place,
    *,
    seconds_until_dead: int = 120,
    teachers: Mapping[str, Configuration] | None = None,
) -> dict[str, Outcome]:
    """Runs every configuration; returns outcomes by name, once all workers are done.

    Args:
        study: Name of the search in the data base.
        runs: Configurations by name.
        place: Where results go.
        seconds_until_dead: A worker on another machine without a sign of life for so long loses its
            run to another.
        teachers: Teachers by the name that runs have as `teacher`. Each machine trains one for each
            seed of its students, before these.

    An error in one run stops the search on this machine, and is raised. Under `torchrun`, all
    processes train each run together.
    """
    search = _Runs(study, place, seconds_until_dead, teachers or {}, runs)
    return share_work(search, search.outcomes)


def search_all(
    study: str,
    experiments: Mapping[str, Experiment],
    place: Place,
    *,
    seconds_until_dead: int = 120,
    teachers: Mapping[str, Configuration] | None = None,
) -> dict[str, ExperimentResult]:
    """Tunes and trains all experiments; returns results by name, once all workers are done.

    Arguments are those of `run_all`. With one worker, the same call tries the same settings; with
    several, which trials stop early depends on which of them are ahead.
    """
    search = _Experiments(study, place, seconds_until_dead, teachers or {}, experiments)
    return share_work(search, search.results)


def results_so_far(
    study: str,
    experiments: Mapping[str, Experiment],
    place: Place,
    *,
    seconds_until_dead: int = 120,
) -> dict[str, ExperimentResult]:
    """What a search that was stopped has found."""
    search = _Experiments(study, place, seconds_until_dead, {}, experiments)
    with closing(Database(place.url, seconds_until_dead)) as database:
        return search.results(search.jobs(database))
