"""A configuration becomes a run: what `skipless train` does, and every experiment that trains.

The configuration of a run that was trained earlier, as its run.json tells it.

A run of `skipless train` as the teacher of another one: `--teacher CHECKPOINT`.

What a run would be, told before it starts: `skipless train --dry-run`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipless.core.network import fold
from skipless.core.solution import Method
from skipless.models import MLP, ResNet, create_model
from skipless.models.create import parsed
from skipless.optim import KFACSettings, create_optimizer
from skipless.record import RUN, Json, Record, write_run
from skipless.tables import table
from skipless.torch import normalize_per_location, normalize_per_sample
from skipless.train.batches import Batches
from skipless.train.checkpoint import find_checkpoint, load_weights
from skipless.train.data import Data, load_data
from skipless.train.engine import Engine, RunStatus
from skipless.train.journal import provenance
from skipless.train.memory import TrainingMemory, estimate_memory
from skipless.train.process import Process, cores, process_group
from skipless.train.settings import DEFAULT_MARKS, Settings
from skipless.train.teacher import Teacher

from .configuration import Configuration, flag, method_of, options


def stored_configuration(record: Record) -> Configuration:
    """What a run was started with, as far as this version has these options.

    >>> from pathlib import Path
    >>> stored_configuration(Record(Path(), {"configuration": {"model": "mlp:7"}}, ())).model
    'mlp:7'
    """
    path = record.folder / RUN
    stored = record.run.get("configuration")
    if not isinstance(stored, dict) or "model" not in stored:
        raise ValueError(
            f"{path} does not say how its network is made: it has no configuration with a model. "
            "Restore it, or name another run of skipless train."
        )
    known = {name: value for name, value in stored.items() if name in options()}
    if unknown := [name for name in stored if name not in known]:
        warnings.warn(
            f"{path} has options that are unknown here and left out: {', '.join(unknown)}. It was "
            "written by another version.",
            stacklevel=2,
        )
    try:
        configuration = Configuration.of(known)
        parsed(configuration.model)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error} Restore it, or name another run of skipless train."
        ) from None
    return configuration


Network = Callable[[Configuration, tuple[int, int, int], int], nn.Module]


@dataclass(frozen=True)
class TrainedTeacher:
    """A teacher, and what a record says of it: run, step and checksum."""

    teacher: Teacher
    origin: dict[str, Json]


def teacher_of(
    given: Configuration, data: Data, process: Process, network: Network
) -> TrainedTeacher | None:
    """The teacher that a configuration names, on the device of `process`, if it names one.

    `network` makes one from its configuration, for images of a shape and a number of classes.
    """
    if given.teacher is None:
        _demand_unused(given)
        return None
    try:
        run, checkpoint = find_checkpoint(given.teacher)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"--teacher: {error}") from None
    record = Record.read(run)
    own = stored_configuration(record)
    _demand_fitting(given, own, record, data)
    weights = load_weights(checkpoint)
    try:
        model = network(own, data.shape, data.num_classes)
        model.load_state_dict(weights.tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(_unfit(checkpoint, run, error)) from None
    if own.data != given.data and process.is_main:
        warnings.warn(
            f"the teacher in {run} was trained on {own.data}, and is asked about {given.data}: "
            "see to it that the classes are the same, in the same order.",
            stacklevel=2,
        )
    teacher = Teacher(model.to(process.device), given.teacher_weight, given.teacher_temperature)
    return TrainedTeacher(
        teacher, {"run": str(run), "step": weights.step, "sha256": weights.sha256}
    )


def demand_same_teacher(output: Path, found: TrainedTeacher | None) -> None:
    """Raise if the run in `output`, which is to go on, was started with another teacher."""
    if not (output / RUN).exists():
        return
    before = Record.read(output).run.get("teacher")
    if not isinstance(before, dict):
        return
    if found is None or found.origin["sha256"] != before.get("sha256"):
        now = "none" if found is None else f"step {found.origin['step']} of {found.origin['run']}"
        raise ValueError(
            f"The run in {output} was started with the teacher of step {before.get('step')} of "
            f"{before.get('run')}, and would go on with another one: {now}. Name the checkpoint of "
            "that step by --teacher, or start another run."
        )


def _demand_unused(given: Configuration) -> None:
    for name in ("teacher_weight", "teacher_temperature"):
        if getattr(given, name) != getattr(Configuration(), name):
            raise ValueError(
                f"{flag(name)} was given without a teacher. Leave it out, or name a trained run by "
                "--teacher."
            )


def _demand_fitting(given: Configuration, own: Configuration, record: Record, data: Data) -> None:
    """Raise if teacher and student do not see the same images, or do not know the same classes."""
    shape = record.run.get("shape", list(data.shape))  # which older runs do not tell
    classes = record.run.get("classes", data.num_classes)
    pairs = (
        ("classes", classes, data.num_classes),
        ("images of shape", shape, list(data.shape)),
        ("images with --normalize", own.normalize, given.normalize),
    )
    for what, theirs, ours in pairs:
        if theirs != ours:
            raise ValueError(
                f"The teacher in {record.folder} knows {what} {theirs}, and the network to be "
                f"trained has {ours}. Both must have the same: change the one, or train the other "
                "anew."
            )


def _unfit(checkpoint: Path, run: Path, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300].rstrip(".")
    return (
        f"The teacher in {checkpoint} does not fit these images and classes, or {run / RUN} is "
        f"that of another network: {reason}. Name another one."
    )


_MOST_WORKERS = 16  # more than decode images as fast as a GPU takes them

# Safe starts for networks of 50 layers without shortcuts and batches of 128. Normalised networks
# take ten times as much; a search over a few values is better.
USUAL_RATES = {
    "sgd": 0.003,
    "lars": 0.3,
    "muon": 0.001,
    "adamw": 0.0003,
    "soap": 0.001,
    "kfac": 0.003,
}


@dataclass(frozen=True)
class Assembly:
    """All parts of a run, made from its configuration."""

    model: ResNet | MLP
    optimizer: Optimizer
    data: Data
    settings: Settings
    normalize: Callable[[Tensor], Tensor] | None
    taught_by: TrainedTeacher | None = None

    @property
    def teacher(self) -> Teacher | None:
        return None if self.taught_by is None else self.taught_by.teacher

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def assembled(configuration: Configuration, process: Process) -> Assembly:
    """The parts of the run that `configuration` describes, on the device of `process`."""
    given = configuration
    folder = None if given.data_folder is None else Path(given.data_folder).expanduser()
    data = load_data(
        given.data,
        folder=folder,
        image_size=given.image_size,
        augment=given.augment,
        train_size=given.train_size,
        validation_size=given.validation_size,
    )
    torch.manual_seed(given.seed)  # the same weights in every process
    model = network(given, data.shape, data.num_classes)
    channels_last = _channels_last(given, model, process)
    layout = torch.channels_last if channels_last else torch.preserve_format
    model = model.to(process.device)
    model = model.to(memory_format=layout)  # pyright: ignore[reportCallIssue] - torch takes it
    optimizer = create_optimizer(
        given.optimizer,
        model,
        lr=USUAL_RATES[given.optimizer] if given.lr is None else given.lr,
        momentum=given.momentum,
        l2=given.l2,
        nesterov=given.nesterov,
        kfac=_kfac_settings(given),
    )
    taught_by = teacher_of(given, data, process, network)
    if taught_by is not None:
        taught_by.teacher.network.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    settings = _settings(given, data, channels_last)
    return Assembly(model, optimizer, data, settings, normalization(given), taught_by)


def _kfac_settings(given: Configuration) -> KFACSettings:
    if given.optimizer == "kfac":
        return replace(given.kfac, seed=given.seed)
    for name, option in options().items():
        if option.group == "kfac" and option.value(given) != option.default:
            raise ValueError(
                f"{flag(name)} needs --optimizer kfac, got --optimizer {given.optimizer}"
            )
    return given.kfac


def _channels_last(given: Configuration, model: nn.Module, process: Process) -> bool:
    """Whether images are laid out with their channels last: usually where there are convolutions.

    On CPUs, PyTorch 2.13 overwrites memory that is not its own in the backward pass of 1x1
    convolutions with a stride and less than 8 inputs in this layout, so these do without it.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    unsafe = process.device.type == "cpu" and any(
        c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels // c.groups < 8
        for c in convolutions
    )
    if given.channels_last and unsafe:
        raise ValueError(
            f"channels_last was asked for, but {given.model} has 1x1 convolutions with a stride "
            "and less than 8 inputs, which PyTorch gets wrong on CPUs in this layout. Leave it "
            "out, or make the network wider."
        )
    return bool(convolutions) and not unsafe if given.channels_last is None else given.channels_last


