"""A network becomes an ONNX file, and is measured: what `skipless deploy` does.

The numbers are those of files, for these are what runs on a device: of the network as it was, of
the folded one, of that in 8-bit integers, and of the folded one that it is compared with.
Parameters are counted in the networks.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from skipless.torch.deploy import demand_onnx, export_onnx, fold, write_onnx
from skipless.torch.footprint import best_schedule
from skipless.torch.int8 import quantize_int8
from skipless.torch.latency import latencies
from skipless.torch.onnx_graph import OnnxGraph, UnknownShapeError, read_onnx
from skipless.torch.onnx_steps import measured_peak, output, session
from skipless.train.process import cores

from .accuracy import Accuracy, Prepared, accuracies
from .candidates import Candidate, Shape, peer

ORIGINAL, FOLDED, INT8, PEER = "original", "folded", "int8", "against"
Told = Callable[[str], object]


@dataclass(frozen=True)
class Wish:
    """What was asked for; `int8` is None if it depends on whether there are data."""

    output: Path
    batch_size: int = 1
    int8: bool | None = None
    against: str | None = None
    seconds: float = 10.0  # of timing, for each number of threads


@dataclass(frozen=True)
class Figures:
    """What one file takes: bytes, and seconds by the number of threads.

    `peak_memory` is computed from the graph, `measured_peak_memory` counted in a run. Of a
    quantised file there is neither, for its graph is written for float32. For what else is None,
    `unknown` has the operation whose shapes are not known.
    """

    name: str
    parameters: int
    operators: Mapping[str, int]
    disk: int
    latency: Mapping[int, float]
    multiply_adds: int | None = None
    peak_memory: int | None = None
    measured_peak_memory: int | None = None
    best_order: bool = False
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Deployment:
    """All that was found out about a network on its way to a device."""

    description: str
    shape: Shape
    preparation: str  # of what the network reads
    batch_size: int
    figures: Mapping[str, Figures]
    remaining: tuple[str, ...]  # what could not be folded
    difference: float  # of outputs, between the file and the model
    largest_output: float
    accuracy: Mapping[str, Accuracy]
    lacking: Mapping[str, str]  # why there is no file of this kind

    def as_mapping(self) -> dict[str, object]:
        """Everything by name, in types that JSON has."""
        return asdict(self)


def deployed(given: Candidate, wish: Wish, told: Told = lambda step: None) -> Deployment:
    """What was found out about `given`, whose files are in the folder of `wish` then.

    `told` hears of every step before it is taken.
    """
    demand_onnx()
    _demand_data(given, wish)
    wish.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        return _Files(given, wish, Path(scratch), told).deployment()


class _Files:
    """The files of one deployment, as they are written."""

    def __init__(self, given: Candidate, wish: Wish, scratch: Path, told: Told) -> None:
        self.given, self.wish, self.scratch, self.told = given, wish, scratch, told
        self.batch = given.examples(wish.batch_size)
        self.other = peer(given, wish.against)
        self.paths: dict[str, Path] = {}
        self.names: dict[str, str] = {}
        self.parameters: dict[str, int] = {}
        self.lacking: dict[str, str] = {}

    def deployment(self) -> Deployment:
        model = self.given.model.eval()
        folded = fold(model, self.batch)
        self._write_original(model)
        self.told("exporting the folded network")
        path = export_onnx(model, self.batch, self.wish.output / "model.onnx")
        self._add(FOLDED, "folded", path, folded)
        difference, largest = self._difference(model, path)
        accuracy = self._quantize(folded)
        self._write_peer()
        figures = self._figures()
        # The exporter folds some that `fold` leaves, such as behind weights that are computed.
        norms = "BatchNormalization" in figures[FOLDED].operators
        remaining = [r for r in folded.meta["remaining"] if norms or "stays a BatchNorm" not in r]
        return Deployment(
            self.given.description,
            self.given.shape,
            self.given.preparation,
            self.wish.batch_size,
            figures,
            tuple(remaining),
            difference,
            largest,
            accuracy,
            self.lacking,
        )

    def _add(self, kind: str, name: str, path: Path, model: nn.Module) -> None:
        self.paths[kind], self.names[kind] = path, name
        self.parameters[kind] = sum(p.numel() for p in model.parameters())

    def _write_original(self, model: nn.Module) -> None:
        self.told("exporting the network as it is")
        path = self.scratch / "original.onnx"
        try:
            write_onnx(copy.deepcopy(model), torch.cat([self.batch, self.batch]), path)
        except RuntimeError as error:  # the folded one may do nevertheless
            self.lacking[ORIGINAL] = str(error)
        else:
            self._add(ORIGINAL, "as it is", path, model)

    def _write_peer(self) -> None:
        other = self.other
        if isinstance(other, str):
            self.lacking[PEER] = other
            return
        self.told(f"exporting {other.name}")
        model, batch = other.model.eval(), other.examples(self.wish.batch_size)
        path = export_onnx(model, batch, self.scratch / "against.onnx")
        self._add(PEER, other.description, path, fold(model, batch))

    def _quantize(self, folded: nn.Module) -> dict[str, Accuracy]:
        """The accuracies before and after, if there are data to quantise with."""
        path, before = self.wish.output / "model.int8.onnx", self.paths[FOLDED]
        if self.wish.int8 is False or self.given.data is None:
            path.unlink(missing_ok=True)  # of another network, perhaps
        if self.given.data is None:
            self.lacking[INT8] = self.given.lacking
            return {}
        prepared = Prepared(self.given.data, self.given.normalize)
        if self.wish.int8 is False:
            self.lacking[INT8] = "it was not asked for"
        else:
            self.told("quantising")
            quantize_int8(before, path, prepared.calibration())
            self._add(INT8, "INT8", path, folded)
        self.told("validating")
        kinds = [kind for kind in (FOLDED, INT8) if kind in self.paths]
        return accuracies({kind: self.paths[kind] for kind in kinds}, prepared)

    def _difference(self, model: nn.Module, path: Path) -> tuple[float, float]:
        """The largest difference between a file and its model, and the largest output."""
        with torch.no_grad():
            expected = model(self.batch)
        found = torch.from_numpy(output(session(path), self.batch.numpy()))
        return float((found - expected).abs().max()), float(expected.abs().max())

    def _figures(self) -> dict[str, Figures]:
        times = {}
        for threads in dict.fromkeys((1, cores())):
            self.told(f"timing on {threads} thread{'s' * (threads > 1)}")
            times[threads] = latencies(
                self.paths, self.batch.numpy(), threads=threads, seconds=self.wish.seconds
            )
        figures = {}
        for kind in self.paths:
            self.told(f"counting the memory of {self.names[kind]}")
            figures[kind] = self._figures_of(kind, {n: of[kind] for n, of in times.items()})
        return figures

    def _figures_of(self, kind: str, latency: Mapping[int, float]) -> Figures:
        path = self.paths[kind]
        graph, _ = read_onnx(path, self.wish.batch_size)
        parts = (path, path.with_name(path.name + ".data"))
        figures = Figures(
            self.names[kind],
            self.parameters[kind],
            graph.kinds,
            sum(part.stat().st_size for part in parts if part.exists()),
            latency,
        )
        if kind == INT8:
            return figures
        return self._with_counts(figures, graph, path)

    def _with_counts(self, figures: Figures, graph: OnnxGraph, path: Path) -> Figures:
        """The figures with what follows from the shapes in a graph, as far as they are known."""
        try:
            figures = replace(figures, multiply_adds=graph.multiply_adds)
        except UnknownShapeError as error:
            figures = replace(figures, unknown={"multiply_adds": error.node})
        try:
            schedule = best_schedule(graph)
        except UnknownShapeError as error:
            return replace(figures, unknown={**figures.unknown, "peak_memory": error.node})
        return replace(
            figures,
            peak_memory=schedule.peak,
            measured_peak_memory=measured_peak(path, schedule, self.batch.numpy()),
            best_order=schedule.optimal,
        )


def _demand_data(given: Candidate, wish: Wish) -> None:
    if wish.int8 and given.data is None:
        raise ValueError(
            f"INT8 was asked for, which is calibrated with data, but {given.lacking}. Leave --int8 "
            "out to do without."
        )
