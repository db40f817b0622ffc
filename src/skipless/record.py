"""What a run leaves on disk: its setup in `run.json` and its measurements in `metrics.jsonl`.

Each line of `metrics.jsonl` is an object with a `kind` ("train", "validation", "average"), the
`step` after which it was measured, and numbers by name. Those of the kind "layers" are measured in
their step, and named such as "q/stages.0.0.branch.conv1". A run that diverges ends in a line of the
kind "diverged": the step, its learning rate, and the last finite loss since the line before.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .files import open_unlinked, read_document, read_rows, write_atomically

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

RUN = "run.json"
METRICS = "metrics.jsonl"
RUN_LOCK = "run.lock"  # held by the process that trains there
LOCK = "lock"  # in the folders of runs that many processes share, such as those of an item


@dataclass(frozen=True)
class Record:
    """A run, read back from its folder."""

    folder: Path
    run: dict[str, Json]
    metrics: tuple[dict[str, Json], ...]

    @classmethod
    def read(cls, folder: Path) -> Record:
        """The record in `folder`, without a last line that is cut off."""
        path = folder / RUN
        if not path.is_file():
            raise FileNotFoundError(
                f"No run in {folder}: {RUN} is missing. Name the folder given as --output."
            )
        try:
            run = read_document(path)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}. Restore it, or train again.") from None
        if not isinstance(run, dict):
            raise ValueError(f"{path} is damaged: it is not an object. Restore it, or train again.")
        return cls(folder, run, tuple(_rows(folder / METRICS)))

    def series(self, kind: str, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of `name`, from the rows of a kind that have it."""
        rows = [r for r in self.metrics if r["kind"] == kind and r.get(name) is not None]
        return [int(number(row, "step")) for row in rows], [number(row, name) for row in rows]


def number(row: Mapping[str, Json], name: str) -> float:
    """A number of a row, or NaN if it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


class MetricsFile:
    """The `metrics.jsonl` of a run, written one line at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS

    def append(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        """Write one line, unbuffered."""
        with open(self.path, "a", encoding="utf-8", opener=open_unlinked) as file:
            file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")

    def flush(self) -> None:
        """Make all lines as durable as a checkpoint."""
        if self.path.exists():
            with open(self.path, "a", encoding="utf-8", opener=open_unlinked) as file:
                os.fsync(file.fileno())

    def rewind(self, step: int) -> list[dict[str, Json]]:
        """Drop all lines after `step`, from which a run resumes; returns the others."""
        rows = [row for row in _rows(self.path) if number(row, "step") <= step]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        return rows


def require_run_folder(folder: Path) -> None:
    """Raise if the folder of a run is gone."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} was deleted during its run, and with it all that was saved. Start the run "
            "again."
        )


def write_run(folder: Path, run: Mapping[str, Json]) -> None:
    """Write `run.json` to `folder`."""
    write_atomically(folder / RUN, json.dumps(run, indent=2) + "\n")


def _rows(path: Path) -> list[dict[str, Json]]:
    """The lines of a metrics file, if there is one, but for a last one that is cut off."""
    return list(read_rows(path, maybe_cut=True)) if path.exists() else []
