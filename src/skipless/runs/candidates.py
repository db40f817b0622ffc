"""The network that a MODEL argument names: one of ours, a trained run, or the user's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from skipless.models import create_model
from skipless.models.create import parse_name
from skipless.onnx.writer import require_batch
from skipless.record import Record
from skipless.torch.normalize import normalize_per_sample
from skipless.train.arrays import ArraySplit
from skipless.train.checkpoint import AVERAGE, MODEL, find_checkpoint, load_weights
from skipless.train.data import Data, Subset, require_image_size
from skipless.train.images import ImageSplit

from .configuration import Configuration, NetworkOptions, flag, parse_model
from .factories import call_factory, import_factory
from .training import (
    announce_download,
    create_network,
    input_normalization,
    load_images,
    read_configuration,
    restore_network,
)

Shape = tuple[int, ...]

_OPTIONS_FOR_A_RUN = ("data_folder", "validation_size")
_NETWORK = tuple(own.name for own in fields(NetworkOptions))


class Missing(str):
    """Why there is no data, or no file of some kind, and what to do about it."""


@dataclass(frozen=True)
class Candidate:
    """A network with its weights, the shape of its samples, and its data."""

    name: str
    description: str
    model: nn.Module
    shape: Shape
    data: Data | Missing
    normalize: Callable[[Tensor], Tensor] | None
    configuration: Configuration | None  # of a network of ours

    @property
    def preparation(self) -> str:
        """How an image becomes what the network reads."""
        if isinstance(self.data, Missing):
            return "prepared as in training"
        split = self.data.train
        split = split.whole if isinstance(split, Subset) else split
        if isinstance(split, ArraySplit | ImageSplit):
            mean, std = (", ".join(f"{v:.6g}" for v in t.tolist()) for t in (split.mean, split.std))
            first = f"bytes minus the mean {mean}, divided by {std}"
        else:
            first = f"standardised like the data set {self.data.name}"
        then = "" if self.normalize is None else "; then normalised per location"
        if self.normalize is normalize_per_sample:
            then = "; then each image divided by its root mean square"
        return f"{'x'.join(map(str, self.data.shape))} images: {first}{then}"

    def examples(self, count: int) -> Tensor:
        """The first validation samples, or random ones of q = 1."""
        if isinstance(self.data, Missing):
            return torch.randn(count, *self.shape, generator=torch.Generator().manual_seed(0))
        rows = [number % len(self.data.validation) for number in range(count)]
        images, _ = self.data.validation.load(rows, None)
        return images if self.normalize is None else self.normalize(images)


def load_candidate(
    model: str, options: Mapping[str, object], shape: Shape | None = None, *, average: bool = False
) -> Candidate:
    """The network that `model` names.

    Args:
        model: A network by name, the folder of a run, a checkpoint, or package.module:factory.
        options: Options of a `Configuration` that the command line gave.
        shape: Shape of a sample, for a network without data.
        average: Use the moving average of a run's weights.
    """
    kind = parse_model(model)
    if kind == "run":
        return _read_candidate(model, options, shape, average)
    if average:
        raise ValueError(f"--average needs a run, but {model} is none. Drop the option.")
    build = _create_candidate if kind == "network" else _build_candidate
    return build(model, options, shape)


def require_peer(against: str | None) -> None:
    """Raise unless `against` names a network that a candidate can be compared with."""
    if against is None:
        return
    match parse_model(against):
        case "factory":
            import_factory(against)
        case "network":
            parse_name(against)
        case "run":
            raise ValueError(f"--against takes a network or package.module:factory, got {against}")


def baseline(candidate: Candidate, against: str | None) -> Candidate | Missing:
    """The network to compare with: `against`, or the same with BatchNorm, ReLU and shortcuts."""
    own_width = None
    if against is None:
        own, remedy = candidate.configuration, "name a network with --against"
        if own is None:
            return Missing(f"{candidate.name} is a network of your own; {remedy}")
        norm = own.norm or ("none" if parse_name(own.model)[0] == "mlp" else "batch")
        if (norm, own.shortcut_weight, own.method, own.activation) == ("batch", None, None, None):
            return Missing(f"this is already the network with BatchNorm; {remedy}")
        against, own_width = own.model, own.width
    if parse_model(against) == "factory":
        built = _build_candidate(against, {}, candidate.shape)
        return replace(built, description=f"{against}, folded")
    with torch.no_grad():
        outputs = candidate.model.eval()(candidate.examples(1))
    channels, height, width = _image_shape(candidate.shape)
    model = create_model(
        against,
        num_classes=outputs[0].numel(),
        in_chans=channels,
        img_size=(height, width),
        width=own_width,
        norm="batch",
    )
    description = f"{against} with BatchNorm, folded"
    return replace(candidate, name=against, description=description, model=model)


def _create_candidate(model: str, options: Mapping[str, object], shape: Shape | None) -> Candidate:
    """A network by name, with random weights."""
    try:
        parse_name(model)
    except ValueError as error:
        raise ValueError(
            f"{error} List them with skipless models. Or name the folder of a run of skipless "
            "train, one of its checkpoints, or package.module:factory of your own."
        ) from None
    configuration = Configuration.of({"model": model, **options})
    data = _load_named_data(configuration, options, shape)
    classes, default = (1000, (3, 224, 224)) if model.startswith("resnet") else (10, (3, 32, 32))
    if isinstance(data, Data):
        shape, classes = data.shape, data.num_classes
    elif configuration.image_size is not None:
        require_image_size(configuration.image_size)
        if shape is not None:
            raise ValueError("--image-size and --input both set the shape of a sample. Drop one.")
        shape = (3, configuration.image_size, configuration.image_size)
    shape = _image_shape(shape or default)
    torch.manual_seed(configuration.seed)
    network = create_network(configuration, shape, classes)
    return _candidate_of(configuration, network, "random weights", shape, data)


def _read_candidate(
    path: str, options: Mapping[str, object], shape: Shape | None, average: bool
) -> Candidate:
    """The network of a run, with the weights of a checkpoint."""
    try:
        run, checkpoint = find_checkpoint(path)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(
            f"{error} Or name a network (skipless models), or package.module:factory of your own."
        ) from None
    file = _weights_file(path, checkpoint, average)
    weights = load_weights(file)
    for name in options:
        if name not in _OPTIONS_FOR_A_RUN:
            raise ValueError(f"{flag(name)} is already set by {path}. Drop the option.")
    configuration = Configuration.of(read_configuration(Record.read(run)).as_mapping(), options)
    classes = len(weights.tensors.get("fc.weight", ()))
    announce_download(configuration, run)
    try:
        data: Data | Missing = load_images(configuration)
        classes = data.num_classes
    except (ValueError, OSError, ImportError) as error:
        data = Missing(f"the run's data cannot be loaded: {' '.join(str(error).split())}")
        if shape is None:
            raise ValueError(
                f"Cannot deploy {path}: {data.rstrip('.')}. Give --data-folder, or the shape of a "
                "sample to do without data, such as --input 3,32,32."
            ) from error
    if isinstance(data, Data):
        if shape not in (None, data.shape):
            raise ValueError(
                f"--input does not apply to {path}, whose data have the shape "
                f"{','.join(map(str, data.shape))}. Drop the option."
            )
        shape = data.shape
    assert shape is not None
    shape = _image_shape(shape)
    model = restore_network(configuration, shape, classes, weights, f"The network of {path}", run)
    origin = f"{'averaged ' * (file.name == AVERAGE)}weights of {path}, step {weights.step}"
    return _candidate_of(configuration, model, origin, shape, data)


def _candidate_of(
    configuration: Configuration,
    model: nn.Module,
    weights: str,
    shape: tuple[int, int, int],
    data: Data | Missing,
) -> Candidate:
    """A network of ours, whose description names the options that are not the default."""
    usual = Configuration()
    given = {n: v for n in _NETWORK[1:] if (v := getattr(configuration, n)) != getattr(usual, n)}
    words = ", ".join(f"{n.replace('_', ' ')} {v}".removesuffix(".0") for n, v in given.items())
    name, normalize = configuration.model, input_normalization(configuration)
    description = f"{name}{f' ({words})' * bool(words)}, {weights}"
    read = _input_shape(configuration, shape)
    return Candidate(name, description, model, read, data, normalize, configuration)


def _weights_file(path: str, checkpoint: Path, average: bool) -> Path:
    """The file of weights in a checkpoint, or the file that `checkpoint` is."""
    if checkpoint.is_dir():
        checkpoint /= AVERAGE if average else MODEL
    elif average and checkpoint.name == MODEL:
        raise ValueError(f"--average does not apply to {path}, which is not averaged. Drop one.")
    if checkpoint.name == AVERAGE and not checkpoint.is_file():
        raise ValueError(
            f"{path} has no moving average of its weights. Drop --average, or train with "
            "--average 0.999."
        )
    return checkpoint


def _build_candidate(path: str, options: Mapping[str, object], shape: Shape | None) -> Candidate:
    """The network that the user's own factory builds."""
    for name in options:
        if name in _NETWORK:
            raise ValueError(f"{flag(name)} does not apply to {path}, which builds the network")
    configuration = Configuration.of({"normalize": "dataset"}, options)
    if "image_size" in options and "data" not in options:
        raise ValueError("--image-size needs --data. Give the shape of a sample by --input.")
    data = _load_named_data(configuration, options, shape)
    if isinstance(data, Data):
        shape = _input_shape(configuration, data.shape)
    torch.manual_seed(configuration.seed)
    model, example = call_factory(path, shape)
    _require_one_output(path, model.eval(), example, data)
    normalize = input_normalization(configuration)
    return Candidate(path, path, model, tuple(example.shape[1:]), data, normalize, None)


