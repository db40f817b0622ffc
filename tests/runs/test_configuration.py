"""Options of training come from files and the command line, and wrong ones are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from skipless.runs.configuration import Configuration, MethodName, parse_model, read_options
from skipless.runs.training import create_network


def test_later_options_win(tmp_path: Path) -> None:
    found = Configuration.of({"epochs": 5, "batch-size": 64}, {"epochs": 7})
    assert (found.epochs, found.batch_size) == (7, 64)


FILES = {
    "run.toml": 'model = "resnet50"\nbatch-size = 32\nlr = 1\nnesterov = true\nmethod = "tat"\n',
    "run.yaml": "model: resnet50\nbatch_size: 32\nlr: 1\nnesterov: true\nmethod: tat\n",
    "run.json": """{"model": "resnet50", "batch-size": 32, "lr": 1, "nesterov": true,
        "method": "tat"}""",
}


@pytest.mark.parametrize("name", FILES)
def test_toml_yaml_and_json_give_the_same_options(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    found = Configuration.of(read_options(tmp_path / name))
    wanted = Configuration(model="resnet50", batch_size=32, lr=1.0, nesterov=True, method="tat")
    assert found == wanted
    assert isinstance(found.lr, float)


def test_all_options_survive_a_file(tmp_path: Path) -> None:
    configuration = Configuration(model="mlp:7", eta=0.8, augment=False, average=0.99)
    assert Configuration.of(configuration.as_mapping()) == configuration


@pytest.mark.parametrize(
    ("given", "kept"),
    [("none", None), (None, None), ("2", 2.0), (2, 2.0), ("adaptive:0.1", "adaptive:0.1")],
)
def test_clipping_is_kept_in_one_form_however_it_is_written(given: object, kept: object) -> None:
    found = Configuration.of({"clip": given})
    assert found.clip == kept
    assert Configuration.of(json.loads(json.dumps(found.as_mapping()))) == found


@pytest.mark.parametrize("given", ["0", "nan", "inf", "adaptive:0", "adaptive:inf", "often"])
def test_clipping_takes_no_norm_that_json_lacks_or_that_clips_nothing(given: str) -> None:
    with pytest.raises(ValueError, match=f"finite and > 0, got {given}$"):
        Configuration.of({"clip": given})


@pytest.mark.parametrize(
    ("given", "clip", "lr"),
    [
        ({}, 1.0, 0.03),
        ({"model": "resnet18", "method": "tat"}, 1.0, 0.03),
        ({"model": "resnet18", "shortcut_weight": 0.8}, 1.0, 0.03),
        ({"lr": 0.2}, 1.0, 0.2),
        ({"clip": "adaptive:0.02"}, "adaptive:0.02", 0.03),
        ({"clip": "none"}, None, None),
        ({"clip": None}, None, None),
        ({"norm": "batch"}, None, None),
        ({"model": "resnet18"}, None, None),
        ({"model": "resnet18", "shortcut_weight": 0.0, "norm": "layer"}, None, None),
        ({"optimizer": "kfac"}, None, None),
    ],
)
def test_a_new_run_of_sgd_clips_by_default_where_nothing_normalises(
    given: dict[str, object], clip: float | str | None, lr: float | None
) -> None:
    found = Configuration.of_new_run(given)
    assert (found.clip, found.lr) == (clip, lr)
    assert Configuration.of(given).lr == given.get("lr")


@pytest.mark.parametrize("norm", [None, "none", "batch", "layer"])
@pytest.mark.parametrize("method", [None, "tat"])
@pytest.mark.parametrize("weight", [None, 0.0, 0.8])
@pytest.mark.parametrize("model", ["mlp:5", "resnet18"])
def test_a_network_is_normalised_if_it_has_such_layers(
    model: str, weight: float | None, method: MethodName | None, norm: Any
) -> None:
    given = Configuration(
        model=model, shortcut_weight=weight, method=method, norm=norm, clamp=True,
        width=8 if model == "mlp:5" else 0.125,
    )  # fmt: skip
    try:
        network = create_network(given, (1, 8, 8), 10)
    except ValueError:  # no such network
        return
    kinds = ("BatchNorm", "LayerNorm", "GroupNorm")
    found = any(kind in type(m).__name__ for m in network.modules() for kind in kinds)
    assert given.normalised == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batchsize": 3}, "batchsize is not an option of training. Did you mean batch_size?"),
        ({"qwertz": 3}, "Options: model, width"),
        ({1: 2}, "1 is not an option of training"),
        ({"epochs": "many"}, "epochs must be an integer, got 'many'"),
        ({"epochs": 2.5}, "epochs must be an integer, got 2.5"),
        ({"epochs": True}, "epochs must be an integer, got True"),
        ({"lr": "fast"}, "lr must be a number or none, got 'fast'"),
        ({"clamp": 1}, "clamp must be true or false, got 1"),
        ({"optimizer": "adam"}, "must be 'sgd', 'lars', 'muon', 'adamw', 'soap'"),
        ({"norm": "group"}, "must be 'none', 'batch', 'layer' or none, got 'group'"),
    ],
)
def test_a_wrong_option_is_named(given: dict[Any, object], says: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are what is tested
        Configuration.of(given)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.toml", "epochs 5", "Cannot read"),
        ("run.yaml", "a: [", "Cannot read"),
        ("run.yaml", "- 5", "must map names to values"),
        ("run.txt", "epochs = 5", "must end in .toml, .yaml, .yml or .json"),
        ("run.toml", "epochs = '\udcff'", "Cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=says) as raised:
        read_options(tmp_path / name)
    assert name in str(raised.value)


def test_a_resumed_run_keeps_the_options_it_started_with() -> None:
    before = Configuration(lr=0.1, workers=2)
    assert before.resume_with({"workers": 5, "lr": 0.1}) == Configuration(lr=0.1, workers=5)
    with pytest.raises(
        ValueError, match=r"Cannot resume with --lr 0\.3: the run started with --lr 0\.1\. Drop"
    ):
        before.resume_with({"lr": 0.3})
    with pytest.raises(ValueError, match=r"--lr 0\.3: the run started without --lr"):
        Configuration().resume_with({"lr": 0.3})


# The configuration in a run.json of version 0.1, from before parts of it were declared elsewhere.
OLD = json.loads("""
{"model": "mlp:14", "width": 8.0, "shortcut_weight": null, "norm": null, "activation": null,
"negative_slope": null, "method": null, "eta": null, "tau": null, "zeta": null, "sigma_b":
null, "clamp": false, "dropout": 0.0, "distribution": "orthogonal", "delta": true, "data":
"digits", "data_folder": null, "image_size": null, "train_size": null, "validation_size": null,
"augment": null, "normalize": "sample", "optimizer": "kfac", "lr": null, "momentum": null,
"nesterov": null, "l2": 0.0, "kfac_preset": "cifar10", "kfac_damping": null,
"kfac_norm_constraint": null, "kfac_curvature_ema": 0.99, "kfac_curvature_period": 1,
"kfac_inverse_period": 50, "kfac_burn_in": 1, "kfac_fisher": "sampled", "kfac_input_stride": 1,
"kfac_spread_inverses": false, "kfac_eigenbasis": false, "schedule": "step", "marks":
"1/2,0.75", "warmup": null, "epochs": 90, "steps": 6, "batch_size": 128, "classes_per_batch":
null, "accumulate": 1, "label_smoothing": 0.1, "teacher": null, "teacher_weight": 0.9,
"teacher_temperature": 4.0, "clip": null, "average": null, "precision": "float32",
"channels_last": null, "compile": false, "device": "cpu", "threads": null, "workers": null,
"seed": 3, "log_every": 1, "evaluate_every": 1, "checkpoint_every": 3, "keep": 3}
""")


def test_an_old_run_json_is_read_and_written_with_the_same_names_and_values() -> None:
    found = Configuration.of(OLD)
    assert (found.model, found.marks, found.mark_fractions) == ("mlp:14", "1/2,0.75", (0.5, 0.75))
    assert (found.kfac.burn_in, found.seed, found.checkpoint_every) == (1, 3, 3)
    new = {"kfac_early_inverses": True, "kfac_restarts": True, "crop": "window"}
    new |= {"tf32": None, "cudnn_benchmark": True, "sync_batch_norm": None}
    new |= {
        "log_kernel": None,
        "log_layers": None,
        "held_out": None,
        "trainable_slope": None,
        "spread": None,
    }
    assert found.as_mapping() == OLD | new
    assert found.resume_with({"keep": 5}).as_mapping() == OLD | new | {"keep": 5}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mlp:100", "network"),
        ("mlp:x", "network"),
        ("wide_resnet16", "network"),
        ("vgg", "network"),  # of which an error says that there is none
        ("my_package.models:resnet", "factory"),
        ("zoo.py:net", "factory"),
        ("runs/first", "run"),
        ("weights.pt", "run"),
        ("", "run"),
        ("there", "run"),
        ("resnet50", "run"),  # a folder with a run.json, here
    ],
)
def test_a_model_is_a_network_a_factory_or_a_run(
    text: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("there", "resnet50", "resnet18"):
        Path(name).mkdir()
    Path("resnet50/run.json").touch()
    assert parse_model(text) == kind
    assert parse_model("resnet18") == "network"  # a folder without one
