"""Checkpoints, written completely or not at all.

A run's folder has `checkpoints/step-00000500/` and so on, each with

- `model.safetensors`: weights and buffers of the model,
- `average.safetensors`: those of its moving average, if there is one,
- `state.pt`: optimiser, position in schedule and data, random states,
- `manifest.json`: the SHA-256 of each of them, which reveals damage, and the run's settings.
"""

import hashlib
import io
import json
import os
import random
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from skipless.files import open_regular, read_document, real_path, user_path, write_new
from skipless.record import RUN, Json, require_run_folder

FOLDER = "checkpoints"
MODEL, AVERAGE = "model.safetensors", "average.safetensors"
STATE, MANIFEST = "state.pt", "manifest.json"
_HINT = (
    f"Name the folder of a run of skipless train, one of its {FOLDER}, or the weights in one "
    f"({MODEL}, {AVERAGE})."
)


class CheckpointError(OSError):
    """A checkpoint could not be written."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint is skipped because its files do not match their checksums."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to resume after `step`."""

    step: int
    weights: Mapping[str, Tensor]
    state: Mapping[str, Any]
    average: Mapping[str, Tensor] | None = None
    settings: Mapping[str, Json] | None = None  # of the run, in the manifest


@dataclass(frozen=True)
class TrainedWeights:
    """The weights of a network after `step`, and the checksum of their file."""

    step: int
    tensors: Mapping[str, Tensor]
    sha256: str


