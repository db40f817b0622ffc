"""`skipless deploy`: a network becomes ONNX files, which are measured and compared.

The numbers are those of files, because files are what runs on a device: the network as it is, the
folded one, the folded one in 8-bit integers, and a folded baseline. Parameters are counted in the
networks. The report is written as report.json, report.md and report.html.
"""

import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from skipless.files import write_atomically
from skipless.onnx import export, quantize, read
from skipless.onnx.graph import UnknownShapeError, best_schedule
from skipless.onnx.run import measure_latencies, measure_peak_memory, open_session, run_session
from skipless.onnx.writer import require_onnx, write
from skipless.report.page import write_sections_page
from skipless.report.sections import Section, Verdict, escape_markdown, markdown, section_text, word
from skipless.torch.fold import fold
from skipless.train.batches import Batches
from skipless.train.data import Split, Subset
from skipless.train.process import cores

from .candidates import Candidate, Missing, Shape, baseline

ORIGINAL, FOLDED, INT8, BASELINE = "original", "folded", "int8", "against"
PAGE = "report.html"
_CALIBRATION, _MOST = 256, 5000  # samples
_BATCH = 32
_AGREES = 1e-4  # outputs, relative to the largest
_CONFIRMS = 0.01  # memory, relative
_KEEPS = 0.01  # top-1 accuracy of INT8
_MEMORY_RULES = (
    "Peak activation memory is that of the best order of operations. It counts the inputs and "
    "outputs of the current operation and all activations that a later one needs. Reshapes take no "
    "memory, and elementwise operations, except Gelu, overwrite an input that nothing else reads. "
    "Weights and scratch memory of kernels are not counted. The peak is computed from the file's "
    "graph, and measured while onnxruntime runs the file operation by operation in that order."
)
_LEFT_OUT = {
    ORIGINAL: "The network as it is cannot be exported",
    BASELINE: "There is no baseline",
    INT8: "INT8 is left out",
}


@dataclass(frozen=True)
class DeployRequest:
    """What to write, and how to measure it; `int8` None quantises if there is data."""

    output: Path
    batch_size: int = 1
    int8: bool | None = None
    against: str | None = None
    seconds: float = 10.0  # of timing, per number of threads


@dataclass(frozen=True)
class FileMetrics:
    """The costs of one file: bytes, and seconds by number of threads.

    A quantised file has no peak memories, because its graph is written for float32. `unknown` names
    the operation whose shapes are not known, for anything else that is None.
    """

    name: str
    parameters: int
    operators: Mapping[str, int]
    disk: int
    latency: Mapping[int, float]
    multiply_adds: int | None = None
    peak_memory: int | None = None  # computed from the graph
    measured_peak_memory: int | None = None
    best_order: bool = False
    joins: int = 0  # of activations: sums and concatenations, as at the end of a shortcut
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a file on `samples` validation samples, and its agreement with the first."""

    top1: float
    agreement: float
    samples: int


@dataclass(frozen=True)
class Deployment:
    """All that a report says about a network on its way to a device."""

    description: str
    shape: Shape
    preparation: str  # of the inputs
    batch_size: int
    figures: Mapping[str, FileMetrics]
    remaining: tuple[str, ...]  # what could not be folded
    difference: float  # largest, between the outputs of the file and of the model
    largest_output: float
    accuracy: Mapping[str, Accuracy]
    missing: Mapping[str, Missing]


def load_batches(
    split: Split, normalize: Callable[[Tensor], Tensor] | None, most: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of at most `most` samples, always the same, not augmented, with their labels."""
    generator = torch.Generator().manual_seed(0)
    chosen = Subset(split, torch.randperm(len(split), generator=generator)[:most])
    for images, labels in Batches(chosen, _BATCH, normalize=normalize).in_order():
        yield images.numpy(), labels.numpy()


