"""What is to be deployed: a network by name, a run or one of its checkpoints, or one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from skipless.models import create_model
from skipless.models.names import parsed
from skipless.record import RUN, Record
from skipless.torch.normalize import normalize_per_sample
from skipless.train.arrays import ArraySplit
from skipless.train.checkpoint import (
    FOLDER,
    MODEL,
    Checkpoint,
    Checkpoints,
    read_checkpoint,
)
from skipless.train.data import Data, load_data

from .configuration import NETWORK, Configuration
from .factories import imported, made
from .methods import flag
from .training import network, normalization

Shape = tuple[int, ...]

_FITS_A_RUN = ("data_folder", "validation_size")
_WHAT = (
    "Name a network (skipless models), the folder of a run of skipless train or one of its "
    "checkpoints, or package.module:factory of your own"
)


@dataclass(frozen=True)
class Candidate:
    """A network with its weights, the shape of its samples, and data, if there are any.

    `configuration` is that of a network of ours; without `data`, `lacking` says why.
    """

    name: str
    description: str
    model: nn.Module
    shape: Shape
    data: Data | None
    normalize: Callable[[Tensor], Tensor] | None
    lacking: str
    configuration: Configuration | None

    @property
    def preparation(self) -> str:
        """How an image becomes what the network reads."""
        if self.data is None:
            return "as they were prepared in training"
        split = self.data.train
        if isinstance(split, ArraySplit):
            listed = lambda t: ", ".join(f"{v:.6g}" for v in t.tolist())
            first = (
                f"bytes less the mean {listed(split.mean)}, over the deviation {listed(split.std)}"
            )
        else:
            first = f"standardised as the data set {self.data.name} is"
        then = "" if self.normalize is None else "; then normalised per location"
        if self.normalize is normalize_per_sample:
            then = "; then each image over its root mean square"
        return f"{'x'.join(map(str, self.data.shape))} images: {first}{then}"

    def examples(self, count: int) -> Tensor:
        """The first samples for validation, or random ones of q = 1."""
        if self.data is None:
            return torch.randn(count, *self.shape, generator=torch.Generator().manual_seed(0))
        rows = [number % len(self.data.validation) for number in range(count)]
        images, _ = self.data.validation.load(rows, None)
        return images if self.normalize is None else self.normalize(images)


def candidate(
    what: str, given: Mapping[str, object], shape: Shape | None = None, *, average: bool = False
) -> Candidate:
    """The network that `what` names, with the options of a configuration that were `given`.

    `shape`, that of a sample, is for a network without data, and `average` asks for the moving
    average of a run's weights.
    """
    path = Path(what)
    if average and not path.exists():
        raise ValueError(f"--average was given, but {what} is no run. Leave it out.")
    if _is_name(what) and not (path / RUN).is_file():
        return _by_name(what, given, shape)
    if path.exists():
        return _of_run(path, given, shape, average)
    module, colon, function = what.partition(":")
    if colon and module and function and "/" not in what:
        return _own(what, given, shape)
    if "/" in what or path.suffix:
        raise FileNotFoundError(f"{what} was to be deployed, which does not exist. {_WHAT}.")
    parsed(what)
    raise AssertionError("parsed tells what is wrong with a name")


def peer(given: Candidate, against: str | None) -> Candidate | str:
    """The network to compare with, for the same samples and classes; if none, why.

    It is `against`, or that of the same depth and width with BatchNorm, ReLU and shortcuts.
    """
    if against is None and given.configuration is None:
        return f"{given.name} is a network of your own; name another one by --against"
    own = given.configuration or Configuration()
    if against is None and _is_standard(own):
        return "this is the network with BatchNorm itself; name another one by --against"
    name = against or own.model
    if not _is_name(name) and ":" in name:
        return replace(_own(name, {}, given.shape), description=f"{name}, folded")
    with torch.no_grad():
        outputs = given.model.eval()(given.examples(1))
    channels, height, width = _image_shape(given.shape)
    model = create_model(
        name,
        num_classes=outputs[0].numel(),
        in_channels=channels,
        input_size=(height, width),
        width=own.width if against is None else None,
        norm="batch",
    )
    description = f"{name} with BatchNorm, folded"
    return replace(given, name=name, description=description, model=model)


def _is_standard(given: Configuration) -> bool:
    usual = (given.shortcut_weight, given.method, given.activation) == (None, None, None)
    norm = given.norm or ("none" if parsed(given.model)[0] == "mlp" else "batch")
    return usual and norm == "batch"


def _is_name(what: str) -> bool:
    try:
        parsed(what)
    except ValueError:
        return False
    return True


def _by_name(what: str, given: Mapping[str, object], shape: Shape | None) -> Candidate:
    configuration = Configuration.of({"model": what, **given})
    data = _demanded_data(configuration, given, shape)
    classes, default = (1000, (3, 224, 224)) if what.startswith("resnet") else (10, (3, 32, 32))
    if data is not None:
        shape, classes = data.shape, data.num_classes
    elif shape is None and configuration.image_size is not None:
        shape = (3, configuration.image_size, configuration.image_size)
    shape = _image_shape(shape or default)
    torch.manual_seed(configuration.seed)
    model = network(configuration, shape, classes)
    return Candidate(
        what,
        f"{what}{_form(configuration)}, random weights",
        model,
        _seen(configuration, shape),
        data,
        normalization(configuration),
        "no data were named; give --data",
        configuration,
    )


def _of_run(
    path: Path, given: Mapping[str, object], shape: Shape | None, average: bool
) -> Candidate:
    run, checkpoint = _checkpoint(path)
    weights = checkpoint.average if average else checkpoint.weights
    if weights is None:
        raise ValueError(
            f"The moving average of {path} was asked for, but the run has none. Leave --average "
            "out, or train with --average 0.999."
        )
    for name in given:
        if name not in _FITS_A_RUN:
            raise ValueError(f"{flag(name)} was given, but {run} says that itself. Leave it out.")
    stored = Record.read(run).run.get("configuration")
    if not isinstance(stored, dict):
        raise ValueError(f"{run / RUN} has no configuration, so the network is not known.")
    configuration = Configuration.of(stored, given)
    classes, data, lacking = len(weights["fc.weight"]), None, ""
    try:
        data = _loaded(configuration)
        shape, classes = data.shape, data.num_classes
    except (ValueError, OSError, ImportError) as error:
        lacking = f"the data of the run are not here: {' '.join(str(error).split())}"
        if shape is None:
            raise ValueError(
                f"{run} was to be deployed, but {lacking} Name --data-folder, or give the shape of "
                "a sample, such as --input 3,32,32, to do without them."
            ) from error
    shape = _image_shape(shape)
    model = network(configuration, shape, classes)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"The weights of {path} do not fit the network that {run / RUN} describes: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    return Candidate(
        configuration.model,
        f"{configuration.model}{_form(configuration)}, {'averaged ' * average}weights of {run}, "
        f"step {checkpoint.step}",
        model,
        _seen(configuration, shape),
        data,
        normalization(configuration),
        lacking,
        configuration,
    )


def _own(what: str, given: Mapping[str, object], shape: Shape | None) -> Candidate:
    for name in given:
        if name in NETWORK and name not in ("normalize", "seed"):
            raise ValueError(f"{flag(name)} was given, but {what} makes the network. Leave it out.")
    configuration = Configuration.of({"normalize": "dataset"}, given)
    data = _demanded_data(configuration, given, shape)
    if data is not None:
        shape = _seen(configuration, data.shape)
    torch.manual_seed(configuration.seed)
    model, example = made(what, imported(what), {}, shape)
    _demand_one_output(what, model.eval(), example, data)
    return Candidate(
        what,
        what,
        model,
        tuple(example.shape[1:]),
        data,
        normalization(configuration),
        "no data were named; give --data",
        None,
    )


def _demand_one_output(what: str, model: nn.Module, example: Tensor, data: Data | None) -> None:
    shape = ",".join(map(str, example.shape[1:]))
    types = {example.dtype, *(p.dtype for p in model.parameters())} - {torch.float32}
    if types:
        raise ValueError(
            f"{what} was to read and hold float32, but has {min(map(str, types))}. Convert model "
            "and example, `.float()`."
        )
    try:
        with torch.no_grad():
            outputs = model(example)
    except Exception as error:
        raise ValueError(
            f"{what} was called with samples of {shape}, but raises {type(error).__name__}: "
            f"{error}. Give another --input, if that is not their shape."
        ) from error
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{what} was to return one tensor, but returns {type(outputs).__name__}. Wrap it in a "
            "module that does."
        )
    if data is not None and outputs.shape[1:] != (data.num_classes,):
        raise ValueError(
            f"{what} was to tell the {data.num_classes} classes of {data.name}, but a sample's "
            f"output has the shape {tuple(outputs.shape[1:])}. Name other data, or leave it out."
        )


def _checkpoint(path: Path) -> tuple[Path, Checkpoint]:
    """The run, and its newest checkpoint or that in the folder `path`."""
    if (path / RUN).is_file():
        newest = Checkpoints(path).newest()
        if newest is None:
            raise FileNotFoundError(f"{path} was to be deployed, but has no whole checkpoint.")
        return path, newest
    folder = path.parent if path.name == MODEL else path
    run = folder.absolute().parent.parent
    if folder.absolute().parent.name != FOLDER or not (run / RUN).is_file():
        raise ValueError(f"{path} was to be deployed, but is no checkpoint. {_WHAT}.")
    return run, read_checkpoint(folder)


def _demanded_data(
    given: Configuration, options: Mapping[str, object], shape: Shape | None
) -> Data | None:
    if "data" not in options:
        for name in ("data_folder", "validation_size"):
            if name in options:
                raise ValueError(f"{flag(name)} was given without --data. Name the data, too.")
        return None
    if shape is not None:
        raise ValueError(f"--input was given, but {given.data} has a shape. Leave one out.")
    return _loaded(given)


def _loaded(given: Configuration) -> Data:
    return load_data(
        given.data,
        folder=None if given.data_folder is None else Path(given.data_folder).expanduser(),
        image_size=given.image_size,
        augment=given.augment,
        train_size=given.train_size,
        validation_size=given.validation_size,
    )


def _image_shape(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(
            f"--input {','.join(map(str, shape))} was given, but a sample of this network has "
            "channels, height and width, such as 3,224,224."
        )
    return shape


def _seen(given: Configuration, shape: tuple[int, int, int]) -> Shape:
    """The shape that the network reads, where a sample has `shape`."""
    return shape[0] + (given.normalize == "location"), *shape[1:]


def _form(given: Configuration) -> str:
    """What is not usual about a network, in brackets."""
    names = [n for n in NETWORK if n not in ("normalize", "seed")]
    unusual = {n: v for n in names if (v := getattr(given, n)) not in (None, False)}
    words = ", ".join(f"{n.replace('_', ' ')} {v}" for n, v in unusual.items())
    return f" ({words})" if words else ""
