"""A configuration becomes a run: built, trained, tried without training, or taught by another."""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipless.core.network import fold
from skipless.files import create_folder, lock, user_path
from skipless.models import MLP, ResNet, create_model
from skipless.models.create import parse_name
from skipless.optim import KFACSettings, create_optimizer
from skipless.optim.choices import resolve_momentum
from skipless.record import RUN, RUN_LOCK, Json, Record, write_run
from skipless.tables import table
from skipless.torch import normalize_per_location, normalize_per_sample
from skipless.train.batches import Batches
from skipless.train.checkpoint import Checkpoints, TrainedWeights, find_checkpoint, load_weights
from skipless.train.data import Data, load_data
from skipless.train.engine import Engine, RunStatus, Teacher
from skipless.train.journal import provenance
from skipless.train.memory import TrainingMemory, estimate_memory
from skipless.train.process import Process, cores, process_group

from .configuration import Configuration, DataOptions, flag, options

# Safe starts for networks of 50 layers without shortcuts and batches of 128, without clipping.
# Normalised networks take ten times as much; a search over a few values is better.
DEFAULT_RATES = {
    "sgd": 0.003,
    "lars": 0.3,
    "muon": 0.001,
    "adamw": 0.0003,
    "soap": 0.001,
    "kfac": 0.003,
}
_MOST_WORKERS = 16  # more than decode images as fast as a GPU takes them
# No result depends on these; a teacher may have moved, but its checksum is compared.
_OF_THE_MACHINE = {"channels_last", "threads", "log_every", "teacher"}
_COSINES = (-1.0, 0.0, 0.5, 0.9)


@dataclass(frozen=True)
class Run:
    """All parts of a run; `settings` are its configuration, with the defaults that depend on it."""

    model: ResNet | MLP
    optimizer: Optimizer
    data: Data
    settings: Configuration
    normalize: Callable[[Tensor], Tensor] | None
    teacher: Teacher | None = None
    teacher_origin: dict[str, Json] | None = None  # its run, step and checksum

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def train(
    configuration: Configuration,
    output: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    notes: Sequence[str] = (),
    should_stop: Callable[[float, float], bool] = lambda epoch, top1: False,
) -> tuple[RunStatus, Record | None]:
    """Trains in the folder `output`; returns how far the run came, and its record.

    With `resume`, continue the run there from its newest checkpoint. The `notes` are warnings once
    the run is built. `should_stop` gets epoch and top-1 accuracy of each evaluation, and may end
    the run. Under `torchrun`, only the first process warns, asks and returns a record.
    """
    with process_group(configuration.device, configuration.threads) as process, ExitStack() as held:
        claimed = _claim_folder(output, process, resume, held)
        if resume:
            _require_same_settings(output, configuration)
            if process.is_main:
                announce_download(configuration, output)
        run = build_run(configuration, process)
        if resume:
            _require_same_teacher(output, run.teacher_origin)
        parts = (run.model, run.optimizer, run.data, run.settings)
        engine = Engine(*parts, process, run.normalize, run.teacher)
        if not claimed:
            _claim_folder(output, process, resume, held, new=True)
        if process.is_main:
            for note in notes:
                warnings.warn(note, stacklevel=2)
            _write_run_json(configuration, run, process, output)
        ending = engine.run(output, resume=resume, progress=progress, should_stop=should_stop)
        return ending, Record.read(output) if process.is_main else None


def dry_run(configuration: Configuration) -> tuple[Run, TrainingMemory]:
    """The run without its training, and the memory per process, estimated from one small step."""
    with process_group("cpu", configuration.threads):
        run = build_run(configuration, Process())
        images, _ = next(Batches(run.data.train, 4, normalize=run.normalize).in_order())
        teacher = None if run.teacher is None else run.teacher.network
        return run, estimate_memory(run.model, run.optimizer, images, run.settings, teacher)