def measure_accuracy(
    paths: Mapping[str, Path], batches: Iterable[tuple[np.ndarray, np.ndarray]]
) -> dict[str, Accuracy]:
    """The accuracy of each file on the same samples."""
    sessions = [open_session(path) for path in paths.values()]
    right, same = [], []  # by batch: for each file, which samples
    for images, labels in batches:
        answers = np.array([run_session(session, images).argmax(1) for session in sessions])
        right.append(answers == labels)
        same.append(answers == answers[0])
    top1, agreement = (np.hstack(found) for found in (right, same))
    return {
        name: Accuracy(float(r.mean()), float(a.mean()), r.size)
        for name, r, a in zip(paths, top1, agreement, strict=True)
    }


def deploy(
    candidate: Candidate, request: DeployRequest, on_step: Callable[[str], object]
) -> Deployment:
    """Writes the files of `candidate` to a folder, and measures them; `on_step` hears of all."""
    require_onnx()
    if request.int8 and isinstance(candidate.data, Missing):
        raise ValueError(
            f"--int8 needs data for calibration, but there is none: {candidate.data}. Drop --int8 "
            "to do without."
        )
    # On the disk of the output, which an error names.
    with tempfile.TemporaryDirectory(dir=request.output) as scratch:
        try:
            return _Files(candidate, request, Path(scratch), on_step).deploy()
        except Exception as error:
            if type(error).__module__.startswith("onnx"):  # their errors have no other base
                reason = " ".join(str(error).split())
                raise OSError(f"onnxruntime failed in {request.output}: {reason}") from error
            raise


@dataclass
class _Files:
    """The files of one deployment, as they are written."""

    candidate: Candidate
    request: DeployRequest
    scratch: Path
    on_step: Callable[[str], object]

    def __post_init__(self) -> None:
        self.batch = self.candidate.examples(self.request.batch_size)
        self.baseline = baseline(self.candidate, self.request.against)
        self.paths: dict[str, Path] = {}
        self.models: dict[str, tuple[str, int]] = {}  # names and numbers of parameters
        self.missing: dict[str, Missing] = {}

    def deploy(self) -> Deployment:
        model = self.candidate.model.eval()
        folded = fold(model, self.batch)
        self._write_original(model)
        self.on_step("exporting the folded network")
        path = export(model, self.batch, self.request.output / "model.onnx")
        self._add(FOLDED, "folded", path, folded)
        with torch.no_grad():
            expected = model(self.batch).numpy()
        found = run_session(open_session(path), self.batch.numpy())
        accuracy = self._quantize(folded)
        self._write_baseline()
        figures = self._measure_files()
        # The exporter folds some that `fold` leaves, such as those behind computed weights.
        norms = "BatchNormalization" in figures[FOLDED].operators
        remaining = [r for r in folded.meta["remaining"] if norms or "stays a BatchNorm" not in r]
        own = self.candidate
        difference, largest = float(np.abs(found - expected).max()), float(np.abs(expected).max())
        inputs = (own.shape, own.preparation, self.request.batch_size)
        results = (figures, tuple(remaining), difference, largest, accuracy, self.missing)
        return Deployment(own.description, *inputs, *results)

    def _add(self, kind: str, name: str, path: Path, model: nn.Module) -> None:
        self.paths[kind] = path
        self.models[kind] = name, sum(p.numel() for p in model.parameters())

    def _write_original(self, model: nn.Module) -> None:
        self.on_step("exporting the network as it is")
        path = self.scratch / "original.onnx"
        try:
            write(copy.deepcopy(model), torch.cat([self.batch, self.batch]), path)
        except RuntimeError as error:  # the folded one may export nevertheless
            self.missing[ORIGINAL] = Missing(str(error))
        else:
            self._add(ORIGINAL, "as it is", path, model)

    def _write_baseline(self) -> None:
        other = self.baseline
        if isinstance(other, Missing):
            self.missing[BASELINE] = other
            return
        self.on_step(f"exporting {other.name}")
        model, batch = other.model.eval(), other.examples(self.request.batch_size)
        path = export(model, batch, self.scratch / "against.onnx")
        self._add(BASELINE, other.description, path, fold(model, batch))

    def _quantize(self, folded: nn.Module) -> dict[str, Accuracy]:
        """The accuracies before and after, if there is data to quantise with."""
        path, before = self.request.output / "model.int8.onnx", self.paths[FOLDED]
        data, normalize = self.candidate.data, self.candidate.normalize
        path.unlink(missing_ok=True)  # perhaps of another network
        if isinstance(data, Missing):
            self.missing[INT8] = data
            return {}
        if self.request.int8 is False:
            self.missing[INT8] = Missing("--no-int8")
        else:
            self.on_step("quantising")
            samples = load_batches(data.train, normalize, _CALIBRATION)
            quantize(before, path, (images for images, _ in samples))
            self._add(INT8, "INT8", path, folded)
        self.on_step("validating")
        paths = {kind: self.paths[kind] for kind in (FOLDED, INT8) if kind in self.paths}
        return measure_accuracy(paths, load_batches(data.validation, normalize, _MOST))

    def _measure_files(self) -> dict[str, FileMetrics]:
        batch, seconds, times = self.batch.numpy(), self.request.seconds, {}
        for n in dict.fromkeys((1, cores())):
            self.on_step(f"timing on {n} thread{'s' * (n > 1)}")
            times[n] = measure_latencies(self.paths, batch, threads=n, seconds=seconds)
        latencies = {kind: {n: of[kind] for n, of in times.items()} for kind in self.paths}
        return {kind: self._measure_file(kind, own) for kind, own in latencies.items()}

    def _measure_file(self, kind: str, latency: Mapping[int, float]) -> FileMetrics:
        path, (name, parameters) = self.paths[kind], self.models[kind]
        self.on_step(f"counting the memory of {name}")
        graph = read(path, self.request.batch_size)
        parts = (path, path.with_name(path.name + ".data"))
        disk = sum(part.stat().st_size for part in parts if part.exists())
        own = (name, parameters, graph.kinds, disk, latency)
        if kind == INT8:
            return FileMetrics(*own)
        operations = peak = measured = None
        optimal, unknown = False, {}
        try:
            operations = graph.multiply_adds
        except UnknownShapeError as error:
            unknown["multiply_adds"] = error.node
        try:
            schedule = best_schedule(graph)
            peak, optimal = schedule.peak, schedule.optimal
            measured = measure_peak_memory(path, schedule, self.batch.numpy())
        except UnknownShapeError as error:
            unknown["peak_memory"] = error.node
        return FileMetrics(*own, operations, peak, measured, optimal, graph.joins, unknown)


