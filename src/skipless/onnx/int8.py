"""An ONNX file in 8-bit integers, by onnxruntime's static quantiser."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnxruntime.quantization import CalibrationDataReader


def quantize(path: str | Path, output: str | Path, batches: Iterable[np.ndarray]) -> Path:
    """Write the network at `path` to `output` with 8-bit weights and activations; returns `output`.

    Each channel of a weight has its own scale; the scale of an activation follows from its smallest
    and largest value in `batches`. Both are unsigned: with signed weights, processors without VNNI
    instructions would clip sums of two products, or weights could use 7 bits only.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path, output = Path(path), Path(output)
    # Next to the output, which it replaces when it is complete.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".unfinished-") as folder, _quiet():
        prepared, written = Path(folder) / "prepared.onnx", Path(folder) / output.name
        # PyTorch's exporter has written the shapes already.
        quant_pre_process(path, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            written,
            _calibration_reader(path, batches),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QUInt8,
            extra_options={"WeightSymmetric": True},
        )
        written.replace(output)
    return output


def _calibration_reader(path: Path, batches: Iterable[np.ndarray]) -> CalibrationDataReader:
    from onnxruntime.quantization import CalibrationDataReader

    from .run import open_session

    name = open_session(path).get_inputs()[0].name

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:  # pyright: ignore
            batch = next(self._batches, None)
            return None if batch is None else {name: batch}

    return Reader()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences onnxruntime's notes on its own defaults, which go to the root logger."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