class Checkpoints:
    """The newest `keep` checkpoints of a run."""

    def __init__(self, run: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}")
        self.folder = run / FOLDER
        self.keep = keep
        self._damaged: set[Path] = set()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, then remove old and damaged ones, and those of later steps."""
        path = self.folder / f"step-{checkpoint.step:08d}"
        partial = path.with_name(path.name + ".partial")
        for interrupted in self.folder.glob("*.partial"):  # by a power cut, or SIGKILL
            _remove(interrupted)
        require_run_folder(self.folder.parent)
        try:
            self.folder.mkdir(exist_ok=True)
            partial.mkdir()
            _write_files(partial, checkpoint)
            _remove(path)  # a damaged one
            partial.rename(path)
            _fsync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"Cannot write the checkpoint of step {checkpoint.step} to {self.folder}: "
                f"{error.strerror or error}. The newest checkpoint is {self.describe_newest()}. "
                "Free some space, then rerun with --resume."
            ) from error
        self._damaged.discard(path)
        for other in _folders(self.folder):
            if other in self._damaged or _step(other) > checkpoint.step:
                _remove(other)
        self.remove_old(checkpoint.step)
        return path

    def remove_old(self, step: int) -> None:
        """Remove all but the newest until `step`, and those that an interrupted `save` left."""
        past = [path for path in self.paths() if _step(path) <= step]
        for old in [*past[: -self.keep], *self.folder.glob("*.partial")]:
            _remove(old)

    def load_newest(
        self, restore: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint | None:
        """The newest intact checkpoint that `restore` takes, or None; warns of the others.

        If all that are intact are refused, this is another run, and its checkpoints are not ours to
        replace: then it raises.
        """
        unfit = None
        for path in reversed(self.paths()):
            found = None
            try:
                found = _load(path)
                restore(found)
                return found
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever libraries run into in files made to harm them
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                unfit = unfit if found is None else reason
                self._damaged.add(path)
                newest = next(reversed(self.paths()), None)
                then = f"Using the one before it: {newest}" if newest else "There is none before it"
                warnings.warn(
                    f"The checkpoint {path} is damaged ({reason}). {then}.",
                    DamagedCheckpointWarning,
                    stacklevel=2,
                )
        if unfit is not None:
            raise ValueError(
                f"No checkpoint in {self.folder} fits the run that {RUN} describes: {unfit}. "
                f"Restore {RUN}, or start a new run with another --output."
            )
        return None

    def paths(self) -> list[Path]:
        """Folders of all checkpoints not known to be damaged, oldest first."""
        return [path for path in _folders(self.folder) if path not in self._damaged]

    def settings(self) -> Mapping[str, Json]:
        """The settings of the run, as far as a checkpoint has kept them."""
        for path in reversed(self.paths()):
            with suppress(OSError, ValueError, LookupError, TypeError):
                if isinstance(found := read_document(path / MANIFEST)["settings"], dict):
                    return found
        return {}

    def describe_newest(self) -> str:
        """The path of the newest checkpoint, or "none"."""
        return str(next(reversed(self.paths()), "none"))


def find_checkpoint(named: str | Path) -> tuple[Path, Path]:
    """The folder of a run, and its checkpoint, or the file of weights in one, that is `named`.

    The folder of a run, or of its checkpoints, stands for the newest one; other files for theirs.
    """
    if not str(named).strip():
        raise ValueError(f"Expected a trained network, got {str(named)!r}. {_HINT}")
    path = real_path(user_path(named))
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. {_HINT}")
    if path.is_file() and path.name in (RUN, STATE, MANIFEST):
        path = path.parent
    elif path.is_file() and path.name not in (MODEL, AVERAGE):
        raise ValueError(f"{path} is not a trained network. {_HINT}")
    folder = path.parent if path.is_file() else path
    if re.fullmatch(r"step-\d+", folder.name):
        run = folder.parents[1]
    else:
        run = folder.parent if folder.name == FOLDER else folder
        if not (paths := Checkpoints(run).paths()):
            raise FileNotFoundError(f"{path} has no checkpoint. {_HINT}")
        path = paths[-1]
    if not (run / RUN).is_file():
        raise FileNotFoundError(f"{run} has no {RUN}, which says how to build {path}. {_HINT}")
    return run, path


def load_weights(path: Path) -> TrainedWeights:
    """The weights in a file of a checkpoint; of a folder, the moving average, else the model."""
    is_file = path.name in (MODEL, AVERAGE)
    folder = path.parent if is_file else path
    try:
        sums = _manifest(folder)
        name = path.name if is_file else AVERAGE if AVERAGE in sums else MODEL
        content = _read_verified(folder, name, sums)
        return TrainedWeights(_step(folder), safetensors.torch.load(content), sums[name])
    except (OSError, ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
        raise ValueError(
            f"The checkpoint {folder} is damaged ({error}). Restore it, or name another one."
        ) from None


def random_state(device: torch.device) -> dict[str, Any]:
    """The random states of torch, numpy and Python in plain types, for `restore_random_state`."""
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
    """Restore all generators from a `random_state`."""
    torch.set_rng_state(state["torch"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(state["python"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    # Serialised in memory first: then only the disk can fail, with an OSError.
    state = io.BytesIO()
    torch.save({**checkpoint.state, "step": checkpoint.step}, state)
    files = {MODEL: _serialize(checkpoint.weights), STATE: state.getvalue()}
    if checkpoint.average is not None:
        files[AVERAGE] = _serialize(checkpoint.average)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = {"sha256": sums, "settings": checkpoint.settings}
    files[MANIFEST] = json.dumps(manifest, indent=2).encode()
    for name, content in files.items():
        write_new(folder / name, content)
    _fsync_folder(folder)


def _serialize(weights: Mapping[str, Tensor]) -> bytes:
    # Cloned, because safetensors needs contiguous tensors that share no memory.
    own = {"memory_format": torch.contiguous_format}
    return safetensors.torch.save({n: t.detach().cpu().clone(**own) for n, t in weights.items()})


def _load(path: Path) -> Checkpoint:
    sums = _manifest(path)
    files = {name: _read_verified(path, name, sums) for name in sums}
    with zipfile.ZipFile(io.BytesIO(files[STATE])) as members:
        if sum(member.file_size for member in members.infolist()) > len(files[STATE]):
            raise ValueError(f"{STATE} is compressed, which torch.save never does")
    state = torch.load(io.BytesIO(files[STATE]), map_location="cpu", weights_only=True)
    if state["step"] != _step(path):
        raise ValueError(f"it is that of step {state['step']}")
    weights = safetensors.torch.load(files[MODEL])
    average = safetensors.torch.load(files[AVERAGE]) if AVERAGE in files else None
    return Checkpoint(_step(path), weights, state, average)


def _manifest(folder: Path) -> dict[str, str]:
    found = read_document(folder / MANIFEST)
    sums = found.get("sha256") if isinstance(found, dict) else None
    if not isinstance(sums, dict):
        raise ValueError(f"its {MANIFEST} has no sums")
    if unknown := sums.keys() - {MODEL, AVERAGE, STATE}:
        raise ValueError(f"its {MANIFEST} names {min(unknown)}, which no checkpoint has")
    return sums


def _read_verified(folder: Path, name: str, sums: Mapping[str, str]) -> bytes:
    with open(folder / name, "rb", opener=open_regular) as file:
        content = file.read()
    if hashlib.sha256(content).hexdigest() != sums[name]:
        raise ValueError(f"SHA-256 mismatch for {name}")
    return content


def _folders(top: Path) -> list[Path]:
    # glob would take an unreadable folder for empty
    found = top.iterdir() if top.exists() else ()
    return sorted((path for path in found if re.fullmatch(r"step-\d+", path.name)), key=_step)


def _remove(folder: Path) -> None:
    """Delete a folder as far as possible; of a link, only the link."""
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _fsync_folder(folder: Path) -> None:
    """Make the names in `folder` as durable as the files, on systems that can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
