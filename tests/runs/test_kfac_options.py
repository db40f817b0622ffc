"""Every option of K-FAC reaches it, and what is usual is what the paper took."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import published
from skipless.cli import main
from skipless.optim import KFAC, KFACSettings
from skipless.optim.settings import PRESETS
from skipless.record import Record
from skipless.runs.configuration import Configuration, options
from skipless.runs.training import DEFAULT_RATES, build_run
from skipless.train.process import Process

TINY = {"model": "mlp:14", "width": 8, "optimizer": "kfac", "device": "cpu"}
PRESET = ("damping", "norm_constraint")


def built(**given: Any) -> KFAC:
    optimizer = build_run(Configuration.of(TINY, given), Process()).optimizer
    assert isinstance(optimizer, KFAC)
    return optimizer


def settings_of(optimizer: KFAC) -> dict[str, Any]:
    """What an optimiser goes by, read from where it uses it."""
    timing = dict(optimizer.state_dict()["kfac"]["timing"])
    timing["spread_inverses"] = timing.pop("spread")
    timing["early_inverses"] = timing.pop("early")
    estimate = optimizer._estimate
    own = {name: getattr(optimizer, name) for name in (*PRESET, "curvature_ema")}
    names = ("fisher", "input_stride", "eigenbasis", "seed")
    return own | timing | {name: getattr(estimate.settings, name) for name in names}


# What is given, and all that differs then from what is usual.
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "kfac_preset": ("imagenet", dict(published.KFAC_SETTINGS["imagenet"])),
    "kfac_damping": (0.25, {"damping": 0.25}),
    "kfac_norm_constraint": (0.125, {"norm_constraint": 0.125}),
    "kfac_curvature_ema": (0.75, {"curvature_ema": 0.75}),
    "kfac_curvature_period": (3, {"curvature_period": 3}),
    "kfac_inverse_period": (7, {"inverse_period": 7}),
    "kfac_early_inverses": (False, {"early_inverses": False}),
    "kfac_restarts": (False, {"restarts": False}),
    "kfac_burn_in": (2, {"burn_in": 2}),
    "kfac_fisher": ("exact", {"fisher": "exact"}),
    "kfac_input_stride": (4, {"input_stride": 4}),
    "kfac_spread_inverses": (True, {"spread_inverses": True}),
    "kfac_eigenbasis": (True, {"eigenbasis": True}),
    "seed": (11, {"seed": 11}),
}


def test_every_option_of_kfac_is_tried_here() -> None:
    names = {name for name in options() if name.startswith("kfac_")}
    assert set(GIVEN) == names | {"seed"}
    library_only = {"loss", "damping_period", "seed"}  # a run has its own loss and seed
    assert names == {f"kfac_{own.name}" for own in fields(KFACSettings)} - {
        f"kfac_{name}" for name in library_only
    }


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_reaches_the_optimiser_and_changes_nothing_else(name: str) -> None:
    value, expected = GIVEN[name]
    usual = settings_of(built())
    assert all(usual[key] != new for key, new in expected.items())
    assert settings_of(built(**{name: value})) == usual | expected


def test_the_penalty_rate_and_momentum_are_those_given() -> None:
    weights, others = built(l2=0.5, lr=0.03, momentum=0.7).param_groups
    assert (weights["name"], others["name"]) == ("weights", "others")
    assert (weights["l2"], others["l2"]) == (0.5, 0.0)
    assert (weights["lr"], others["lr"]) == (0.03, 0.03)
    assert (weights["momentum"], others["momentum"]) == (0.7, 0.7)
    assert [group["l2"] for group in built().param_groups] == [0.0, 0.0]


@pytest.mark.parametrize("name", PRESET)
def test_what_is_given_wins_over_the_preset(name: str) -> None:
    found = settings_of(built(kfac_preset="imagenet", **{f"kfac_{name}": 0.5}))
    assert {key: found[key] for key in PRESET} == published.KFAC_SETTINGS["imagenet"] | {name: 0.5}


def test_presets_are_those_of_the_paper_and_one_for_batch_norm() -> None:
    own = {"batchnorm": {"damping": 0.01, "norm_constraint": published.KFAC_JAX_RESNET50_NORM}}
    assert published.KFAC_SETTINGS | own == PRESETS


@pytest.mark.parametrize(
    ("given", "preset", "rate"),
    [
        ({"model": "resnet18"}, "batchnorm", 0.1),
        ({"model": "resnet18", "lr": 0.3}, "batchnorm", 0.3),
        ({"model": "mlp:14", "norm": "batch"}, "batchnorm", 0.1),
        ({"model": "resnet18", "kfac_preset": "cifar10"}, "cifar10", DEFAULT_RATES["kfac"]),
        ({"model": "resnet18", "norm": "layer"}, "cifar10", DEFAULT_RATES["kfac"]),
        ({"model": "resnet18", "shortcut_weight": 0.0}, "cifar10", DEFAULT_RATES["kfac"]),
        ({"model": "mlp:14"}, "cifar10", DEFAULT_RATES["kfac"]),
    ],
)
def test_a_new_run_with_batch_norm_takes_its_preset_unless_another_is_given(
    given: dict[str, Any], preset: str, rate: float
) -> None:
    small = {"optimizer": "kfac", "width": 8 if given["model"] == "mlp:14" else 1 / 32}
    new = Configuration.of_new_run(small, given)
    optimizer = build_run(new, Process()).optimizer
    assert (new.kfac.preset, optimizer.param_groups[0]["lr"]) == (preset, rate)
    assert isinstance(optimizer, KFAC)
    assert optimizer.norm_constraint == PRESETS[new.kfac.preset or "cifar10"]["norm_constraint"]
    assert Configuration.of(small, given).kfac.preset == given.get("kfac_preset", "cifar10")


def test_the_command_line_says_which_preset_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["train", "--model", "mlp:14", "--norm", "batch", "--width", "8", "--steps", "1"]
    options += ["--optimizer", "kfac", "--dry-run"]
    assert main(options) == 0
    assert "K-FAC takes its preset batchnorm" in capsys.readouterr().out
    assert main([*options, "--kfac-preset", "cifar10"]) == 0
    assert "preset batchnorm" not in capsys.readouterr().out


# As versions before `Configuration.kfac` wrote them.
OLD_RUN = {
    "kfac_preset": "imagenet", "kfac_damping": 0.25, "kfac_norm_constraint": None,
    "kfac_curvature_ema": 0.75, "kfac_curvature_period": 3, "kfac_inverse_period": 7,
    "kfac_burn_in": 2, "kfac_fisher": "exact", "kfac_input_stride": 4,
    "kfac_spread_inverses": True, "kfac_eigenbasis": True,
}  # fmt: skip


def test_settings_in_an_old_run_json_are_read_and_written_by_the_same_names() -> None:
    configuration = Configuration.of(TINY, OLD_RUN)
    assert configuration.kfac == KFACSettings(
        preset="imagenet", damping=0.25, curvature_ema=0.75, curvature_period=3, inverse_period=7,
        burn_in=2, fisher="exact", input_stride=4, spread_inverses=True, eigenbasis=True,
    )  # fmt: skip
    written = configuration.as_mapping()
    assert {name: value for name, value in written.items() if name in OLD_RUN} == OLD_RUN
    new = {"kfac_early_inverses", "kfac_restarts"}  # old checkpoints still turn them off
    assert {name for name in written if name.startswith("kfac")} == set(OLD_RUN) | new


def test_a_run_cannot_resume_with_other_settings() -> None:
    configuration = Configuration.of(TINY, OLD_RUN)
    assert configuration.resume_with({"kfac_damping": 0.25}) == configuration
    with pytest.raises(
        ValueError, match=r"--kfac-damping 0\.5: the run started with --kfac-damping 0\.25"
    ):
        configuration.resume_with({"kfac_damping": 0.5})


def test_settings_of_kfac_need_kfac() -> None:
    other = {**TINY, "optimizer": "sgd", "kfac_burn_in": 2}
    with pytest.raises(ValueError, match=r"--kfac-burn-in needs --optimizer kfac, got .* sgd"):
        build_run(Configuration.of(other), Process())


def test_what_is_usual_is_what_the_paper_took() -> None:
    optimizer = built()
    found = settings_of(optimizer)
    assert {name: found[name] for name in PRESET} == published.KFAC_SETTINGS["cifar10"]
    assert {name: found[name] for name in published.KFAC_PERIODS} == published.KFAC_PERIODS
    assert {group["momentum"] for group in optimizer.param_groups} == {published.MOMENTUM}


def test_the_usual_rate_is_at_most_a_few_times_the_papers_largest() -> None:
    """Its batches were eight times as large, and its networks wider."""
    least, largest = min(published.KFAC_RATES), max(published.KFAC_RATES)
    assert least <= DEFAULT_RATES["kfac"] <= largest
    assert {group["lr"] for group in built().param_groups} == {DEFAULT_RATES["kfac"]}


def test_a_run_can_take_the_labels_of_the_data(tmp_path: Path) -> None:
    options = ["train", "--optimizer", "kfac", "--steps", "3", "--model", "mlp:14", "--width", "8"]
    options += ["--device", "cpu", "--log-every", "1", "--kfac-burn-in", "1"]
    losses = {}
    for fisher in ("empirical", "sampled"):
        folder = tmp_path / fisher
        assert main([*options, "--kfac-fisher", fisher, "--output", str(folder)]) == 0
        steps, losses[fisher] = Record.read(folder).series("train", "loss")
        assert steps == [1, 2, 3]
    # The first step only measures, so that the second has the same weights too.
    assert losses["empirical"][:2] == losses["sampled"][:2]
    assert losses["empirical"][2] != losses["sampled"][2]
