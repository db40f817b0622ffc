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


def quantize_int8(path: Path, output: Path, batches: Iterable[np.ndarray]) -> Path:
    """The path `output` of the network at `path` with 8-bit weights and activations.

    Each channel of a weight has a scale of its own, each activation one for the smallest and the
    largest value that it takes in `batches`. Both are unsigned: with signed weights, processors
    without VNNI instructions would clip sums of two products, or weights could use 7 bits only.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    # Beside the output, whose place it takes when it is whole.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".unfinished-") as folder, _quiet():
        prepared, written = Path(folder) / "prepared.onnx", Path(folder) / output.name
        # Shapes are in the file already, as PyTorch's exporter wrote them.
        quant_pre_process(path, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            written,
            _reader(path, batches),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QUInt8,
            extra_options={"WeightSymmetric": True},
        )
        written.replace(output)
    return output


def _reader(path: Path, batches: Iterable[np.ndarray]) -> CalibrationDataReader:
    from onnxruntime.quantization import CalibrationDataReader

    from .run import session

    name = session(path).get_inputs()[0].name

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:  # pyright: ignore
            batch = next(self._batches, None)
            return None if batch is None else {name: batch}

    return Reader()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what onnxruntime tells the root logger of its own defaults."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
