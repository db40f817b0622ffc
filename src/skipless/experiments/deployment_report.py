"""A deployment in sections of a report, and its files: report.json, report.md and report.html."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from skipless.record import write_atomically
from skipless.report.markdown import escaped, markdown
from skipless.report.sections import Section, Verdict
from skipless.report.sections_page import write_sections_page
from skipless.report.text import text

from .deployment import FOLDED, INT8, ORIGINAL, PEER, Deployment, Figures

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
    write_atomically(output / "report.md", f"# {escaped(title)}\n\n{markdown([section])}")
    page = write_sections_page(output / "report.html", title, "", [section])
    return f"{text(section)}\n\nEverything is in {page.parent}."


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