def build_run(configuration: Configuration, process: Process) -> Run:
    """The run that `configuration` describes, on the device of `process`."""
    lr = _learning_rate(configuration)
    own = (configuration.momentum, configuration.l2, configuration.nesterov)
    resolve_momentum(configuration.optimizer, lr, *own)  # before data and network take their time
    kfac = _kfac_settings(configuration)
    data = load_images(configuration)
    torch.manual_seed(configuration.seed)  # the same weights in every process
    model = create_network(configuration, data.shape, data.num_classes)
    channels_last = _channels_last(configuration, model, process)
    layout = torch.channels_last if channels_last else torch.preserve_format
    model = model.to(process.device)
    model = model.to(memory_format=layout)  # pyright: ignore[reportCallIssue] - torch takes it
    optimizer = create_optimizer(
        configuration.optimizer,
        model,
        lr=lr,
        momentum=configuration.momentum,
        l2=configuration.l2,
        nesterov=configuration.nesterov,
        kfac=kfac,
    )
    teacher, origin = _load_teacher(configuration, data, process)
    if teacher is not None:
        teacher.network.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    workers = configuration.workers
    if workers is None:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # that share this machine's cores
        most = max(1, min(_MOST_WORKERS, cores() // processes - 1))
        workers = most if data.train.slow else 0
    settings = replace(configuration, lr=lr, channels_last=channels_last, workers=workers)
    normalize = input_normalization(configuration)
    return Run(model, optimizer, data, settings, normalize, teacher, origin)


def _learning_rate(configuration: Configuration) -> float:
    return DEFAULT_RATES[configuration.optimizer] if configuration.lr is None else configuration.lr


def load_images(options: DataOptions) -> Data:
    """The data that `options` name."""
    folder = options.data_folder
    return load_data(
        options.data,
        folder=None if folder is None else user_path(folder),
        image_size=options.image_size,
        augment=options.augment,
        crop=options.crop,
        train_size=options.train_size,
        validation_size=options.validation_size,
        held_out=options.held_out,
    )


def announce_download(options: DataOptions, run: Path) -> None:
    """Warn if the data that the record of `run` names may be fetched: its reader did not choose."""
    kind, _, name = options.data.partition(":")
    if kind == "hf" and not Path(name).exists() and (run / RUN).exists():
        warnings.warn(
            f"{run / RUN} names the data {options.data}, which is fetched from the Hugging Face "
            "hub unless it is here already. To stay off the network, set HF_HUB_OFFLINE=1.",
            stacklevel=2,
        )


def create_network(
    configuration: Configuration, shape: tuple[int, int, int], num_classes: int
) -> ResNet | MLP:
    """The network of a configuration, for images of a shape."""
    channels, height, width = shape
    method = configuration.build_method()
    weight = configuration.shortcut_weight
    has_shortcuts = parse_name(configuration.model)[0] != "mlp"
    if method is not None and weight is None and configuration.norm is None and has_shortcuts:
        weight = 0.0  # what shaping is for
    return create_model(
        configuration.model,
        num_classes=num_classes,
        in_chans=channels + (configuration.normalize == "location"),
        img_size=(height, width),
        width=configuration.width,
        shortcut_weight=weight,
        norm=configuration.norm,
        activation=configuration.activation,
        negative_slope=configuration.negative_slope,
        method=method,
        clamp=configuration.clamp,
        drop_rate=configuration.dropout,
        distribution=configuration.distribution,
        delta=configuration.delta,
    )


def restore_network(
    configuration: Configuration,
    shape: tuple[int, int, int],
    num_classes: int,
    weights: TrainedWeights,
    what: str,
    run: Path,
) -> ResNet | MLP:
    """The network of a `run` with trained weights; an error calls it `what`."""
    try:
        model = create_network(configuration, shape, num_classes)
        model.load_state_dict(weights.tensors)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise ValueError(
            f"{what} does not fit these images and classes, or {run / RUN} describes "
            f"another network: {reason}. Restore it, or name another run."
        ) from error
    return model


def input_normalization(options: DataOptions) -> Callable[[Tensor], Tensor] | None:
    """What scales inputs to q = 1, if anything does."""
    return {
        "sample": normalize_per_sample,
        "location": partial(normalize_per_location, channel_axis=1),
        "dataset": None,
    }[options.normalize]


def _kfac_settings(configuration: Configuration) -> KFACSettings:
    if configuration.optimizer == "kfac":
        if (stride := configuration.kfac.input_stride) > configuration.batch_size:
            raise ValueError(
                f"--kfac-input-stride must be at most the batch size {configuration.batch_size}, "
                f"got {stride}"
            )
        return replace(configuration.kfac, seed=configuration.seed)
    for name, own in options().items():
        if own.group == "kfac" and own.value(configuration) != own.default:
            raise ValueError(
                f"{flag(name)} needs --optimizer kfac, got --optimizer {configuration.optimizer}"
            )
    return configuration.kfac


def _channels_last(configuration: Configuration, model: nn.Module, process: Process) -> bool:
    """Whether to lay images out with their channels last: by default where there are convolutions.

    On CPUs, PyTorch 2.13 writes out of bounds in the backward pass of strided 1x1 convolutions with
    fewer than 8 inputs in this layout, so networks with those do without it.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    unsafe = process.device.type == "cpu" and any(
        c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels // c.groups < 8
        for c in convolutions
    )
    if configuration.channels_last is None:
        return bool(convolutions) and not unsafe
    if configuration.channels_last and unsafe:
        raise ValueError(
            f"{configuration.model} has strided 1x1 convolutions with fewer than 8 inputs, which "
            "PyTorch gets wrong on CPUs with channels_last. Drop the option, or widen the network."
        )
    return configuration.channels_last


def _claim_folder(
    output: Path, process: Process, resume: bool, held: ExitStack, *, new: bool = False
) -> bool:
    """Hold the lock of a run's folder until `held` is closed; raise if it is not free.

    Returns False if the folder is not there yet, unless it is `new`: it is made once the run is
    built, so that a mistake leaves no folder.
    """
    going_on = taken = blocked = claimed = False
    if process.is_main:
        blocked = output.exists() and not output.is_dir()
        if new and not blocked:
            create_folder(output)
        if claimed := output.is_dir():
            try:
                held.enter_context(lock(output / RUN_LOCK, wait=False))
            except BlockingIOError:
                going_on = True
        holds_run = (output / RUN).exists() or bool(Checkpoints(output).paths())
        taken = holds_run and not resume
    flags = [going_on, taken, blocked, claimed]
    going_on, taken, blocked, claimed = process.any_rank(flags)
    if going_on:
        raise FileExistsError(
            f"A run is going on in {output}. Wait until it ends, or choose another --output."
        )
    if taken:
        raise FileExistsError(
            f"{output} already holds a run. Resume it with --resume --output {output}, or choose "
            "another folder."
        )
    if blocked:
        raise FileExistsError(f"--output {output} is a file. Name a folder.")
    return claimed


def _write_run_json(configuration: Configuration, run: Run, process: Process, output: Path) -> None:
    """Write `run.json`, which also keeps the earlier starts of a run that resumes."""
    solution = None if (shaping := run.model.shaping) is None else shaping.solution
    before: list[Json] = []
    if (output / RUN).exists():
        earlier = Record.read(output).run
        history = earlier.pop("before", [])
        before = [*(history if isinstance(history, list) else []), earlier]
    given, settings = configuration.as_mapping(), run.settings.as_mapping()
    described: dict[str, Json] = {
        "configuration": given,
        "resolved": {name: value for name, value in settings.items() if value != given[name]},
        "parameters": run.parameters,
        "shape": list(run.data.shape),
        "classes": run.data.num_classes,
        "validation_images": len(run.data.validation),
        "teacher": run.teacher_origin,
        "solution": solution and {"activation": solution.activation, **solution.parameters},
        "processes": process.world,
        "seed": configuration.seed,
        **provenance(),
        "before": before,
    }
    try:
        write_run(output, described)
    except OSError as error:
        raise OSError(
            f"Cannot write {output / RUN}: {error.strerror or error}. Free some space, or choose "
            "another --output."
        ) from error


def read_configuration(record: Record) -> Configuration:
    """The configuration of an earlier run; options that this version lacks are dropped.

    >>> from pathlib import Path
    >>> read_configuration(Record(Path(), {"configuration": {"model": "mlp:7"}}, ())).model
    'mlp:7'
    """
    path, remedy = record.folder / RUN, "Restore it, or name another run of skipless train."
    stored = record.run.get("configuration")
    if not isinstance(stored, dict) or "model" not in stored:
        raise ValueError(f"{path} has no configuration with a model. {remedy}")
    known = {name: value for name, value in stored.items() if name in options()}
    if unknown := [name for name in stored if name not in known]:
        warnings.warn(
            f"{path} has options of another version, which are ignored: {', '.join(unknown)}",
            stacklevel=2,
        )
    try:
        configuration = Configuration.of(known)
        parse_name(configuration.model)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {str(error).rstrip('.')}. {remedy}") from None
    solution = record.run.get("solution")
    if configuration.clamp and isinstance(solution, dict) and solution.get("negative_slope") == 0.0:
        # Earlier versions always aimed for 0.9, and clamped to ReLU where that is out of reach.
        configuration = replace(configuration, eta=configuration.eta or 0.9)
    return configuration


def _load_teacher(
    configuration: Configuration, data: Data, process: Process
) -> tuple[Teacher | None, dict[str, Json] | None]:
    """The teacher of a configuration, if it names one, and where it comes from."""
    if configuration.teacher is None:
        for name in ("teacher_weight", "teacher_temperature"):
            if getattr(configuration, name) != getattr(Configuration(), name):
                raise ValueError(f"{flag(name)} needs a trained network: --teacher RUN")
        return None, None
    try:
        run, checkpoint = find_checkpoint(configuration.teacher)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"--teacher: {error}") from None
    record = Record.read(run)
    own = read_configuration(record)
    _require_same_inputs(configuration, own, record, data)
    weights = load_weights(checkpoint)
    what = f"The teacher in {checkpoint}"
    model = restore_network(own, data.shape, data.num_classes, weights, what, run)
    if own.data != configuration.data and process.is_main:
        warnings.warn(
            f"the teacher in {run} was trained on {own.data}, the student on {configuration.data}: "
            "make sure that their classes are the same, in the same order",
            stacklevel=2,
        )
    teacher = Teacher(
        model.to(process.device), configuration.teacher_weight, configuration.teacher_temperature
    )
    return teacher, {"run": str(run), "step": weights.step, "sha256": weights.sha256}


def _require_same_inputs(
    student: Configuration, teacher: Configuration, record: Record, data: Data
) -> None:
    """Raise unless teacher and student see the same images and know the same classes."""
    shape = record.run.get("shape", list(data.shape))  # missing in older runs
    classes = record.run.get("classes", data.num_classes)
    for what, theirs, ours in (
        ("number of classes", classes, data.num_classes),
        ("image shape", shape, list(data.shape)),
        ("--normalize", teacher.normalize, student.normalize),
    ):
        if theirs != ours:
            raise ValueError(
                f"Teacher and student must have the same {what}: {theirs} for the teacher in "
                f"{record.folder}, {ours} for the student. Change one, or retrain the other."
            )


def _require_same_teacher(output: Path, origin: dict[str, Json] | None) -> None:
    """Raise if the run in `output`, which is about to resume, started with another teacher."""
    before = Record.read(output).run.get("teacher") if (output / RUN).exists() else None
    if not isinstance(before, dict):
        return
    if origin is None or origin["sha256"] != before.get("sha256"):
        now = "none" if origin is None else f"step {origin['step']} of {origin['run']}"
        raise ValueError(
            f"The run in {output} started with step {before.get('step')} of {before.get('run')} as "
            f"its teacher, got {now}. Name the original checkpoint by --teacher, or start a new "
            "run."
        )


def _require_same_settings(output: Path, configuration: Configuration) -> None:
    """Raise if the checkpoints in `output` are of a run with settings that change its numbers."""
    before, now = Checkpoints(output).settings(), configuration.as_mapping()
    now["lr"] = _learning_rate(configuration)
    names = [n for n, own in options().items() if not own.resumable and n not in _OF_THE_MACHINE]
    if differing := [name for name in names if name in before and before[name] != now[name]]:
        theirs, ours = (
            ", ".join(
                f"no {flag(n)}" if of[n] is None or of[n] is False else f"{flag(n)} {of[n]}"
                for n in differing
            )
            for of in (before, now)
        )
        raise ValueError(
            f"The checkpoints in {output} are of a run with {theirs}, but it would resume with "
            f"{ours}. Restore {output / RUN}, or give the options that the run started with."
        )


def format_dry_run(run: Run, memory: TrainingMemory) -> str:
    """The resolved configuration, the network, its C map and the memory, as text."""
    given, words = run.settings, {"True": "yes", "False": "no"}
    values = {name: str(v) for name, v in given.as_mapping().items() if v is not None}
    options_table = table(["option", "value"], [[n, words.get(v, v)] for n, v in values.items()])
    batches = Batches(run.data.train, given.batch_size, classes_per_batch=given.classes_per_batch)
    total = given.steps or given.epochs * batches.steps
    summary = (
        f"{type(run.model).__name__} with {run.parameters:,} parameters; {len(run.data.train):,} "
        f"images of shape {run.data.shape} for training and {len(run.data.validation):,} for "
        f"validation; {total:,} steps, {batches.steps:,} per epoch."
    )
    return "\n\n".join([options_table, summary, _format_kernel(run), _format_memory(memory)])


def _format_kernel(run: Run) -> str:
    shaping = run.model.shaping
    if shaping is None:
        return "The kernel is not shaped: the network is normalised, or its slopes are trained."
    graph, solution = shaping.graph, shaping.solution
    found = fold(graph, solution.c_map, np.array(_COSINES))
    rows = [[f"C_f({c:g})", f"{value:.4f}"] for c, value in zip(_COSINES, found, strict=True)]
    rows += [[k, f"{v:.6g}"] for k, v in solution.parameters.items() if v is not None]
    head = f"{shaping.method}, {graph.depth} activations, {solution.activation}:"
    return f"{head}\n\n{table(['predicted', 'value'], rows)}"


def _format_memory(memory: TrainingMemory) -> str:
    words = {"optimizer": "optimiser", "backward": "their gradients"}
    sizes = {words.get(name, name): size for name, size in asdict(memory).items()}
    if not memory.teacher:
        del sizes["teacher"]
    sizes["total"] = memory.total
    rows = [[name, f"{size / 2**20:,.1f} MiB"] for name, size in sizes.items()]
    return table(["estimated memory, without PyTorch itself", ""], rows)
