"""Checkpoints that are there as a whole or not at all.

A run's folder has `checkpoints/step-00000500/` and so on, each with

- `model.safetensors`: weights and buffers of the model,
- `average.safetensors`: those of its moving average, if there is one,
- `state.pt`: optimiser, position in schedule and data, random states,
- `manifest.json`: the SHA-256 of each of them, by which damage is seen.

The states of all generators of random numbers that a step may use.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from skipless.record import RUN

FOLDER = "checkpoints"
MODEL, AVERAGE, STATE, MANIFEST = (
    "model.safetensors",
    "average.safetensors",
    "state.pt",
    "manifest.json",
)
_BESIDE = (RUN, STATE, MANIFEST)  # files of a run or of a checkpoint that hold no weights
_DO = (
    f"Name the folder of a run of skipless train, one of its {FOLDER}, or the weights in one "
    f"({MODEL}, {AVERAGE})."
)


class CheckpointError(OSError):
    """A checkpoint could not be written."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was passed over because it is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on after `step`."""

    step: int
    weights: Mapping[str, Tensor]
    state: Mapping[str, Any]
    average: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class TrainedWeights:
    """The weights of a network as they were after `step`, and the checksum of their file."""

    step: int
    tensors: Mapping[str, Tensor]
    sha256: str


class Checkpoints:
    """The checkpoints of a run, of which the newest `keep` are kept."""

    def __init__(self, run: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"{keep} checkpoints were to be kept; keep 1 or more.")
        self.folder = run / FOLDER
        self.keep = keep
        self._damaged: set[Path] = set()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove those too old to keep."""
        path = self.folder / f"step-{checkpoint.step:08d}"
        partial = path.with_name(path.name + ".partial")
        for cut_off in self.folder.glob("*.partial"):  # by a power cut, or SIGKILL
            shutil.rmtree(cut_off, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            _write_files(partial, checkpoint)
            shutil.rmtree(path, ignore_errors=True)  # one that was found damaged
            partial.rename(path)
            _flush(self.folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(self._unwritten(checkpoint.step, error)) from error
        self._damaged.discard(path)
        self._remove_old(checkpoint.step)
        return path

    def _remove_old(self, step: int) -> None:
        """Remove what is too old to keep, what is damaged, and a future that was not taken."""
        past = [path for path in self.paths() if _step(path) <= step]
        for path in _folders(self.folder):
            if path not in past[-self.keep :]:
                shutil.rmtree(path, ignore_errors=True)

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None; damaged ones are warned of."""
        for path in reversed(self.paths()):
            try:
                return _read(path)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                self._damaged.add(path)
                warnings.warn(
                    f"The checkpoint {path} is damaged ({error}). Going back to the one before: "
                    f"{self.describe_newest()}.",
                    DamagedCheckpointWarning,
                    stacklevel=2,
                )
        return None

    def paths(self) -> list[Path]:
        """Folders of all checkpoints not known to be damaged, the oldest first."""
        return [path for path in _folders(self.folder) if path not in self._damaged]

    def describe_newest(self) -> str:
        """The newest checkpoint, in words."""
        paths = self.paths()
        return str(paths[-1]) if paths else "none"

    def _unwritten(self, step: int, error: OSError) -> str:
        return (
            f"The checkpoint of step {step} could not be written to {self.folder}: "
            f"{error.strerror or error}. The last one that is whole: {self.describe_newest()}. "
            "Make room, then go on with --resume."
        )


def expand_home(named: str | Path) -> Path:
    """A path with the home folder in place of ~, if there is one."""
    try:
        return Path(named).expanduser()
    except RuntimeError:  # nobody here has that name
        return Path(named)


def find_checkpoint(named: str | Path) -> tuple[Path, Path]:
    """The folder of a run, and what is `named` of it: a checkpoint, or a file of weights in one.

    A run's folder, and that of its checkpoints, stand for the newest checkpoint; another file of a
    run or of a checkpoint stands for its folder.
    """
    if not str(named).strip():
        raise ValueError(f"A trained network was to be named, but {str(named)!r} was given. {_DO}")
    path = expand_home(named).resolve()
    asked = f"A trained network was looked for in {path}"
    if not path.exists():
        raise FileNotFoundError(f"{asked}, which is not there. {_DO}")
    if path.is_file() and path.name in _BESIDE:
        path = path.parent
    elif path.is_file() and path.name not in (MODEL, AVERAGE):
        raise ValueError(f"{asked}, which is none. {_DO}")
    folder = path.parent if path.is_file() else path
    if re.fullmatch(r"step-\d+", folder.name):
        run = folder.parents[1]
    else:
        run = folder.parent if folder.name == FOLDER else folder
        if not (paths := Checkpoints(run).paths()):
            raise FileNotFoundError(f"{asked}: it has no checkpoint. {_DO}")
        path = paths[-1]
    if not (run / RUN).is_file():
        raise FileNotFoundError(
            f"{asked}, but there is no {RUN} in {run}, which tells how it is made. {_DO}"
        )
    return run, path


def load_weights(path: Path) -> TrainedWeights:
    """What a checkpoint, or a file of weights in one, holds: of a checkpoint the moving average.

    Where there is no average, it is the network itself.
    """
    is_file = path.name in (MODEL, AVERAGE)
    folder = path.parent if is_file else path
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        name = path.name if is_file else AVERAGE if AVERAGE in sums else MODEL
        content = (folder / name).read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != sums[name]:
            raise ValueError(f"{name} is not what was written")
        return TrainedWeights(_step(folder), safetensors.torch.load(content), found)
    except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"The checkpoint {folder} is damaged ({error}). Restore it, or name another one."
        ) from None


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    # Serialised in memory first: then the disk is the only thing that can fail, with an OSError.
    state = {**checkpoint.state, "step": checkpoint.step}
    files = {MODEL: _tensors(checkpoint.weights), STATE: _pickled(state)}
    if checkpoint.average is not None:
        files[AVERAGE] = _tensors(checkpoint.average)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[MANIFEST] = json.dumps({"sha256": sums}, indent=2).encode()
    for name, content in files.items():
        with (folder / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    _flush(folder)


def _tensors(weights: Mapping[str, Tensor]) -> bytes:
    # Cloned, because safetensors wants each tensor contiguous and none to share its memory.
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    return safetensors.torch.save(plain)


def _pickled(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _read(path: Path) -> Checkpoint:
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    files = {name: (path / name).read_bytes() for name in manifest["sha256"]}
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != manifest["sha256"][name]:
            raise ValueError(f"{name} is not what was written")
    state = torch.load(io.BytesIO(files[STATE]), map_location="cpu", weights_only=True)
    if state["step"] != _step(path):
        raise ValueError(f"it is that of step {state['step']}")
    average = files.get(AVERAGE)
    return Checkpoint(
        state["step"],
        safetensors.torch.load(files[MODEL]),
        state,
        None if average is None else safetensors.torch.load(average),
    )


def _folders(top: Path) -> list[Path]:
    found = top.iterdir() if top.is_dir() else ()
    return sorted((path for path in found if re.fullmatch(r"step-\d+", path.name)), key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _flush(folder: Path) -> None:
    """Make the names in `folder` as durable as the files, where a system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of torch, numpy and Python in plain types, for `restore_random_state`."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the user's code may use it
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put all generators into the state that `random_state` found."""
    torch.set_rng_state(state["torch"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(state["python"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