def train(
    configuration: Configuration, output: Path, *, resume: bool = False, progress: bool = True
) -> tuple[RunStatus, Record | None]:
    """How far the run came, and its record; under `torchrun`, the first process has the record.

    With `resume`, the run in `output` goes on from its newest checkpoint.
    """
    with process_group(configuration.device, configuration.threads) as process:
        _demand_place(output, process, resume)
        parts = assembled(configuration, process)
        if resume:
            demand_same_teacher(output, parts.taught_by)
        engine = Engine(
            parts.model,
            parts.optimizer,
            parts.data,
            parts.settings,
            process,
            parts.normalize,
            parts.teacher,
        )
        if process.is_main:
            _write_description(output, _described(configuration, parts, process, output))
        ending = engine.run(output, resume=resume, progress=progress)
        return ending, Record.read(output) if process.is_main else None


def rehearsed(configuration: Configuration) -> tuple[Assembly, TrainingMemory]:
    """The parts of a run, and the memory that one process of it will take, from one small step."""
    with process_group("cpu", configuration.threads):
        parts = assembled(configuration, Process())
        images, _ = parts.data.train.load(range(4), None)
        images = images if parts.normalize is None else parts.normalize(images)
        teacher = None if parts.teacher is None else parts.teacher.network
        return parts, estimate_memory(parts.model, parts.optimizer, images, parts.settings, teacher)


