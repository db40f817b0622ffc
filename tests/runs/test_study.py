"""Trials that several workers share through a data base, whatever a trial does."""

import os
import platform
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import optuna
import pytest
from optuna.samplers import GridSampler
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from skipless.runs.study import Database, SharedStudy

RUNS = 8

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

# Opens two data bases, one of them new, at the same moment as two others, and does all it gets.
WORKER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_study import RUNS, open_study, draw

folder = Path(sys.argv[1])
for name in ("new", "failed"):
    (folder / f"{{name}}-{{os.getpid()}}.ready").touch()
    while len(list(folder.glob(f"{{name}}-*.ready"))) < 3:
        time.sleep(0.001)
    study = open_study(folder / f"{{name}}.db")

    def run(trial):
        number = draw(trial)
        with open(f"{{folder}}/{{name}}.log", "a") as log:
            log.write(f"{{number}}\\n")
        time.sleep(0.05)
        return 0.5

    while study.done() < RUNS:
        if not study.take(run):
            time.sleep(0.05)
"""


def draw(trial: optuna.Trial, count: int = RUNS) -> int:
    return trial.suggest_int("run", 0, count - 1)


def open_study(path: Path, count: int = RUNS, seconds: int = 60) -> SharedStudy:
    """A study of `count` different runs."""
    database = Database(f"sqlite:///{path}", seconds)
    sample = lambda _: GridSampler({"run": range(count)})
    return SharedStudy(database, "study", count, sample, distinct=True)


def refuse(trial: optuna.Trial) -> float:
    raise OSError(f"{draw(trial, 2)} does not go")


def refuse_all(trial: optuna.Trial) -> float:
    raise OSError(f"{draw(trial)} does not go")


def taken(study: SharedStudy, count: int = 2, times: int = 4) -> list[int]:
    """The runs that a worker gets in so many times that it asks."""
    numbers: list[int] = []

    def run(trial: optuna.Trial) -> float:
        numbers.append(draw(trial, count))
        return 0.5

    for _ in range(times):
        study.take(run)
    return sorted(numbers)


@pytest.fixture
def study(tmp_path: Path) -> SharedStudy:
    return open_study(tmp_path / "study.db", 2, seconds=2)


@pytest.fixture
def seen(tmp_path: Path, study: SharedStudy) -> Iterator[optuna.Study]:
    """The same study, as Optuna shows it."""
    storage = RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    yield optuna.load_study(
        study_name="study", storage=storage, sampler=GridSampler({"run": range(2)})
    )
    storage.engine.dispose()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    """How often each run was done by three processes, in a new data base and in one of failures."""
    folder = tmp_path_factory.mktemp("studies")
    failed = open_study(folder / "failed.db")
    for _ in range(3):
        with pytest.raises(OSError, match="does not go"):
            failed.take(refuse_all)
    script = WORKER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(folder)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert (worker.returncode, errors) == (0, "")
    return {n: Counter((folder / f"{n}.log").read_text().splitlines()) for n in ("new", "failed")}


@pytest.mark.parametrize("name", ["new", "failed"])
def test_three_processes_do_every_run(name: str, logs: dict[str, Counter[str]]) -> None:
    assert logs[name].keys() == {str(number) for number in range(RUNS)}
    # After failures, two that ask at the same moment may draw the same run. The second one waits
    # for the first, and does not train it again.
    assert logs[name].total() <= (RUNS if name == "new" else RUNS + 4)


def test_only_one_of_two_workers_gets_a_queued_trial(
    tmp_path: Path, seen: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen.enqueue_trial({"run": 0})
    trial = seen.get_trials()[0]._trial_id
    check = RDBStorage.check_trial_is_updatable  # between the look and the change
    slow = lambda *given: time.sleep(0.3) or check(*given)
    monkeypatch.setattr(RDBStorage, "check_trial_is_updatable", slow)
    both = [Database(f"sqlite:///{tmp_path / 'study.db'}", 60) for _ in range(2)]

    def is_given(to: Database) -> bool:
        return to.storage.set_trial_state_values(trial, TrialState.RUNNING)

    with closing(both[0]), closing(both[1]), ThreadPoolExecutor(2) as workers:
        assert sorted(workers.map(is_given, both)) == [False, True]


def test_only_a_run_that_failed_is_tried_again_with_the_same_values(
    study: SharedStudy, seen: optuna.Study
) -> None:
    with pytest.raises(OSError, match="does not go"):
        study.take(refuse)
    failed = seen.get_trials()[0].params
    assert taken(study, times=1) == [failed["run"]]
    assert taken(study) == [1 - failed["run"]]
    assert taken(study) == []
    assert [t.state.name for t in seen.get_trials()] == ["FAIL", "COMPLETE", "COMPLETE"]


def test_a_trial_that_is_tried_again_does_not_name_its_last_worker(
    study: SharedStudy, seen: optuna.Study
) -> None:
    """Else others would take it for lost before its next worker has signed it."""
    with pytest.raises(OSError, match="does not go"):
        study.take(refuse)
    study._queue_lost_trials()
    failed, queued = seen.get_trials()
    assert "worker" in failed.user_attrs
    assert (queued.state, queued.user_attrs) == (TrialState.WAITING, {})


def test_a_worker_that_died_before_its_first_sign_of_life_loses_its_run(
    tmp_path: Path, study: SharedStudy, seen: optuna.Study
) -> None:
    draw(seen.ask(), 2)
    patient = open_study(tmp_path / "study.db", 2, seconds=3600)
    assert len(taken(patient)) == 1
    time.sleep(2.1)
    assert len(taken(study)) == 1
    assert study.done() == 2


def test_a_worker_of_this_machine_whose_process_has_ended_is_not_waited_for(
    tmp_path: Path, seen: optuna.Study
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lost = []
    for worker in (ended.pid, os.getpid()):
        trial = seen.ask()
        lost.append(draw(trial, 2))
        trial.set_user_attr("worker", f"{platform.node()} {worker}")
    patient = open_study(tmp_path / "study.db", 2, seconds=3600)
    assert taken(patient) == lost[:1]  # and not the other, whose worker is alive


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_another_process_with_the_number_of_a_lost_worker_is_not_taken_for_it(
    tmp_path: Path, seen: optuna.Study
) -> None:
    """After a restart, of a container in particular, the same numbers are given again."""
    trial = seen.ask()
    draw(trial, 2)
    trial.set_user_attr("worker", f"{platform.node()} {os.getpid()}/1")
    assert taken(open_study(tmp_path / "study.db", 2, seconds=3600)) == [0, 1]


def test_workers_that_ask_at_once_get_no_more_trials_than_are_wanted(tmp_path: Path) -> None:
    """None of them sees yet that another one has begun."""
    asking, begun = threading.Barrier(4), []

    def sample(_: int) -> optuna.samplers.BaseSampler:
        asking.wait(30)
        return optuna.samplers.RandomSampler(seed=0)

    def run(trial: optuna.Trial) -> float:
        begun.append(trial.number)
        return 0.5

    with ExitStack() as held, ThreadPoolExecutor(4) as workers:
        url = f"sqlite:///{tmp_path / 'a.db'}"
        databases = [held.enter_context(closing(Database(url, 60))) for _ in range(4)]
        studies = [SharedStudy(database, "one", 2, sample) for database in databases]
        took = list(workers.map(lambda study: study.take(run), studies))
        assert (sorted(took), sorted(begun)) == ([False, False, True, True], [0, 1])
        assert not studies[0].take(run)  # those that were too many are not tried again
        assert studies[0].done() == len(studies[0].trials()) == 2


@pytest.mark.parametrize("prune", [False, True])
def test_a_worker_that_others_think_dead_goes_on_without_its_trial(
    prune: bool, study: SharedStudy, seen: optuna.Study
) -> None:
    def run(trial: optuna.Trial) -> float:
        draw(trial, 2)
        # As another worker would after a long silence.
        seen._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        if prune:
            raise optuna.TrialPruned
        trial.set_user_attr("outcome", 1)
        return 0.5

    assert study.take(run)
    assert study.done() == 0
    assert taken(study) == [0, 1]


@pytest.mark.parametrize("at", range(2))
def test_a_trial_that_died_before_it_drew_anything_is_done_all_the_same(
    at: int, study: SharedStudy, seen: optuna.Study
) -> None:
    done = taken(study, times=at)
    seen._storage.set_trial_state_values(seen.ask()._trial_id, TrialState.FAIL)
    assert sorted(done + taken(study)) == [0, 1]


def test_a_trial_that_was_lost_as_it_was_stopped_is_stopped_again(tmp_path: Path) -> None:
    """The pruner remembers that it looked at a trial before Optuna remembers that it was behind."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    sample = lambda count: optuna.samplers.RandomSampler(seed=count)
    ends: list[str] = []

    def run(trial: optuna.Trial, lose: bool = False) -> float:
        value = 1.0 if trial.number == 0 else 0.5
        trial.suggest_float("lr", 0, 1)
        for step in range(1, 6):
            trial.report(value, step)
            if trial.should_prune():
                ends.append("lost" if lose else f"stopped at {step}")
                raise OSError if lose else optuna.TrialPruned
        ends.append("finished")
        return value

    with closing(Database(f"sqlite:///{tmp_path / 'a.db'}", 60)) as database:
        study = SharedStudy(database, "halved", 2, sample, pruner)
        study.take(run)
        with pytest.raises(OSError, match=r"^$"):
            study.take(lambda trial: run(trial, lose=True))
        study.take(run)
    assert ends == ["finished", "lost", "stopped at 1"]


