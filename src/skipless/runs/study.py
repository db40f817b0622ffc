"""Trials that any number of workers share through an Optuna data base.

Optuna's sampler says what a trial tries, and its pruner which trials stop early. A trial whose
worker died is queued again with the same values. What is left for this module: a data base that is
opened safely by several workers at once, and that names itself in errors.
"""

import copy
import os
import platform
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import sqlalchemy
import sqlalchemy.event
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

DONE = (TrialState.COMPLETE, TrialState.PRUNED)

_WORKER, _SURPLUS = "worker", "surplus"  # attributes of trials
_RUNG = "completed_rung_"  # how the pruner's begin
_TRIES = 5  # to open a data base that another worker is setting up
_SECONDS_TO_WAIT = 60  # for a lock of SQLite
_DATABASE_ERRORS = (StorageInternalError, SQLAlchemyError)


class _SurplusError(Exception):
    """One more trial began than is wanted, as two workers asked at once."""


class Database:
    """The data base at `url`, in which searches keep their studies."""

    def __init__(self, url: str, seconds_until_dead: int) -> None:
        if seconds_until_dead < 2:
            raise ValueError(f"seconds_until_dead must be at least 2, got {seconds_until_dead}")
        self.seconds_until_dead = seconds_until_dead
        self.local = url.startswith("sqlite")  # so all workers are on this machine
        self.place = _without_password(url)
        with self.explain_errors():
            self.storage = _open_storage(url, self.place, seconds_until_dead)

    def close(self) -> None:
        """Close the connections to the data base."""
        self.storage.engine.dispose()

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Turn errors of the data base into one that names it and says what to do."""
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)  # of heartbeats and retries
                yield
        except Exception as error:
            # Optuna's own clean-up may fail after the data base did, with an error of another kind.
            if (cause := _database_error(error)) is None:
                raise
            raise OSError(
                f"Cannot reach the study in {self.place}: {_first_line(cause)}. Check that the "
                "data base exists and its disk has space, or delete a damaged file, and rerun: "
                "finished runs are kept."
            ) from error
        finally:
            optuna.logging.set_verbosity(before)


class SharedStudy:
    """A study of `wanted` trials, which all workers at one data base share.

    Args:
        database: Where it is kept.
        name: Its name there.
        wanted: How many trials to run; with `distinct`, how many different ones.
        sample: Makes the sampler from the number of trials that have begun and did not fail, so
            that a search that resumes draws the numbers that it would have drawn.
        pruner: Says which trials stop early.
        first: What the first trial tries.
        distinct: Whether trials with the same values count once.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        wanted: int,
        sample: Callable[[int], optuna.samplers.BaseSampler],
        pruner: optuna.pruners.BasePruner | None = None,
        first: Mapping[str, object] | None = None,
        *,
        distinct: bool = False,
    ) -> None:
        self._database, self.wanted, self._sample = database, wanted, sample
        self._distinct = distinct
        with database.explain_errors():
            self._study = optuna.create_study(
                storage=database.storage,
                study_name=name,
                pruner=pruner or optuna.pruners.NopPruner(),
                direction="maximize",
                load_if_exists=True,
            )
            if first and not self._trials():
                self._study.enqueue_trial(dict(first))

    def trials(self) -> list[FrozenTrial]:
        """The trials that are done, by number."""
        with self._database.explain_errors():
            return [trial for trial in self._trials() if trial.state in DONE]

    def running(self) -> list[FrozenTrial]:
        """The trials that workers are at."""
        with self._database.explain_errors():
            return [trial for trial in self._trials() if trial.state == TrialState.RUNNING]

    def done(self) -> int:
        """How many of the wanted trials are done; one that was done twice counts once."""
        return min(self.wanted, len({self._identity(trial) for trial in self.trials()}))

    def take(self, objective: Callable[[optuna.Trial], float]) -> bool:
        """Runs one more trial; returns False if none is left, or all that are have a worker."""
        with self._database.explain_errors():
            self._queue_lost_trials()
            trials = self._trials()
            waiting = any(trial.state == TrialState.WAITING for trial in trials)
            taken = {self._identity(t) for t in trials if t.state in (*DONE, TrialState.RUNNING)}
            if not waiting and len(taken) >= self.wanted:
                return False
            begun = (*DONE, TrialState.RUNNING)
            self._study.sampler = self._sample(sum(trial.state in begun for trial in trials))
            try:
                self._run_trial(objective)
            except _SurplusError:
                return False
            return True

    def _run_trial(self, objective: Callable[[optuna.Trial], float]) -> None:
        numbers: list[int] = []
        errors: list[BaseException] = []

        def run(trial: optuna.Trial) -> float:
            numbers.append(trial.number)
            try:
                trial.set_user_attr(_WORKER, _describe_worker(os.getpid()))
                if self._is_surplus(trial.number):
                    trial.set_user_attr(_SURPLUS, True)
                    raise _SurplusError
                return objective(trial)
            except optuna.TrialPruned:
                raise
            except BaseException as error:
                errors.append(error)
                raise

        try:
            self._study.optimize(run, n_trials=1)
        except Exception as error:
            # A worker that was silent for too long is taken for dead, and its trial failed. The
            # outcome is in the run's folder, for whoever takes the trial over.
            own = errors[0] if errors else None
            refused = isinstance(own or error, UpdateFinishedTrialError | ValueError)
            if refused and not isinstance(own, ValueError) and self._has_failed(numbers):
                return
            if own is None:
                raise
            raise own from None

    def _is_surplus(self, number: int) -> bool:
        """Whether as many trials as are wanted began before this one, or were queued."""
        earlier = [t for t in self._trials()[:number] if t.state != TrialState.FAIL]
        return len({self._identity(trial) for trial in earlier}) >= self.wanted

    def _has_failed(self, numbers: list[int]) -> bool:
        return bool(numbers) and self._trials()[numbers[0]].state == TrialState.FAIL

    def _queue_lost_trials(self) -> None:
        """Queue each trial that failed, or whose worker died, once more, with its values."""
        optuna.storages.fail_stale_trials(self._study)
        for trial in self._trials():
            if trial.state == TrialState.RUNNING and self._is_lost(trial):
                with suppress(UpdateFinishedTrialError):  # another worker was faster
                    self._database.storage.set_trial_state_values(
                        trial._trial_id, state=TrialState.FAIL
                    )
        trials = self._trials()
        again = {n for trial in trials for n in trial.system_attrs.get("retry_history", [])}
        for trial in trials:
            failed = trial.state == TrialState.FAIL and _SURPLUS not in trial.user_attrs
            if failed and trial.number not in again:
                lost = copy.deepcopy(trial)
                # Its next worker has not signed it, so nobody must take it for lost again. It
                # starts from the beginning, so the pruner must not take it for further.
                lost.user_attrs = {}
                lost.system_attrs = {
                    name: value
                    for name, value in trial.system_attrs.items()
                    if not name.startswith(_RUNG)
                }
                RetryHeartbeatStaleTrialCallback()(self._study, lost)

    def _is_lost(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(_WORKER)
        if worker is None:  # killed before its first sign of life, so Optuna would wait forever
            started = trial.datetime_start or datetime.min
            return datetime.now() - started > timedelta(seconds=self._database.seconds_until_dead)
        return self._database.local and _is_gone(worker)

    def _identity(self, trial: FrozenTrial) -> object:
        """What two trials share that count as one; a trial that was queued again is the same."""
        own = trial.system_attrs.get("failed_trial", trial.number)
        return tuple(sorted(trial.params.items())) or own if self._distinct else own

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)


