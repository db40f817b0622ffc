"""A network becomes an ONNX file, and is measured: what `skipless deploy` does.

The numbers are those of files, for these are what runs on a device: of the network as it was, of
the folded one, of that in 8-bit integers, and of the folded one that it is compared with.
Parameters are counted in the networks.

How often files are right on a data set, and how often they agree with each other.

A deployment in sections of a report, and its files: report.json, report.md and report.html.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from skipless.onnx.export import demand_onnx, export_onnx, write_onnx
from skipless.onnx.graph import OnnxGraph, UnknownShapeError, best_schedule, read_onnx
from skipless.onnx.int8 import quantize_int8
from skipless.onnx.run import latencies, measured_peak, output, session
from skipless.record import write_atomically
from skipless.report.page import write_sections_page
from skipless.report.sections import Section, Verdict, escape_markdown, markdown, section_text
from skipless.torch.fold import fold
from skipless.train.data import Data, Split
from skipless.train.process import cores

from .candidates import Candidate, Shape, peer

_CALIBRATION, _MOST = 256, 5000  # samples
_BATCH = 32


@dataclass(frozen=True)
class Accuracy:
    """Of a file on `samples` validation samples; `agreement` is with the first file."""

    top1: float
    agreement: float
    samples: int


@dataclass(frozen=True)
class Prepared:
    """Data as the network reads them."""

    data: Data
    normalize: Callable[[Tensor], Tensor] | None

    def calibration(self) -> Iterator[np.ndarray]:
        """Batches of training samples, not augmented."""
        return (images for images, _ in self._batches(self.data.train, _CALIBRATION))

    def validation(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of validation samples with their labels; of many, some drawn once for all."""
        return self._batches(self.data.validation, _MOST)

    def _batches(self, split: Split, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(split), generator=generator)[:most].tolist()
        for start in range(0, len(chosen), _BATCH):
            images, labels = split.load(chosen[start : start + _BATCH], None)
            images = images if self.normalize is None else self.normalize(images)
            yield images.numpy(), labels.numpy()


def accuracies(paths: Mapping[str, Path], prepared: Prepared) -> dict[str, Accuracy]:
    """The accuracy of each file on the same samples."""
    sessions = [session(path) for path in paths.values()]
    right, same, samples = [0] * len(sessions), [0] * len(sessions), 0
    for images, labels in prepared.validation():
        answers = [output(running, images).argmax(1) for running in sessions]
        samples += len(labels)
        for number, answer in enumerate(answers):
            right[number] += int((answer == labels).sum())
            same[number] += int((answer == answers[0]).sum())
    return {
        name: Accuracy(r / samples, a / samples, samples)
        for name, r, a in zip(paths, right, same, strict=True)
    }


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


_RULES = (
    "Peak activation memory is that of the order of operations that needs the least. Held are what "
    "an operation reads and writes and what waits for others; reshapes hold nothing, and "
    "elementwise operations, but for Gelu, write over an input that nothing else reads. Weights, "
    "and what kernels need for themselves, do not count. It is computed from the graph of the "
    "file, and counted while onnxruntime runs the file operation by operation in that order."
)
_AGREES = 1e-4  # outputs, relative to the largest
_CONFIRMS = 0.01  # memory, relative
_KEEPS = 0.01  # top-1 accuracy of INT8
Cell = Callable[[Deployment, str], str]
_LACKING = {
    ORIGINAL: "The network as it is cannot be exported",
    PEER: "Nothing is compared with",
    INT8: "INT8 is left out",
}


def written(given: Deployment, output: Path) -> str:
    """The report as text, once it is in `output` in all its forms."""
    section = deployment_section(given)
    title = f"Deployed: {given.description}"
    write_atomically(output / "report.json", json.dumps(given.as_mapping(), indent=2) + "\n")
    write_atomically(output / "report.md", f"# {escape_markdown(title)}\n\n{markdown([section])}")
    page = write_sections_page(output / "report.html", title, "", [section])
    return f"{section_text(section)}\n\nEverything is in {page.parent}."


def deployment_section(given: Deployment) -> Section:
    """Every number side by side, and what follows from them."""
    kinds = [kind for kind in (ORIGINAL, FOLDED, INT8, PEER) if kind in given.figures]
    left_out = [f"{_LACKING[kind]}: {why.rstrip('.')}." for kind, why in given.lacking.items()]
    return Section(
        "deployment",
        given.description,
        " ".join([*left_out, *_not_folded(given.remaining), *_not_known(given)]),
        ["", *(given.figures[kind].name for kind in kinds)],
        [[label, *(cell(given, kind) for kind in kinds)] for label, cell in _rows(given)],
        list(_verdicts(given)),
        facts={
            "sample": "x".join(map(str, given.shape)),
            "inputs": given.preparation,
            "batch": str(given.batch_size),
            "versions": ", ".join(f"{n} {metadata.version(n)}" for n in ("torch", "onnxruntime")),
            "memory": _RULES,
        },
    )