def test_an_error_in_a_run_is_raised_as_it_is(study: SharedStudy) -> None:
    def run(trial: optuna.Trial) -> float:
        raise ValueError("lr must be > 0")

    with pytest.raises(ValueError, match=r"^lr must be > 0$"):
        study.take(run)


def test_trials_with_the_same_values_count_once_only_where_runs_must_differ(tmp_path: Path) -> None:
    for distinct, done in ((True, 1), (False, 3)):
        database = Database(f"sqlite:///{tmp_path / f'{distinct}.db'}", 60)
        with closing(database):
            sample = lambda count: optuna.samplers.RandomSampler(seed=count)
            study = SharedStudy(database, "one", 3, sample, distinct=distinct)
            for _ in range(3):
                study.take(lambda trial: trial.suggest_int("run", 0, 0))
            assert study.done() == done


def test_a_study_that_resumes_draws_other_numbers(tmp_path: Path) -> None:
    drawn = []
    for _ in range(2):
        with closing(Database(f"sqlite:///{tmp_path / 'a.db'}", 60)) as database:
            sample = lambda count: optuna.samplers.RandomSampler(seed=count)
            study = SharedStudy(database, "one", 2, sample)
            study.take(lambda trial: drawn.append(trial.suggest_float("lr", 0, 1)) or 0.0)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("nonsense", ValueError, "Cannot keep the study in nonsense: .* none for a file"),
        ("oracel://host/name", ValueError, "oracel"),
        (
            "postgresql//me:secret@host/name",
            ValueError,
            "Cannot keep the study in .*me:[*]+@host/name: ",
        ),
        (
            "postgresql://me:secret@host:port/name",
            ValueError,
            "Cannot keep the study in .*me:[*]+@",
        ),
        ("postgresql+pg8000://me:secret@host/name", ImportError, "me:[*]+@.* pg8000.* Install it"),
        (
            "sqlite:////nowhere/at/all.db",
            OSError,
            "Cannot reach the study in .*all.db: .* rerun",
        ),
    ],
)
def test_an_unusable_data_base_is_an_error_with_a_remedy(
    url: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pg8000", None)  # as if it were not installed
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(error, match=said) as found:
        Database(url, 60)
    assert "secret" not in str(found.value)


def test_a_data_base_that_is_lost_during_a_trial_is_named(
    tmp_path: Path, study: SharedStudy
) -> None:
    def run(trial: optuna.Trial) -> float:
        draw(trial, 2)
        with closing(sqlite3.connect(tmp_path / "study.db")) as held:
            held.execute("DROP TABLE trial_values")
        return 0.5

    # Optuna's own clean-up fails then, with an UnboundLocalError.
    with pytest.raises(OSError, match=r"Cannot reach the study in sqlite:.*study.db: .* rerun"):
        study.take(run)


def test_workers_have_at_least_two_seconds_to_live() -> None:
    with pytest.raises(ValueError, match="seconds_until_dead must be at least 2, got 1"):
        Database("sqlite://", 1)
