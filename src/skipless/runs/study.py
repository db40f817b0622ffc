"""The runs of a study, each given to one worker at a time, through an Optuna data base.

Trial number k of n is the k-th run: every data base hands out a number only once. A run whose trial
failed, or whose worker shows no sign of life, is queued again as another trial. Runs are not
parameters here, because Optuna's grid sampler counts a failed trial as visited, and fails itself
(KeyError) when a queued trial ends while another one is the last to run.
"""

import os
import platform
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import optuna
import sqlalchemy
import sqlalchemy.event
from optuna.exceptions import (
    ExperimentalWarning,
    StorageInternalError,
    TrialPruned,
    UpdateFinishedTrialError,
)
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from .outcome import Outcome

_RUN, _WORKER, _OUTCOME = "run", "worker", "outcome"  # attributes of trials
_TRIES = 5  # to open a data base that another worker is setting up
_SECONDS_TO_WAIT = 60  # for a lock of SQLite


class SharedStudy:
    """The runs called `names`, and their outcomes, in the data base at `url`."""

    def __init__(self, study: str, names: Sequence[str], url: str, seconds_until_dead: int) -> None:
        if seconds_until_dead < 2:
            raise ValueError(f"seconds_until_dead must be at least 2, got {seconds_until_dead}")
        self._names = names
        self._patience = seconds_until_dead
        self._first_seen: dict[int, float] = {}  # trials that no worker has claimed
        self._local = url.startswith("sqlite")  # so all workers are on this machine
        self._place = _without_password(url)
        with self._name_errors():
            self._storage = _open_storage(url, self._place, seconds_until_dead)
            self._study = optuna.create_study(
                storage=self._storage,
                sampler=optuna.samplers.RandomSampler(),  # never asked
                study_name=study,
                direction="maximize",
                load_if_exists=True,
            )

    def close(self) -> None:
        """Close the connections to the data base."""
        self._storage.engine.dispose()

    def done(self) -> int:
        """How many runs are done."""
        with self._name_errors():
            return len({self._name(t) for t in self._trials() if t.state == TrialState.COMPLETE})

    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes of the runs that are done, by name."""
        with self._name_errors():
            done = {self._name(t): t for t in self._trials() if t.state == TrialState.COMPLETE}
        return {n: Outcome.of(done[n].user_attrs[_OUTCOME]) for n in self._names if n in done}

    def running(self) -> list[str]:
        """Names of the runs that are being trained."""
        with self._name_errors():
            running = {self._name(t) for t in self._trials() if t.state == TrialState.RUNNING}
        return [name for name in self._names if name in running]

    def take(self, run: Callable[[str], Outcome]) -> bool:
        """Calls `run` with the name of a run that is left; returns False if there is none."""
        with self._name_errors():
            self._fail_dead_trials()
            trials = self._trials()
            for name in self._lost(trials):
                self._study.enqueue_trial({}, user_attrs={_RUN: name})
            waiting = any(t.state == TrialState.WAITING for t in self._trials())
            if not waiting and len(trials) >= len(self._names):
                return False
            return self._run_trial(run)

    def _run_trial(self, run: Callable[[str], Outcome]) -> bool:
        taken: list[int] = []
        errors: list[BaseException] = []

        def objective(trial: optuna.Trial) -> float:
            try:
                name = self._claim(trial)
                taken.append(trial.number)
                outcome = run(name)
                trial.set_user_attr(_OUTCOME, outcome.as_mapping())
            except UpdateFinishedTrialError:  # another worker thinks that we died
                raise TrialPruned from None
            except BaseException as error:
                errors.append(error)
                raise
            return outcome.top1 or 0.0

        try:
            self._study.optimize(objective, n_trials=1)
        except Exception:
            if errors and not isinstance(errors[0], TrialPruned):
                raise errors[0] from None
            # Optuna refuses the result of a trial that another worker failed in the meantime. Its
            # outcome is in the run's folder, for the worker that takes it over.
            trials = self._trials()
            if not (taken and trials[taken[0]].state == TrialState.FAIL):
                raise
        return bool(taken)

    def _claim(self, trial: optuna.Trial) -> str:
        """The name of this trial's run; the trial is pruned if no run is left for it."""
        # Optuna's heartbeat starts at the same time; a trial without one would never be failed.
        self._storage.record_heartbeat(trial._trial_id)
        trial.set_user_attr(_WORKER, f"{platform.node()} {os.getpid()}")
        trials = self._trials()
        name = self._name(trials[trial.number])
        if name is None:
            raise TrialPruned("another worker has the last run")
        trial.set_user_attr(_RUN, name)
        for other in trials:
            if other.number != trial.number and self._name(other) == name:
                earlier = not other.state.is_finished() and other.number < trial.number
                if earlier or other.state == TrialState.COMPLETE:
                    raise TrialPruned("two workers queued the same run")
        return name

    def _lost(self, trials: Sequence[FrozenTrial]) -> list[str]:
        """Runs that started but are neither done nor in training, once all have started."""
        if len(trials) < len(self._names):
            return []  # the next trial numbers stand for these
        over = (TrialState.FAIL, TrialState.PRUNED)
        kept = {self._name(trial) for trial in trials if trial.state not in over}
        return [name for name in self._names if name not in kept]

    def _fail_dead_trials(self) -> None:
        optuna.storages.fail_stale_trials(self._study)
        for trial in self._trials() if self._local else ():
            if trial.state == TrialState.RUNNING and _is_gone(trial.user_attrs.get(_WORKER)):
                self._fail(trial)
        now = time.monotonic()
        for trial in self._trials():
            if trial.state != TrialState.RUNNING or _WORKER in trial.user_attrs:
                self._first_seen.pop(trial.number, None)
            elif now - self._first_seen.setdefault(trial.number, now) > self._patience:
                # Killed before its first heartbeat, so Optuna would wait for it forever.
                self._fail(trial)

    def _fail(self, trial: FrozenTrial) -> None:
        with suppress(UpdateFinishedTrialError):
            self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _name(self, trial: FrozenTrial) -> str | None:
        """The run of a trial, known from the moment the trial exists."""
        if trial.number < len(self._names):
            return self._names[trial.number]
        return trial.user_attrs.get(_RUN)

    def _trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        return self._study.get_trials(deepcopy=False)

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        """Turn errors of the data base into one that names it and says what to do."""
        with _quiet():
            try:
                yield
            except (StorageInternalError, SQLAlchemyError) as error:
                cause = error.__cause__ if isinstance(error, StorageInternalError) else error
                raise OSError(
                    f"Cannot reach the study in {self._place}: {_first_line(cause or error)}. "
                    "Check that the data base exists, or delete a damaged file, and rerun: "
                    "finished runs are kept."
                ) from error


