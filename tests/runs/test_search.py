"""Whole searches, as experiments start them; what workers share is tested in test_study.py."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from skipless.record import Json, Record
from skipless.runs import place as place_module
from skipless.runs import workers
from skipless.runs.configuration import Configuration
from skipless.runs.outcome import Tried
from skipless.runs.place import Place
from skipless.runs.search import (
    Experiment,
    Range,
    Sweep,
    best_setting,
    results_so_far,
    run_all,
    search_all,
)
from skipless.train.engine import Engine

TINY = Configuration(
    model="mlp:2",
    width=8,
    method="eoc",
    data="synthetic:1x8x8",  # which imports nothing, as workers start
    batch_size=64,
    steps=2,
    log_every=1,
    threads=1,
    device="cpu",
)
LONG = replace(TINY, steps=20, checkpoint_every=5, evaluate_every=10**6)

SCRIPT = """
import sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_search import LONG, TINY, Engine, Place, run_all

step = Engine._train_step

def step_and_wait(engine, *given):
    step(engine, *given)
    while engine.step == 12 and not Path({folder!r}, "killed").exists():
        time.sleep(0.05)

Engine._train_step = step_and_wait  # so that a long run does not end before it is killed
if __name__ == "__main__":
    place = Place(Path({folder!r}), workers={workers})
    found = run_all("study", dict({runs}), place, seconds_until_dead={seconds})
    shown = sorted((name, outcome.top1) for name, outcome in found.items())
    # In one piece, as two processes may print at once.
    print(str(shown) + chr(10), end="", flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "out", workers=1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a search in a process of its own, which does not outlive the test."""
    running: list[subprocess.Popen[str]] = []

    def started(environment: Mapping[str, str], **values: object) -> subprocess.Popen[str]:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), **values))
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield started
    for process in running:
        process.terminate()  # a search ends its own processes then
        process.communicate(timeout=60)


def runs_in(place: Place) -> list[Record]:
    return [Record.read(path) for path in sorted((place.folder / "runs").iterdir())]


def starts(record: Record) -> int:
    """How often a run was started: `run.json` lists all starts before the last."""
    before = record.run["before"]
    assert isinstance(before, list)
    return 1 + len(before)


def rows(folder: Path, up_to: int) -> list[dict[str, Json]]:
    return [row for row in Record.read(folder).metrics if int(str(row["step"])) <= up_to]


def test_outcomes_are_those_that_training_leaves_on_disk(place: Place) -> None:
    runs = {"slow": TINY, "fast": replace(TINY, lr=0.1)}
    found = run_all("study", runs, place)
    assert list(found) == ["slow", "fast"]
    for name, configuration in runs.items():
        record = Record.read(place.run(configuration))
        assert record.series("validation", "step")[1] == [2.0]
        assert found[name].top1 == pytest.approx(record.series("validation", "top1")[1][0], 1e-4)
        assert found[name].training.loss == pytest.approx(record.series("train", "loss")[1], 1e-4)
        assert {path.name for path in place.run(configuration).iterdir()} == {
            "lock", "metrics.jsonl", "outcome.json", "run.json", "run.lock",
        }  # fmt: skip
    assert found["slow"] != found["fast"]


def test_a_stopped_search_resumes_and_repeats_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"a": TINY, "b": replace(TINY, steps=9)}
    step = Engine._train_step

    def stop_at_step_5(engine: Engine, *given: object) -> None:
        step(engine, *given)  # pyright: ignore[reportArgumentType]
        if engine.step == 5:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_train_step", stop_at_step_5)
        with pytest.raises(InterruptedError, match=r"study was stopped after [01] of 2 runs"):
            run_all("study", runs, place)
    half = rows(place.run(runs["b"]), 9)
    assert len(half) == 5
    # The time that others wait for a worker that died is longer than any test.
    found = run_all("study", runs, place, seconds_until_dead=10**6)
    assert not found["b"].diverged
    assert starts(Record.read(place.run(runs["a"]))) == 1
    assert starts(Record.read(place.run(runs["b"]))) == 2
    # Not trained again: even the seconds are the same.
    assert rows(place.run(runs["b"]), 5) == half


def test_a_run_that_two_studies_need_is_trained_once(place: Place) -> None:
    first = run_all("one", {"mine": TINY}, place)
    second = run_all("two", {"yours": replace(TINY, keep=1, log_every=5)}, place)
    assert first["mine"] == second["yours"]
    assert [starts(record) for record in runs_in(place)] == [1]


def test_a_run_of_another_kind_is_another_run_and_another_study(place: Place) -> None:
    run_all("study", {"mine": TINY}, place)
    run_all("study", {"mine": replace(TINY, seed=1)}, place)
    assert [starts(record) for record in runs_in(place)] == [1, 1]


def test_divergence_is_an_outcome(place: Place) -> None:
    runs = {"bad": replace(TINY, lr=1e30, steps=20), "good": TINY}
    found = run_all("study", runs, place)
    assert (found["bad"].diverged, found["good"].diverged) == (True, False)
    assert found["bad"].top1 is None
    assert found["good"].top1 is not None
    assert run_all("study", runs, place) == found
    assert [starts(record) for record in runs_in(place)] == [1, 1]


def test_an_error_is_raised_once_and_its_run_is_tried_again_next_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"a": TINY, "b": replace(TINY, seed=1), "c": replace(TINY, seed=2)}
    train, tried = place_module.train, []

    def broken(configuration: Configuration, *given: object, **more: object) -> object:
        tried.append(configuration.seed)
        if configuration.seed == 1:
            raise FileNotFoundError("The data is not there. Fetch it.")
        return train(configuration, *given, **more)  # pyright: ignore[reportArgumentType]

    with monkeypatch.context() as patched:
        patched.setattr(place_module, "train", broken)
        with pytest.raises(FileNotFoundError, match=r"^The data is not there. Fetch it.$"):
            run_all("study", runs, place)
    assert tried[-1] == 1  # and nothing after it
    assert list(run_all("study", runs, place)) == ["a", "b", "c"]
    assert [starts(record) for record in runs_in(place)] == [1, 1, 1]


def test_another_worker_takes_over_the_run_of_a_killed_one(
    place: Place, start: Callable[..., subprocess.Popen[str]]
) -> None:
    runs = "long=LONG, short=TINY"
    process = start({}, folder=str(place.folder), workers=2, runs=runs, seconds=3)
    folder = place.run(LONG)
    while process.poll() is None and not (folder / "checkpoints" / "step-00000010").exists():
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    before = rows(folder, 10)
    storage = optuna.storages.RDBStorage(place.url)
    (study,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=study, storage=storage).get_trials()
    trial = next(t for t in trials if t.params.get("run") == 0)  # the names are sorted
    storage.engine.dispose()
    worker = int(trial.user_attrs["worker"].split()[-1].partition("/")[0])
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    (place.folder / "killed").touch()
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert [name for name, _ in eval(output)] == ["long", "short"]
    assert starts(Record.read(folder)) == 2
    assert starts(Record.read(place.run(TINY))) == 1
    assert rows(folder, 10) == before  # not trained again: even the seconds are the same


class Killed:
    """Ends a process that unpickles it, before that imports torch."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (9,)


def test_the_death_of_all_workers_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_run_worker", Killed())
    runs = {"a": TINY, "b": replace(TINY, seed=1)}
    with pytest.raises(
        ChildProcessError, match=r"All 2 workers .*exit codes 9\) after 0 of 2 runs"
    ):
        run_all("study", runs, replace(place, workers=2))


def test_all_processes_of_torchrun_train_each_run_together(
    place: Place, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    runs = "a=TINY, b=replace(TINY, seed=1), bad=replace(TINY, lr=1e30, steps=11)"
    # As torchrun starts them, whose own process would import torch, too.
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        start(
            {**world, "RANK": rank, "LOCAL_RANK": rank},
            folder=str(place.folder), workers=1, runs=runs, seconds=60,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    first, second = (eval(output) for output, _ in outputs)
    assert first == second
    assert [name for name, _ in first] == ["a", "b", "bad"]
    assert first[2][1] is None
    for record in runs_in(place):
        assert starts(record) == 1
        assert record.run["processes"] == 2


def test_mistakes_with_the_place_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        Place(tmp_path, workers=0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Cannot create the folder .*: .* Name another"):
        run_all("study", {"a": TINY}, Place(tmp_path / "file" / "out"))


TUNED = replace(TINY, steps=None, epochs=4, data="synthetic:1x8x8:10:800", held_out=100)
TUNING = Sweep(TUNED, {"lr": Range(1e-5, 1.0)}, trials=5, first={"lr": 0.03}, least_epochs=1)
TASK = Experiment(TUNING, replace(TUNED, held_out=None), seeds=(0, 1))


def test_a_setting_is_chosen_on_held_out_images_and_run_from_each_seed(place: Place) -> None:
    found = search_all("study", {"task": TASK}, place)["task"]
    assert len(found.tried) == 5
    assert found.tried[0].chosen == {"lr": 0.03}
    whole = [own for own in found.tried if own.ending == "finished"]
    assert {own.epochs for own in whole} == {4.0}
    assert found.chosen == max(whole, key=lambda own: own.accuracy or 0.0).chosen
    assert found.chosen is not None
    for seed, outcome in found.outcomes.items():
        configuration = TASK.run(found.chosen, seed)
        assert (configuration.seed, configuration.held_out) == (seed, None)
        assert configuration.lr == found.chosen["lr"]
        top1 = Record.read(place.run(configuration)).series("validation", "top1")[1]
        assert outcome.top1 == pytest.approx(top1[-1], 1e-4)
    # Validated on 80 images of their own, and tuned on 100 of those for training.
    images = {str(record.run["validation_images"]) for record in runs_in(place)}
    assert images == {"80", "100"}


def test_a_hopeless_trial_stops_at_the_look_at_which_it_is_behind(place: Place) -> None:
    found = search_all("study", {"task": TASK}, place)["task"]
    stopped = [own for own in found.tried if own.ending == "stopped"]
    assert stopped
    assert {own.epochs for own in stopped} <= {1.0, 3.0}
    first = found.tried[0]
    assert first.ending == "finished"  # nothing was ahead of it yet
    for own in stopped:
        record = next(r for r in runs_in(place) if _is_run_of(r, own.chosen["lr"]))
        assert max(record.series("train", "epoch")[1]) < own.epochs + 1


def _is_run_of(record: Record, rate: Json) -> bool:
    own = record.run["configuration"]
    return isinstance(own, dict) and own["lr"] == rate and own["held_out"] is not None


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_repeat_bit_for_bit_whatever_the_number_of_workers(
    tmp_path: Path, workers: int
) -> None:
    """The losses of one commit, seed and machine: those of `train`, called directly."""
    place = Place(tmp_path / "out", workers=workers)
    runs = {f"seed {seed}": replace(TUNED, held_out=None, epochs=1, seed=seed) for seed in (0, 1)}
    run_all("study", runs, place)
    for name, configuration in runs.items():
        place_module.train(configuration, tmp_path / name, progress=False)
        alone, shared = Record.read(tmp_path / name), Record.read(place.run(configuration))
        for kind, value in (("train", "loss"), ("validation", "loss"), ("validation", "top1")):
            assert alone.series(kind, value) == shared.series(kind, value)
            assert alone.series(kind, value)[1]


def test_the_same_search_tries_the_same_settings_also_after_a_stop(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search_all("study", {"task": TASK}, place)["task"]
    other, step, steps = Place(tmp_path / "other", workers=1), Engine._train_step, []

    def stop_once(engine: Engine, *given: object) -> None:
        step(engine, *given)  # pyright: ignore[reportArgumentType]
        steps.append(engine.step)
        if len(steps) == 60:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_train_step", stop_once)
        with pytest.raises(InterruptedError, match=r"stopped after \d of 7 runs"):
            search_all("study", {"task": TASK}, other)
    so_far = results_so_far("study", {"task": TASK}, other)["task"]
    assert 0 < len(so_far.tried) < 5
    assert (so_far.chosen, so_far.outcomes) == (None, {})
    again = search_all("study", {"task": TASK}, other)["task"]
    settings = [own.chosen for own in again.tried]
    assert sorted(map(str, settings)) == sorted(str(own.chosen) for own in whole.tried)
    assert again.chosen == whole.chosen
    tops = [{seed: o.top1 for seed, o in found.outcomes.items()} for found in (again, whole)]
    assert tops[0] == tops[1]


def test_what_is_known_of_a_tuning_is_not_tuned_again(place: Place) -> None:
    tried = search_all("study", {"task": TASK}, place)["task"].tried
    count = len(runs_in(place))
    known = replace(TASK, known=tried, seeds=(2,))
    found = search_all("again", {"task": known}, place)["task"]
    assert found.chosen == best_setting(tried)
    assert len(runs_in(place)) == count + 1


def test_other_knowledge_of_a_tuning_leads_to_other_final_runs(place: Place) -> None:
    """In the same data base, seeds of one setting are not taken for those of another."""
    for rate in (0.01, 0.1):
        known = (Tried({"lr": rate}, 0.5, 4.0, "finished", 1.0),)
        experiment = replace(TASK, known=known, seeds=(0,))
        found = search_all("study", {"task": experiment}, place)["task"]
        assert found.chosen == {"lr": rate}
        record = Record.read(place.run(experiment.run({"lr": rate}, 0)))
        top1 = record.series("validation", "top1")[1][-1]
        assert found.outcomes[0].top1 == pytest.approx(top1, 1e-4)


def test_a_tuning_without_trials_takes_the_first_setting(place: Place) -> None:
    experiment = replace(TASK, sweep=replace(TUNING, trials=0), seeds=(0,))
    found = search_all("study", {"task": experiment}, place)["task"]
    assert (found.chosen, found.tried, list(found.outcomes)) == ({"lr": 0.03}, (), [0])


def test_mistakes_with_a_tuning_are_named() -> None:
    with pytest.raises(ValueError, match="must have held_out"):
        replace(TUNING, configuration=TINY)
    with pytest.raises(ValueError, match="trials must be at least 0, got -1"):
        replace(TUNING, trials=-1)
    with pytest.raises(ValueError, match=r"0 < low < high, got 1 and 0\.1"):
        Range(1.0, 0.1)


def test_a_search_for_nothing_finds_nothing(place: Place) -> None:
    assert run_all("study", {}, place) == {}
