"""Options of training come from files and the command line, and wrong ones are named."""

from pathlib import Path
from typing import Any

import pytest

from skipless.runs.configuration import Configuration, from_file


def test_what_comes_later_counts(tmp_path: Path) -> None:
    found = Configuration.of({"epochs": 5, "batch-size": 64}, {"epochs": 7})
    assert (found.epochs, found.batch_size) == (7, 64)


FILES = {
    "run.toml": 'model = "resnet50"\nbatch-size = 32\nlr = 1\nnesterov = true\nmethod = "tat"\n',
    "run.yaml": "model: resnet50\nbatch_size: 32\nlr: 1\nnesterov: true\nmethod: tat\n",
    "run.json": """{"model": "resnet50", "batch-size": 32, "lr": 1, "nesterov": true,
        "method": "tat"}""",
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_says_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    found = Configuration.of(from_file(tmp_path / name))
    wanted = Configuration(model="resnet50", batch_size=32, lr=1.0, nesterov=True, method="tat")
    assert found == wanted
    assert isinstance(found.lr, float)


def test_all_options_survive_a_file(tmp_path: Path) -> None:
    configuration = Configuration(model="mlp:7", eta=0.8, augment=False, average=0.99)
    assert Configuration.of(configuration.as_mapping()) == configuration


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batchsize": 3}, "batchsize was given, which is no option of training. Is it batch_size"),
        ({"qwertz": 3}, "The names are model, width"),
        ({1: 2}, "1 was given, which is no option"),
        ({"epochs": "many"}, "epochs = 'many' was given; it is a whole number"),
        ({"epochs": 2.5}, "epochs = 2.5 was given"),
        ({"epochs": True}, "epochs = True was given"),
        ({"lr": "fast"}, "lr = 'fast' was given; it is a number or none"),
        ({"clamp": 1}, "clamp = 1 was given; it is true or false"),
        ({"optimizer": "adam"}, "it is 'sgd', 'lars', 'muon', 'adamw', 'soap'"),
        ({"norm": "group"}, "it is 'none', 'batch', 'layer' or none"),
    ],
)
def test_a_wrong_option_is_named(given: dict[Any, object], says: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the words are what is tested
        Configuration.of(given)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.toml", "epochs 5", "cannot be read"),
        ("run.yaml", "a: [", "cannot be read"),
        ("run.yaml", "- 5", "has no names"),
        ("run.txt", "epochs = 5", "none of .toml, .yaml, .yml and .json"),
        ("run.toml", "epochs = '\udcff'", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=says) as raised:
        from_file(tmp_path / name)
    assert name in str(raised.value)


def test_a_run_that_goes_on_keeps_what_it_was_started_with() -> None:
    before = Configuration(lr=0.1, workers=2)
    assert before.changed({"workers": 5, "lr": 0.1}) == Configuration(lr=0.1, workers=5)
    with pytest.raises(ValueError, match=r"started with --lr 0.1, and 0.3 was asked for"):
        before.changed({"lr": 0.3})
    with pytest.raises(ValueError, match="started with the usual --lr"):
        Configuration().changed({"lr": 0.3})
