"""`skipless tune`: what it tunes, what it keeps, and the command that it recommends."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from skipless.cli import main
from skipless.record import Record
from skipless.runs.configuration import Configuration
from skipless.runs.search import Range
from skipless.runs.tune import plan_sweep

RUN = Configuration(model="mlp:14", width=8, method="tat", data="synthetic:1x4x4:10:400", epochs=9)
SMALL = [
    "--model", "mlp:14", "--width", "8", "--method", "tat", "--data", "synthetic:1x4x4:10:400",
    "--epochs", "3", "--threads", "1", "--device", "cpu", "--trials", "3", "--parallel", "1",
]  # fmt: skip


def test_rate_target_and_clipping_are_tuned_on_a_tenth_of_the_training_images() -> None:
    sweep = plan_sweep(RUN, [], [], 5)
    assert sweep.space.keys() == {"lr", "eta", "clip"}
    assert sweep.first == {"lr": 0.03, "eta": 0.9, "clip": 1.0}
    assert (sweep.configuration.held_out, sweep.trials, sweep.least_epochs) == (40, 5, 1)
    assert sweep.configuration.evaluate_every == 1


def test_only_targets_that_the_depth_allows_are_tried() -> None:
    """14 layers give at most 0.912 (docs/paper.md: 12 give 0.897), 8 give 0.84."""
    etas = {
        depth: plan_sweep(replace(RUN, model=f"mlp:{depth}"), [], [], 5).space["eta"]
        for depth in (8, 14, 50)
    }
    assert etas == {8: (0.8, 0.6), 14: (0.9, 0.8, 0.6), 50: (0.9, 0.8, 0.6, 0.95)}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"activation": "tanh"}, {"lr", "tau", "clip"}),
        ({"method": "dks", "activation": "softplus"}, {"lr", "zeta", "clip"}),
        ({"method": "eoc"}, {"lr", "clip"}),
        ({"optimizer": "kfac"}, {"lr", "eta", "kfac_norm_constraint"}),
        ({"model": "resnet18", "method": None}, {"lr", "clip"}),
    ],
)
def test_what_is_tuned_depends_on_the_run(changes: dict[str, object], names: set[str]) -> None:
    configuration = Configuration.of(RUN.as_mapping(), changes)
    assert plan_sweep(configuration, [], [], 5).space.keys() == names


def test_what_is_given_is_kept() -> None:
    given = replace(RUN, lr=0.5, held_out=50)
    sweep = plan_sweep(given, ["lr", "held_out"], [], 5)
    assert sweep.space.keys() == {"eta", "clip"}
    assert (sweep.configuration.lr, sweep.configuration.held_out) == (0.5, 50)
    assert plan_sweep(RUN, [], ["lr"], 5).space.keys() == {"lr"}


def test_held_out_images_are_beside_those_of_a_training_size() -> None:
    assert plan_sweep(replace(RUN, train_size=300), [], [], 5).configuration.held_out == 30
    assert plan_sweep(replace(RUN, train_size=390), [], [], 5).configuration.held_out == 10


def test_networks_with_normalisation_get_higher_rates() -> None:
    ranges = []
    for norm in ("none", "batch"):
        own = replace(RUN, model="resnet18", method=None, norm=norm, optimizer="adamw")
        found = plan_sweep(own, [], [], 5).space["lr"]
        assert isinstance(found, Range)
        ranges.append(found)
    assert ranges[1].high == pytest.approx(10 * ranges[0].high)


def test_clipping_is_tuned_together_with_the_rate() -> None:
    """The best rate without clipping is not that with it."""
    assert plan_sweep(RUN, [], ["clip"], 5).space.keys() == {"lr", "clip"}
    assert plan_sweep(replace(RUN, lr=0.1), ["lr"], ["clip"], 5).space.keys() == {"clip"}


def test_what_is_not_tuned_is_as_in_the_recommended_command(tmp_path: Path, capsys) -> None:
    """`skipless train` clips SGD by default, so trials have to be clipped, too."""
    output = tmp_path / "out"
    options = ["--over", "lr", "--trials", "1", "--held-out", "40", "--output", str(output)]
    assert main(["tune", *SMALL, *options]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert main([*command[1:], "--output", str(tmp_path / "run")]) == 0
    (trial,) = (output / "runs").iterdir()
    tried, trained = (
        Record.read(folder).run["configuration"] for folder in (trial, tmp_path / "run")
    )
    assert isinstance(tried, dict)
    assert isinstance(trained, dict)
    differing = {name for name in tried if tried[name] != trained[name]}
    assert differing == {"held_out"}  # of which the recommended command has none
    assert trained["clip"] == 1.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "0.1", "--over", "lr"], "--lr is given and to be tuned. Drop one of the two."),
        (["--over", "tau"], "tau does not apply to this run, of which lr, eta, clip can be tuned"),
        (["--lr", "1", "--eta", "0.8", "--clip", "1"], "Nothing is left to tune"),
        (["--trials", "0"], "--trials must be from 1 to 1000, got 0"),
        (["--parallel", "0"], "--parallel must be from 1 to 1000, got 0"),
        (
            ["--held-out", "400"],
            "held_out of synthetic:1x4x4:10:400 must be from 1 to 399, got 400",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *SMALL, *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_recommended_command_is_the_best_trial_on_all_images(tmp_path: Path, capsys) -> None:
    output = ["--output", str(tmp_path / "out")]
    assert main(["tune", *SMALL, *output]) == 0
    shown = capsys.readouterr().out
    assert main(["tune", *SMALL, *output, "--json"]) == 0  # resumes: nothing is trained again
    tried = json.loads(capsys.readouterr().out)
    assert len(tried) == 3
    whole = [own for own in tried if own["ending"] == "finished"]
    best = max(whole, key=lambda own: own["accuracy"])["chosen"]
    command = shlex.split(shown.splitlines()[-1])
    assert main([*command[1:], "--output", str(tmp_path / "run")]) == 0
    run = Record.read(tmp_path / "run").run["configuration"]
    assert isinstance(run, dict)
    assert {name: run[name] for name in best} == {
        name: None if value == "none" else value for name, value in best.items()
    }
    assert (run["model"], run["held_out"], run["epochs"]) == ("mlp:14", None, 3)
    for own in tried:
        assert f"{own['accuracy']:.2%}" in shown
