"""The file in 8-bit integers is there as a whole, or as it was before."""

from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime import quantization
from torch import nn

import onnx
from skipless.onnx.run import open_session, run_session
from skipless.onnx.writer import quantize, write


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float32") / "model.onnx"
    torch.manual_seed(0)
    write(nn.Linear(6, 3).eval(), torch.zeros(2, 6), path)
    return path


def batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)


def test_a_quantised_file_is_near_to_the_one_it_was_made_of(path: Path, tmp_path: Path) -> None:
    given, quantised = batch(), quantize(path, tmp_path / "model.int8.onnx", [batch()])
    wanted, found = (run_session(open_session(file), given) for file in (path, quantised))
    assert 0.0 < np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()
    assert list(tmp_path.iterdir()) == [quantised]


def test_a_quantisation_that_is_cut_off_leaves_the_file_of_before(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(_: Path, written: Path, *__: object, **___: object) -> None:
        Path(written).write_bytes(b"half of")
        raise OSError("No space left on device")

    before = tmp_path / "model.int8.onnx"
    before.write_bytes(b"a good one")
    monkeypatch.setattr(quantization, "quantize_static", cut_off)
    with pytest.raises(OSError, match="No space left"):
        quantize(path, before, [batch()])
    assert before.read_bytes() == b"a good one"
    assert list(tmp_path.iterdir()) == [before]


def test_each_channel_of_a_weight_has_a_scale_of_its_own(tmp_path: Path) -> None:
    layer = nn.Conv2d(4, 2, 1, bias=False).eval()
    with torch.no_grad():
        layer.weight[1] *= 1e-3  # which the scale of the first would round to nothing
    path, images = tmp_path / "model.onnx", torch.randn(64, 4, 2, 2)
    write(layer, images[:2], path)
    quantised = quantize(path, tmp_path / "model.int8.onnx", [images.numpy()])
    kept = {t.name: t for t in onnx.load(quantised).graph.initializer}
    sizes = [tuple(t.dims) for name, t in kept.items() if "weight" in name and "scale" in name]
    assert sizes == [(2,)]
    codes = next(t for t in kept.values() if tuple(t.dims) == (2, 4, 1, 1))
    signed = onnx.numpy_helper.to_array(codes).astype(int) - 128
    # Of both channels the largest weight takes the largest code.
    assert np.abs(signed).max(axis=(1, 2, 3)).min() >= 127
