"""skipless and its peers side by side, in one run: solving, steps of K-FAC, and lines of code.

    make bench-peers

Each script in `benchmarks/peers` runs in a process of its own, on one core; what is compared takes
turns inside of one process, so that whatever else the machine does slows both sides down alike.
Prints the tables; with a file as argument, also writes them there, between two marks.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import skipless

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "peers"
START, END = "<!-- peers: start -->", "<!-- peers: end -->"
PERIODS = ((1, 50), (10, 200))
PACKAGES = ("dks", "kfac-jax", "singd", "jax", "optax", "torch", "numpy", "scipy")
LIMIT = 1200  # seconds that a script may take

Times = Mapping[str, Mapping[str, float]]  # seconds by optimiser and kind of step


class PeerError(RuntimeError):
    """A peer does not run."""


def run_script(script: str) -> Any:
    """What a script prints, as a value."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, str(SCRIPTS / script)]
    print(f"{script} ...", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{script} took more than {LIMIT} seconds") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PeerError(f"{script} does not run: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def lines_of_code(source: str) -> int:
    """Lines that are neither blank, nor comments, nor part of a docstring."""
    tree = ast.parse(source)
    texts = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return sum(
        bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(source.splitlines(), 1)
        if not any(number in text for text in texts)
    )


def period(kinds: Mapping[str, float], every: int, inverted: int) -> float:
    """Mean seconds of a step, with factors measured and inverted once in so many steps."""
    plain, curvature = kinds["plain"], kinds["curvature"]
    inverse = kinds.get("inverse", curvature)  # singd has none
    return plain + (curvature - plain) / every + (inverse - curvature) / inverted


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first have their numbers to the right."""
    rules = [":---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rules, *rows))


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:,.0f} ms"


def solving() -> str:
    head = ["method, φ, layers", "dks", "skipless", "ratio", "first solve"]
    rows = []
    for row in run_script("solving.py"):
        theirs, ours = row["seconds"]
        rows.append(
            [
                f"{row['method']}, {row['activation']}, {row['depth']}",
                milliseconds(theirs),
                milliseconds(ours),
                f"{theirs / ours:,.0f}",
                milliseconds(row["first"]),
                *(f"{residual:.0e}" for residual in row["residuals"]),
            ]
        )
    return table([*head, "residual of dks", "of skipless"], rows)


def over_sgd(name: str, times: Times) -> list[str]:
    """For each pair of periods, the seconds of a step over those of SGD in the same process."""
    sgd = times["sgd"]["step"]
    return [f"{period(times[name], *periods) / sgd:.2f}" for periods in PERIODS]


def steps() -> str:
    """A row for each optimiser and network; one that does not run says so in its place."""
    rows = []
    for script, sgd, names in (
        ("torch_steps.py", "torch's SGD", ("skipless", "singd")),
        ("jax_steps.py", "Optax's SGD", ("kfac-jax",)),
    ):
        try:
            printed = run_script(script)
        except PeerError as error:
            rows.append([", ".join(names), str(error), *[""] * (len(PERIODS) + 1)])
            continue
        for network, times in printed.items():
            for name in names:
                spent = milliseconds(times["sgd"]["step"])
                rows.append([f"{name}, over {sgd}", network, spent, *over_sgd(name, times)])
    rows.sort(key=lambda row: row[1])
    return table(["K-FAC", "network", "SGD", *(str(periods) for periods in PERIODS)], rows)


def conversion() -> str:
    printed = run_script("conversion.py")
    counts = [
        lines_of_code((SCRIPTS / f"with_{name}.py").read_text(encoding="utf-8"))
        for name in ("dks", "skipless")
    ]
    slopes, scales, qs = printed["slope"], printed["scale"], printed["q"]
    return table(
        ["", "dks", "skipless", "difference, or ratio"],
        [
            ["lines of code", *map(str, counts), f"{counts[0] / counts[1]:.1f}"],
            ["negative slope", *(f"{x:.8f}" for x in slopes), f"{abs(slopes[0] - slopes[1]):.0e}"],
            ["output scale", *(f"{x:.8f}" for x in scales), f"{abs(scales[0] - scales[1]):.0e}"],
            ["outputs, with the same weights", "", "", f"{printed['outputs']:.0e}"],
            ["q value after a layer that widens 16 to 64", *(f"{q:.2f}" for q in qs), ""],
        ],
    )


def machine() -> str:
    """When and where, and what was installed."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    packages = [f"{name} {metadata.version(name)}" for name in PACKAGES]
    return (
        f"{date.today().isoformat()}; {model}, {os.cpu_count()} cores, of which one was used; "
        f"Python {platform.python_version()}, skipless {skipless.__version__}, "
        f"{', '.join(packages)}."
    )


def section() -> str:
    """Everything that goes between the marks."""
    parts = [machine() + "\n"]
    for title, measured in (
        ("Solving", solving),
        ("Steps of K-FAC over steps of SGD", steps),
        ("Lines of code for the same conversion", conversion),
    ):
        try:
            text = measured()
        except PeerError as error:
            text = f"{error}.\n"
        parts.append(f"### {title}\n\n{text}")
    return "\n".join(parts)


def between_marks(page: str, text: str) -> str:
    """The page with another text between its marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"The page lacks the marks {START} and {END}. Put them back.")
    return f"{before}{START}\n{text}{END}{after}"


def main(arguments: Sequence[str]) -> None:
    pages = [Path(argument) for argument in arguments]
    for page in pages:  # before the minutes that follow
        between_marks(page.read_text(encoding="utf-8"), "")
    if hasattr(os, "sched_setaffinity"):  # the scripts inherit it
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    text = section()
    print(text)
    for page in pages:
        page.write_text(between_marks(page.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