def _database_error(error: BaseException | None) -> BaseException | None:
    """The error of the data base that led to `error`, if there is one."""
    while error is not None:
        if isinstance(error, _DATABASE_ERRORS):
            return error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _open_storage(url: str, place: str, seconds_until_dead: int) -> optuna.storages.RDBStorage:
    local = url.startswith("sqlite")
    options = {"connect_args": {"timeout": _SECONDS_TO_WAIT}} if local else {"pool_pre_ping": True}
    # On one machine, a worker is alive as long as its process is; Windows cannot be asked.
    beat = None if local and os.name == "posix" else max(1, seconds_until_dead // 4)
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            storage = optuna.storages.RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=beat,
                grace_period=None if beat is None else seconds_until_dead,
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
        except (*_DATABASE_ERRORS, AssertionError):
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


def _without_password(url: str) -> str:
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):  # not a URL, or a port that is not a number
        return re.sub(r":[^:@/]*@", ":***@", url)


def _is_gone(worker: str) -> bool:
    """Whether a worker was a process of this machine that has ended: no need to wait for it."""
    node, _, process = worker.rpartition(" ")
    number, _, started = process.partition("/")
    if node != platform.node() or sys.platform == "win32":  # where signal 0 would kill it
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # of another user
        pass
    return started != "" and worker != _describe_worker(int(number))


def _describe_worker(number: int) -> str:
    """Machine, number and, on Linux, start of a process, as numbers are used again."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return f"{platform.node()} {number}"
    return f"{platform.node()} {number}/{fields[19]}"  # in ticks since the machine started


def _first_line(error: BaseException) -> str:
    """The first line of a SQLAlchemy error, without its query and links."""
    return str(error).splitlines()[0].rstrip(".")
