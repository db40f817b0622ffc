"""Runs that several workers share through a data base, whatever a run does."""

import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from skipless.runs.outcome import Outcome, TrainingCurve, ValidationCurve
from skipless.runs.study import SharedStudy

DONE = Outcome(
    False, 0.5, 1.0, 0.5, 1.0, 1, ValidationCurve([], [], []), TrainingCurve([], [], [], []), "",
    {}, {},
)  # fmt: skip
NAMES = [f"run {number:02d}" for number in range(8)]

# Opens two data bases, one of them new, at the same moment as two others, and does all it gets.
WORKER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_study import DONE, NAMES, SharedStudy

folder = Path(sys.argv[1])
for name in ("new", "failed"):
    (folder / f"{{name}}-{{os.getpid()}}.ready").touch()
    while len(list(folder.glob(f"{{name}}-*.ready"))) < 3:
        time.sleep(0.001)
    study = SharedStudy("study", NAMES, f"sqlite:///{{folder}}/{{name}}.db", 60)

    def run(run):
        with open(f"{{folder}}/{{name}}.log", "a") as log:
            log.write(run + "\\n")
        return DONE

    while study.done() < len(NAMES):
        if not study.take(run):
            time.sleep(0.05)
"""


def shared(path: Path, names: list[str] = NAMES, seconds: int = 60) -> SharedStudy:
    return SharedStudy("study", names, f"sqlite:///{path}", seconds)


def refuse(name: str) -> Outcome:
    raise OSError(f"{name} does not go")


def taken(study: SharedStudy, times: int = 6) -> list[str]:
    """The runs that a worker gets until nothing is left, or in so many times that it asks."""
    names: list[str] = []

    def run(name: str) -> Outcome:
        names.append(name)
        return DONE

    for _ in range(times):
        study.take(run)
    return names


@pytest.fixture
def study(tmp_path: Path) -> Iterator[SharedStudy]:
    with closing(shared(tmp_path / "study.db", ["a", "b"], seconds=2)) as study:
        yield study


@pytest.fixture
def seen(tmp_path: Path, study: SharedStudy) -> Iterator[optuna.Study]:
    """The same study, as Optuna shows it."""
    storage = RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    yield optuna.load_study(study_name="study", storage=storage)
    storage.engine.dispose()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    """How often each run was done by three processes, in a new data base and in one of failures."""
    folder = tmp_path_factory.mktemp("studies")
    with closing(shared(folder / "failed.db")) as study:
        for _ in NAMES:
            with pytest.raises(OSError, match="does not go"):
                study.take(refuse)
    script = WORKER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(folder)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert (worker.returncode, errors) == (0, "")
    return {n: Counter((folder / f"{n}.log").read_text().splitlines()) for n in ("new", "failed")}


@pytest.mark.parametrize("name", ["new", "failed"])
def test_each_run_is_done_once_by_three_processes_at_the_same_time(
    name: str, logs: dict[str, Counter[str]]
) -> None:
    assert logs[name] == Counter(NAMES)


def test_only_one_of_two_workers_gets_a_queued_run(
    tmp_path: Path, study: SharedStudy, seen: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen.enqueue_trial({}, user_attrs={"run": "a"})
    trial = seen.get_trials()[0]._trial_id
    check = RDBStorage.check_trial_is_updatable  # between the look and the change
    slow = lambda *given: time.sleep(0.3) or check(*given)
    monkeypatch.setattr(RDBStorage, "check_trial_is_updatable", slow)

    def is_given(to: SharedStudy) -> bool:
        return to._storage.set_trial_state_values(trial, TrialState.RUNNING)

    with (
        closing(shared(tmp_path / "study.db", ["a", "b"])) as another,
        ThreadPoolExecutor(2) as workers,
    ):
        assert sorted(workers.map(is_given, (study, another))) == [False, True]


def test_only_runs_that_failed_are_tried_again(study: SharedStudy) -> None:
    with pytest.raises(OSError, match="a does not go"):
        study.take(refuse)
    assert taken(study) == ["b", "a"]
    assert taken(study) == []
    assert study.outcomes() == {"a": DONE, "b": DONE}


def test_a_worker_that_died_before_its_first_heartbeat_loses_its_run(
    tmp_path: Path, study: SharedStudy, seen: optuna.Study
) -> None:
    seen.ask()
    with closing(shared(tmp_path / "study.db", ["a", "b"], seconds=3600)) as patient:
        assert taken(patient) == ["b"]
    assert taken(study, times=1) == []  # which sees it for the first time
    time.sleep(2.1)
    assert taken(study) == ["a"]


def test_a_worker_of_this_machine_whose_process_has_ended_is_not_waited_for(
    tmp_path: Path, seen: optuna.Study
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for worker in (f"{platform.node()} {ended.pid}", f"{platform.node()} {os.getpid()}"):
        seen.ask().set_user_attr("worker", worker)
    with closing(shared(tmp_path / "study.db", ["a", "b"], seconds=3600)) as patient:
        assert taken(patient) == ["a"]  # and not b, whose worker is alive


def test_a_run_that_was_queued_twice_is_done_once(
    tmp_path: Path, study: SharedStudy, seen: optuna.Study
) -> None:
    with pytest.raises(OSError, match="a does not go"):
        study.take(refuse)
    with pytest.raises(OSError, match="b does not go"):
        study.take(refuse)
    for _ in range(2):
        seen.enqueue_trial({}, user_attrs={"run": "a"})
    inner: list[list[str]] = []

    def run(name: str) -> Outcome:
        with closing(shared(tmp_path / "study.db", ["a", "b"])) as another:
            inner.append(taken(another))  # while we are at it
        return DONE

    assert study.take(run)
    assert inner == [["b"]]
    assert taken(study) == []


def test_a_worker_that_others_think_dead_continues(study: SharedStudy, seen: optuna.Study) -> None:
    def run(name: str) -> Outcome:
        seen.tell(0, state=TrialState.FAIL)  # as another worker would after a long silence
        return DONE

    assert study.take(run)
    assert taken(study) == ["b", "a"]


def test_a_slower_worker_gets_nothing(
    study: SharedStudy, seen: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taken(study) == ["a", "b"]
    monkeypatch.setattr(SharedStudy, "_lost", lambda *_: seen.enqueue_trial({}) or [])
    assert taken(study) == []
    assert study.done() == 2


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
            "Cannot reach the study in .*all.db: .* and rerun",
        ),
    ],
)
def test_an_unusable_data_base_is_an_error_with_a_remedy(
    url: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pg8000", None)  # as if it were not installed
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(error, match=said) as found:
        SharedStudy("study", ["a"], url, 60)
    assert "secret" not in str(found.value)


def test_workers_have_at_least_two_seconds_to_live() -> None:
    with pytest.raises(ValueError, match="seconds_until_dead must be at least 2, got 1"):
        SharedStudy("study", ["a"], "sqlite://", 1)