def write_report(given: Deployment, output: Path) -> str:
    """Writes the report into the folder `output` in all its forms; returns it as text."""
    section = deployment_section(given)
    title = f"Deployed: {given.description}"
    printed = replace(
        section, title=title, facts={k: v for k, v in section.facts.items() if k != "memory"}
    )
    write_atomically(output / "report.json", json.dumps(asdict(given), indent=2) + "\n")
    write_atomically(output / "report.md", f"# {escape_markdown(title)}\n\n{markdown([section])}")
    write_sections_page(output / PAGE, title, [section], summary=False)
    return section_text(printed)


def deployment_section(given: Deployment) -> Section:
    """Every number side by side, with verdicts."""
    kinds = [kind for kind in (ORIGINAL, FOLDED, INT8, BASELINE) if kind in given.figures]
    notes = [f"{_LEFT_OUT[kind]}: {m.rstrip('.')}." for kind, m in given.missing.items()]
    if given.remaining:
        more = len(given.remaining) - 1
        rest = f" And {more} more like it." if more else ""
        notes.append(f"Not folded: {given.remaining[0]}.{rest}")
    if any(metrics.unknown for metrics in given.figures.values()):
        notes.append(
            "Unknown values could not be computed: at the named operation, shapes depend on more "
            "than the input's shape."
        )
    return Section(
        "deployment",
        "Costs of the files",
        " ".join(notes),
        ["", *(given.figures[kind].name for kind in kinds)],
        list(_rows(given, kinds)),
        list(_verdicts(given)),
        facts={
            "sample": "x".join(map(str, given.shape)),
            "inputs": given.preparation,
            "batch": str(given.batch_size),
            "versions": ", ".join(f"{n} {metadata.version(n)}" for n in ("torch", "onnxruntime")),
            "memory": _MEMORY_RULES,
        },
    )