def _open_storage(url: str, place: str, seconds_until_dead: int) -> optuna.storages.RDBStorage:
    local = url.startswith("sqlite")
    options = {"connect_args": {"timeout": _SECONDS_TO_WAIT}} if local else {"pool_pre_ping": True}
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            storage = optuna.storages.RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=max(1, seconds_until_dead // 4),
                grace_period=seconds_until_dead,
            )
            break
        except ImportError as error:
            raise ImportError(
                f"The driver of {place} is not installed: {error.__cause__ or error}. Install it, "
                "or name another data base."
            ) from None
        # A wrong URL, a wrong port, another version of Optuna.
        except (ArgumentError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"Cannot keep the study in {place}: {_first_line(error)}. Give a URL such as "
                "postgresql://user:password@host/name, or none for a file."
            ) from None
        except (StorageInternalError, SQLAlchemyError, AssertionError):
            # Workers that set up the same data base at the same time get in each other's way.
            if not tries_left:
                raise
            time.sleep(0.2 + 0.3 * random.random())
    if local:
        _make_transactions_exclusive(storage.engine)
    return storage


def _make_transactions_exclusive(engine: sqlalchemy.Engine) -> None:
    """Let no two transactions of SQLite overlap.

    Optuna reads a trial's state and then changes it, which is safe with SELECT ... FOR UPDATE.
    SQLite does not have that, so two workers could get the same queued trial.
    """

    @sqlalchemy.event.listens_for(engine, "connect")
    def disable_autocommit(connection: object, _: object) -> None:
        connection.isolation_level = None  # pyright: ignore[reportAttributeAccessIssue]

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # drop older connections


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log, and its warnings that heartbeats are experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _without_password(url: str) -> str:
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):  # not a URL, or a port that is not a number
        return re.sub(r":[^:@/]*@", ":***@", url)


def _is_gone(worker: str | None) -> bool:
    """Whether a worker was a process of this machine that has ended: no need to wait for it."""
    node, _, number = (worker or "").rpartition(" ")
    if node != platform.node() or sys.platform == "win32":  # where signal 0 would kill it
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # of another user
        return False
    return False


def _first_line(error: BaseException) -> str:
    """The first line of a SQLAlchemy error, without its query and links."""
    return str(error).splitlines()[0].rstrip(".")