def _rows(given: Deployment) -> Iterator[tuple[str, Cell]]:
    """Labels, and what a file has there; a dash where it has nothing."""
    of = lambda number: lambda d, kind: number(d.figures[kind])
    yield "parameters", of(lambda f: f"{f.parameters:,}")
    yield "multiply-adds", of(lambda f: _unknown(f, "multiply_adds") or _count(f.multiply_adds))
    yield (
        "peak activation memory",
        of(lambda f: _unknown(f, "peak_memory") or _megabytes(f.peak_memory)),
    )
    yield "  measured", of(lambda f: _megabytes(f.measured_peak_memory))
    for threads in given.figures[FOLDED].latency:
        label = f"latency, {threads} thread{'s' * (threads > 1)}"
        yield label, of(lambda f, n=threads: f"{1e3 * f.latency[n]:.3g} ms")
        yield "  times the folded one's", lambda d, kind, n=threads: _ratio(d, kind, n)
    yield "size on disk", of(lambda f: _megabytes(f.disk))
    if given.accuracy:
        samples = given.accuracy[FOLDED].samples
        yield f"top-1, {samples} samples", lambda d, k: _share(d, k, "top1")
        yield "  agrees with folded", lambda d, k: _share(d, k, "agreement")
    yield "operators", of(lambda f: str(sum(f.operators.values())))
    operators = dict.fromkeys(k for f in given.figures.values() for k in f.operators)
    for operator in operators:
        yield f"  {operator}", of(lambda f, k=operator: str(f.operators.get(k, "-")))


def _verdicts(given: Deployment) -> Iterator[Verdict]:
    folded, other = given.figures[FOLDED], given.figures.get(PEER)
    relative = given.difference / given.largest_output if given.largest_output else 0.0
    yield Verdict(
        "The file gives what the network gives, to within 1e-4 of the largest output.",
        relative <= _AGREES,
        f"The largest difference is {given.difference:.2g}, the largest output "
        f"{given.largest_output:.3g}.",
    )
    yield Verdict(
        "Constants of activations, and BatchNorms, are folded into layers.",
        not given.remaining,
        f"What is left: {', '.join(folded.operators)}.",
    )
    yield _memory_verdict(given)
    if other is not None and folded.peak_memory is not None and other.peak_memory:
        saved = 1.0 - folded.peak_memory / other.peak_memory
        yield Verdict(
            f"It needs less activation memory than {other.name}.",
            saved > 0.0,
            f"{_megabytes(folded.peak_memory)} against {_megabytes(other.peak_memory)}: "
            f"{abs(saved):.1%} {'less' if saved >= 0.0 else 'more'}."
            if saved
            else "as much.",
        )
    if INT8 in given.accuracy:
        before, after = given.accuracy[FOLDED], given.accuracy[INT8]
        yield Verdict(
            "INT8 loses no more than one point of top-1 accuracy.",
            after.top1 >= before.top1 - _KEEPS,
            f"{before.top1:.2%} before, {after.top1:.2%} after; {after.agreement:.2%} of the "
            "answers are the same.",
        )
    else:
        yield Verdict("INT8 loses no more than one point of top-1 accuracy.", None, "")


def _memory_verdict(given: Deployment) -> Verdict:
    claim = "The computed peak of activation memory is what a run takes, to within 1 %."
    unknown = [f.name for f in given.figures.values() if "peak_memory" in f.unknown]
    if unknown:
        return Verdict(claim, None, f"It is not known: {', '.join(unknown)}.")
    counted = [figures for figures in given.figures.values() if figures.peak_memory is not None]
    unsearched = [figures.name for figures in counted if not figures.best_order]
    return Verdict(
        claim,
        all(_confirmed(figures) for figures in counted),
        f"The order is the file's own; there are too many to search: {', '.join(unsearched)}."
        if unsearched
        else "",
    )


def _not_known(given: Deployment) -> list[str]:
    if not any(figures.unknown for figures in given.figures.values()):
        return []
    return [
        "What is unknown could not be computed: at the operation that is named, shapes depend on "
        "more than the shape of the input."
    ]


def _not_folded(remaining: tuple[str, ...]) -> list[str]:
    more = f" And {len(remaining) - 1} more like it." if len(remaining) > 1 else ""
    return [f"Not folded: {remaining[0]}.{more}"] if remaining else []


def _confirmed(figures: Figures) -> bool:
    computed, measured = figures.peak_memory, figures.measured_peak_memory
    if computed is None or measured is None:
        return False
    return abs(measured - computed) <= _CONFIRMS * computed


def _ratio(given: Deployment, kind: str, threads: int) -> str:
    return f"{given.figures[kind].latency[threads] / given.figures[FOLDED].latency[threads]:.2f}"


def _share(given: Deployment, kind: str, name: str) -> str:
    return f"{getattr(given.accuracy[kind], name):.2%}" if kind in given.accuracy else "-"


def _unknown(figures: Figures, name: str) -> str | None:
    return f"unknown: {figures.unknown[name]}" if name in figures.unknown else None


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _megabytes(size: int | None) -> str:
    """Bytes in MB of 1,000,000, as files and memories are sold; small ones in kB."""
    if size is None:
        return "-"
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