def _rows(given: Deployment, kinds: Sequence[str]) -> Iterator[list[str]]:
    """A label, and the value of each file; a dash if it has none."""
    files = [given.figures[kind] for kind in kinds]
    yield ["parameters", *(f"{f.parameters:,}" for f in files)]
    yield ["multiply-adds", *(_known(f, "multiply_adds", "{:,}".format) for f in files)]
    yield ["peak activation memory", *(_known(f, "peak_memory", _megabytes) for f in files)]
    yield ["  measured", *(_known(f, "measured_peak_memory", _megabytes) for f in files)]
    for threads, folded in given.figures[FOLDED].latency.items():
        times = [f.latency[threads] for f in files]
        label = f"latency, {threads} thread{'s' * (threads > 1)}"
        yield [label, *(f"{1e3 * seconds:.3g} ms" for seconds in times)]
        yield ["  relative to folded", *(f"{seconds / folded:.2f}" for seconds in times)]
    yield ["size on disk", *(_megabytes(f.disk) for f in files)]
    if given.accuracy:
        found = [given.accuracy.get(kind) for kind in kinds]
        label = f"top-1, {given.accuracy[FOLDED].samples} samples"
        yield [label, *(f"{a.top1:.2%}" if a else "-" for a in found)]
        yield ["  agrees with folded", *(f"{a.agreement:.2%}" if a else "-" for a in found)]
    yield ["operators", *(str(sum(f.operators.values())) for f in files)]
    for operator in dict.fromkeys(k for f in given.figures.values() for k in f.operators):
        yield [f"  {operator}", *(str(f.operators.get(operator, "-")) for f in files)]


def _verdicts(given: Deployment) -> Iterator[Verdict]:
    """Verdicts on all claims that can be made of the network."""
    relative = given.difference / given.largest_output if given.largest_output else 0.0
    yield Verdict(
        "The file reproduces the network's outputs, to within 1e-4 of the largest.",
        word(relative <= _AGREES),
        f"The largest difference is {given.difference:.2g}, the largest output "
        f"{given.largest_output:.3g}.",
    )
    yield Verdict(
        "Constants of activations and BatchNorms are folded into layers.",
        word(not given.remaining),
        f"Operators left: {', '.join(given.figures[FOLDED].operators)}.",
    )
    yield from _memory_verdicts(given)
    if (after := given.accuracy.get(INT8)) is not None:
        before = given.accuracy[FOLDED].top1
        yield Verdict(
            "INT8 loses no more than one point of top-1 accuracy.",
            word(after.top1 >= before - _KEEPS),
            f"{before:.2%} before, {after.top1:.2%} after; {after.agreement:.2%} of the "
            "predictions are the same.",
        )


def _memory_verdicts(given: Deployment) -> Iterator[Verdict]:
    if counted := [f for f in given.figures.values() if f.peak_memory is not None]:
        pairs = ((f.peak_memory, f.measured_peak_memory) for f in counted)
        unsearched = ", ".join(f.name for f in counted if not f.best_order)
        evidence = f"Too many orders to search, so the file's own is used: {unsearched}."
        yield Verdict(
            "The computed peak of activation memory matches a measured run, to within 1 %.",
            word(all(c and m and abs(m - c) <= _CONFIRMS * c for c, m in pairs)),
            evidence if unsearched else "",
        )
    folded, other = given.figures[FOLDED], given.figures.get(BASELINE)
    if other is None or folded.joins >= other.joins:  # there were no shortcuts to save
        return
    if folded.peak_memory is not None and other.peak_memory:
        saved = 1.0 - folded.peak_memory / other.peak_memory
        more = f": {abs(saved):.1%} {'less' if saved > 0.0 else 'more'}" if saved else ""
        yield Verdict(
            f"It needs less activation memory than {other.name}.",
            word(saved > 0.0),
            f"{_megabytes(folded.peak_memory)} against {_megabytes(other.peak_memory)}{more}.",
        )


def _known(metrics: FileMetrics, name: str, form: Callable[[int], str]) -> str:
    if name in metrics.unknown:
        return f"unknown: {metrics.unknown[name]}"
    value = getattr(metrics, name)
    return "-" if value is None else form(value)


def _megabytes(size: int) -> str:
    """Bytes in MB of 1,000,000; small sizes in kB."""
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
