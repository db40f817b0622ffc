"""Mistakes: each error says what is required, what it got and what to do, in one line.

Those of the command line are in mistakes.txt, those of Python in wrong_calls.txt: add a line for
every other that somebody makes.
"""
# pyright: reportArgumentType=false, reportCallIssue=false

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import skipless as sk
import wrong_calls
from mistakes import fill
from skipless import DKS, EOC, TAT, Graph, solve
from skipless.cli import main
from skipless.core.predict import predict
from skipless.record import RUN_LOCK

BATCH = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: solve(100), "expects a Graph first, got"),
        (lambda g: solve("mlp:100"), "expects a Graph first, got"),
        (lambda g: solve(nn.Sequential(nn.ReLU())), "Graph first, got Sequential. Use"),
        (lambda g: solve(g, "tat"), r"must be TAT\(\.\.\.\), .* got 'tat'"),
        (lambda g: solve(g, TAT), "method must be TAT"),
        (lambda g: solve(g, None), "method must be TAT"),
        (lambda g: sk.convert(nn.Linear(3, 3), BATCH, "tat"), "must be TAT.* got 'tat' .for"),
        (lambda g: sk.convert(nn.Linear(3, 3)), "NoneType.* Pass a batch of inputs, such as"),
        (lambda g: sk.convert(nn.Linear(3, 3), (2, 3)), "tuple.* Pass a batch of inputs"),
        (lambda g: sk.torch.convert(BATCH, nn.Linear(3, 3)), r"got \(Tensor, .* the model first"),
        (lambda g: solve(g, TAT(), None), "must be a name such as 'tanh', .* got None"),
        (lambda g: solve(g, TAT(), np.tanh), "must be a name such as 'tanh'"),
        (lambda g: TAT("0.9"), "eta must be a number, got '0.9'"),
        (lambda g: TAT(eta=np.array([0.9])), "must be a number, got"),
        (lambda g: DKS(None), "must be a number, got"),
        (lambda g: EOC("0"), "must be a number, got"),
        (lambda g: Graph.chain("100"), "depth must be an integer, got '100'"),
        (lambda g: Graph.chain(100.0), "depth must be an integer, got 100.0"),
        (lambda g: Graph([1, 2]), r"must be Input, Affine, .*, got 1\."),
        (
            lambda g: Graph.residual(3, shortcut_weight="0.8"),
            "shortcut_weight must be a number, got '0.8'",
        ),
    ],
)
def test_a_wrong_type_is_named_with_what_to_give_instead(call, message) -> None:
    with pytest.raises(TypeError, match=message):
        call(Graph.chain(20))


@pytest.mark.parametrize(
    "call",
    [
        lambda method: predict(Graph.chain(3), method),
        lambda method: sk.torch.ShapedActivation.from_solution(method),
        lambda method: sk.torch.check(nn.Linear(3, 3), torch.zeros(2, 3), method),
        lambda method: sk.jax.shaped(method),
        lambda method: sk.jax.check(lambda x: x, np.zeros((2, 3)), solution=method),
        lambda method: sk.keras.ShapedActivation.from_solution(method),
    ],
)
def test_a_method_is_not_a_solution(call) -> None:
    expected = r"Expected a Solution, which `solve` returns, got .*solve\(graph, TAT"
    for method in (TAT(), DKS):
        with pytest.raises(TypeError, match=expected):
            call(method)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        top = tmp_path_factory.mktemp("mistakes")
        patch.chdir(top)
        patch.setattr(sys, "path", [p for p in sys.path if p])
        patch.setenv("HOME", str(top / "home"))
        patch.setenv("SKIPLESS_DATA", str(top / "no-data"))
        fill(top)
        yield top


def files(top: Path) -> set[tuple[str, int, int]]:
    """Names, sizes and times of all files, but for caches of libraries, and locks of runs."""
    found = set()
    for parent, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in ("__pycache__", ".cache", ".config")]
        for name in {*folders, *names} - {RUN_LOCK}:
            status = os.lstat(path := os.path.join(parent, name))  # noqa: PTH118 - a third of the time
            is_folder = stat.S_ISDIR(status.st_mode)
            found.add((path, *((0, 0) if is_folder else (status.st_size, status.st_mtime_ns))))
    return found


def listed(name: str) -> list[tuple[str, str]]:
    """The lines of a list: what is wrong, and what the error says."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("  =>  ") for line in lines if line and not line.startswith("#")]
    return [(wrong, says) for wrong, says in pairs]


def test_every_mistake_is_one_line_with_exit_code_2_and_leaves_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_step(*_: object) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr("skipless.train.engine.Engine._train_step", no_step)
    capfd.readouterr()
    mistakes, offenders, before = listed("mistakes.txt"), [], files(folder)
    for number, (command, says) in enumerate(mistakes):
        words = command.format(long="x" * 300, latin="na\udce9me", newline="\n")
        try:
            code: object = main(shlex.split(words))
        except BaseException as error:
            code = repr(error)
        out, err = capfd.readouterr()
        changed = []
        if number % 16 == 15 or number == len(mistakes) - 1:  # to look each time takes longest
            after = files(folder)
            changed = sorted({path for path, *_ in before ^ after})
            before = after
        one_line = err.startswith("skipless: ") and err.count("\n") == 1
        planned = command.startswith("reproduce") and out.count("\n") <= 2  # what it would do
        silent = planned or not out
        if code != 2 or not silent or not one_line or says not in err or changed:
            offenders.append((command, says, code, out, err, changed))
    text = "\n".join(map(repr, offenders))
    assert len(offenders) == 0, f"{len(offenders)} of {len(mistakes)} mistakes:\n{text}"
    assert len(mistakes) >= 400


def test_every_wrong_call_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known, calls, offenders = wrong_calls.names(), listed("wrong_calls.txt"), []
    (tmp_path / "file.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    sk.onnx.export(known["NET"].eval(), known["X"], "good.onnx")
    for call, says in calls:
        try:
            found = repr(eval(call, known))
        except (ValueError, TypeError, OSError) as error:
            found = " ".join(str(error).split())
            if says in found:
                continue
        except BaseException as error:
            found = repr(error)
        offenders.append((call, says, found))
    text = "\n".join(map(repr, offenders))
    assert len(offenders) == 0, f"{len(offenders)} of {len(calls)} calls:\n{text}"
    assert len(calls) >= 400
