"""The gallery: each script runs as a reader would run it and shows what its docstring claims."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
START = EXAMPLES.parent / "docs" / "start.md"
GALLERY = re.findall(r"^\| `(\w+\.py)`", START.read_text(encoding="utf-8"), re.MULTILINE)


def run(script: str, monkeypatch, capsys) -> dict[str, float]:
    """The number that it prints last on each line, by the name that the line begins with."""
    monkeypatch.setattr(sys, "argv", [script])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    lines = re.findall(r"^([^:\n]+): .*?(-?\d+\.\d+)$", capsys.readouterr().out, re.MULTILINE)
    return {name: float(number) for name, number in lines}


def test_a_100_layer_mlp_regresses_after_conversion_only(monkeypatch, capsys) -> None:
    r2 = run("tabular_mlp.py", monkeypatch, capsys)
    assert r2["converted"] > 0.8
    assert max(r2["with BatchNorm"], r2["without"]) < 0.3


def test_a_convnet_classifies_series_after_conversion(monkeypatch, capsys) -> None:
    accuracy = run("series_convnet.py", monkeypatch, capsys)
    assert accuracy["converted"] > 0.97
    assert accuracy["with BatchNorm"] < accuracy["converted"]
    assert accuracy["without"] < 0.4


def test_a_unet_learns_from_single_images_after_conversion(monkeypatch, capsys) -> None:
    iou = run("unet.py", monkeypatch, capsys)
    assert iou["converted"] > 0.55
    assert max(iou["with BatchNorm"], iou["without"]) < 0.4


def test_a_resnet18_learns_from_single_images_after_conversion_only(monkeypatch, capsys) -> None:
    accuracy = run("resnet18_batch_of_one.py", monkeypatch, capsys)
    assert "with BatchNorm, batches of 1" not in accuracy  # PyTorch refuses
    assert accuracy["with BatchNorm, batches of 2"] < 0.5
    assert accuracy["converted, batches of 1"] > 0.75


def test_kfac_reaches_half_the_loss_of_sgd_in_the_same_epochs(monkeypatch, capsys) -> None:
    loss = run("kfac_loop.py", monkeypatch, capsys)
    assert loss["K-FAC"] < loss["SGD"] / 2


@pytest.mark.parametrize("script", GALLERY)
def test_scripts_have_fewer_than_60_lines_of_code(script: str) -> None:
    text = (EXAMPLES / script).read_text(encoding="utf-8")
    code = [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]
    assert f"python examples/{script}" in text.split('"""')[1]
    assert len(code) < 60