def _require_one_output(path: str, model: nn.Module, example: Tensor, data: Data | Missing) -> None:
    types = {example.dtype, *(p.dtype for p in model.parameters())} - {torch.float32}
    if types:
        raise ValueError(
            f"{path} must have float32 weights and inputs, got {min(map(str, types))}. Convert the "
            "model and its example with .float()."
        )
    try:
        with torch.no_grad():
            outputs = model(example)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{path} raised {type(error).__name__} on a batch of shape {tuple(example.shape)}: "
            f"{error}. The first dimension is the batch; give another --input if the others are "
            "not the shape of a sample."
        ) from error
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{path} must return one tensor, got {type(outputs).__name__}. Wrap it in a module "
            "that does."
        )
    require_batch(model, example, path)
    if isinstance(data, Data) and outputs.shape[1:] != (data.num_classes,):
        raise ValueError(
            f"{path} must have one output for each of the {data.num_classes} classes of "
            f"{data.name}, got the shape {tuple(outputs.shape[1:])}. Name other data, or drop "
            "--data."
        )


def _load_named_data(
    configuration: Configuration, options: Mapping[str, object], shape: Shape | None
) -> Data | Missing:
    if "data" not in options:
        for name in _OPTIONS_FOR_A_RUN:
            if name in options:
                raise ValueError(f"{flag(name)} needs --data")
        return Missing("no data given; use --data")
    if shape is not None:
        raise ValueError(f"--input does not apply to {configuration.data}, which sets the shape")
    return load_images(configuration)


def _image_shape(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(
            f"--input must be channels, height and width, such as 3,224,224, got "
            f"{','.join(map(str, shape))}"
        )
    return shape


def _input_shape(configuration: Configuration, shape: tuple[int, int, int]) -> Shape:
    """The shape that the network reads, where a sample has `shape`."""
    return shape[0] + (configuration.normalize == "location"), *shape[1:]