def method_in(configuration: Configuration) -> Method | None:
    """The method that a configuration asks for by name."""
    targets = {name: getattr(configuration, name) for name in ("eta", "tau", "zeta", "sigma_b")}
    if configuration.method is not None:
        return method_of(configuration.method, configuration.activation, targets)
    if given := [name for name, value in targets.items() if value is not None]:
        raise ValueError(f"{given[0]} was given without a method. Name one: --method tat.")
    return None


def network(given: Configuration, shape: tuple[int, int, int], num_classes: int) -> ResNet | MLP:
    """The network that a configuration asks for, for images of a shape."""
    channels, height, width = shape
    method = method_in(given)
    weight = given.shortcut_weight
    has_shortcuts = parsed(given.model)[0] != "mlp"
    if method is not None and weight is None and given.norm is None and has_shortcuts:
        weight = 0.0  # what shaping is for
    return create_model(
        given.model,
        num_classes=num_classes,
        in_channels=channels + (given.normalize == "location"),
        input_size=(height, width),
        width=given.width,
        shortcut_weight=weight,
        norm=given.norm,
        activation=given.activation,
        negative_slope=given.negative_slope,
        method=method,
        clamp=given.clamp,
        dropout=given.dropout,
        distribution=given.distribution,
        delta=given.delta,
    )


def _settings(given: Configuration, data: Data, channels_last: bool) -> Settings:
    """What the engine is told: all that a configuration calls by the same name."""
    workers = given.workers
    if workers is None:
        workers = _usual_workers() if data.train.slow else 0
    same = {own.name: getattr(given, own.name) for own in fields(Settings)}
    made = {"channels_last": channels_last, "workers": workers, "marks": _marks(given)}
    return Settings(**(same | made))


def _marks(given: Configuration) -> tuple[float, ...]:
    """Where the rate falls, from a text such as "75/200,0.75"."""
    if given.marks is None:
        return DEFAULT_MARKS
    if given.schedule != "step":
        raise ValueError(
            f"--marks {given.marks} was given, but the schedule is {given.schedule}. Leave it out, "
            "or take --schedule step."
        )
    try:
        return tuple(float(Fraction(mark.strip())) for mark in given.marks.split(","))
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"--marks {given.marks!r} was given; write fractions of the run, such as 75/200,0.75."
        ) from None


def _usual_workers() -> int:
    """As many as this machine has cores, less one, for each of the processes that train on it."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(1, min(_MOST_WORKERS, cores() // processes - 1))


def normalization(given: Configuration) -> Callable[[Tensor], Tensor] | None:
    match given.normalize:
        case "sample":
            return normalize_per_sample
        case "location":
            return partial(normalize_per_location, channel_axis=1)
        case "dataset":
            return None


def _demand_place(output: Path, process: Process, resume: bool) -> None:
    taken = process.is_main and (output / RUN).exists() and not resume
    blocked = process.is_main and output.exists() and not output.is_dir()
    taken, blocked = process.any_rank([taken, blocked])
    if taken:
        raise FileExistsError(
            f"There is a run in {output} already. Go on with it: --resume --output {output}; or "
            "name another folder."
        )
    if blocked:
        raise FileExistsError(f"The output was to go to {output}, which is a file. Name a folder.")


def _write_description(output: Path, run: dict[str, Json]) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_run(output, run)
    except OSError as error:
        raise OSError(
            f"The run was to be described in {output / RUN}, which cannot be written: "
            f"{error.strerror or error}. Make room, or name another --output."
        ) from error


def _described(
    configuration: Configuration, parts: Assembly, process: Process, output: Path
) -> dict[str, Json]:
    """What `run.json` says; of a run that goes on, also how it was started before."""
    solution: Json = None
    if (shaping := parts.model.shaping) is not None:
        solution = {"activation": shaping.solution.activation, **shaping.solution.parameters}
    before: list[Json] = []
    if (output / RUN).exists():
        earlier = Record.read(output).run
        history = earlier.pop("before", [])
        before = [*(history if isinstance(history, list) else []), earlier]
    return {
        "configuration": configuration.as_mapping(),
        "parameters": parts.parameters,
        "shape": list(parts.data.shape),
        "classes": parts.data.num_classes,
        "teacher": None if parts.taught_by is None else parts.taught_by.origin,
        "solution": solution,
        "processes": process.world,
        "seed": configuration.seed,
        **provenance(),
        "before": before,
    }


_COSINES = (-1.0, 0.0, 0.5, 0.9)


def told(configuration: Configuration, parts: Assembly, memory: TrainingMemory) -> str:
    """The resolved configuration, the network, its C map and the memory, as text."""
    settings = {**configuration.as_mapping(), "channels_last": parts.settings.channels_last}
    settings["workers"] = parts.settings.workers
    if configuration.lr is None:
        settings["lr"] = USUAL_RATES[configuration.optimizer]
    rows = [[name, _value(value)] for name, value in settings.items() if value is not None]
    classes = parts.settings.classes_per_batch
    batches = Batches(parts.data.train, parts.settings.batch_size, classes_per_batch=classes)
    total = parts.settings.steps or parts.settings.epochs * batches.steps
    return "\n\n".join(
        [
            table(["option", "value"], rows),
            f"{type(parts.model).__name__} with {parts.parameters:,} parameters; "
            f"{len(parts.data.train):,} images of shape {parts.data.shape} for training and "
            f"{len(parts.data.validation):,} for validation; {total:,} steps, {batches.steps:,} an "
            "epoch.",
            _kernel(parts),
            _memory(memory),
        ]
    )


def _kernel(parts: Assembly) -> str:
    """The predicted C map in numbers."""
    shaping = parts.model.shaping
    if shaping is None:
        return "The kernel is not shaped: the network is normalised, or its slopes are trained."
    graph, solution = shaping.graph, shaping.solution
    found = fold(graph, solution.c_map, np.array(_COSINES))
    rows = [[f"C_f({c:g})", f"{value:.4f}"] for c, value in zip(_COSINES, found, strict=True)]
    rows += [[k, f"{v:.6g}"] for k, v in solution.parameters.items() if v is not None]
    head = f"{shaping.method}, {graph.depth} activations, {solution.activation}:"
    return f"{head}\n\n{table(['predicted', 'value'], rows)}"


def _memory(memory: TrainingMemory) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimiser": memory.optimizer,
        "activations": memory.activations,
        "their gradients": memory.passing,
        **({"teacher": memory.teacher} if memory.teacher else {}),
        "together": memory.total,
    }
    rows = [[name, f"{size / 2**20:,.1f} MiB"] for name, size in parts.items()]
    return table(["memory, about, beside PyTorch itself", ""], rows)


def _value(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
