"""What is to be deployed: a network by name, a run or one of its checkpoints, or one's own.

Networks of the user's own, by the name of the function that makes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from skipless.models import create_model
from skipless.models.create import Family, parsed
from skipless.onnx.export import demand_batch
from skipless.record import RUN, Record
from skipless.torch.normalize import normalize_per_sample
from skipless.train.arrays import ArraySplit
from skipless.train.checkpoint import (
    AVERAGE,
    MODEL,
    TrainedWeights,
    expand_home,
    find_checkpoint,
    load_weights,
)
from skipless.train.data import Data, Subset, load_data
from skipless.train.images import ImageSplit

from .configuration import NETWORK, Configuration, flag
from .training import network, normalization, stored_configuration


def imported(path: str) -> Callable[..., object]:
    """What `package.module:factory` names, with the current folder among those searched."""
    module_name, _, name = path.partition(":")
    _demand_form(path, module_name, name)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"{path} was asked for, but importing {module_name} fails: "
            f"{type(error).__name__}: {error}. Check the name (of {name} in {module_name}.py it is "
            f"{path}), and run from the folder it is in."
        ) from error
    factory: object = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise ValueError(
            f"{path} was asked for, but {module_name} has no function or class {name!r}. It has "
            f"{', '.join(_callables(module)) or 'none'}. Write one as {module_name}:name."
        )
    return factory


def _demand_form(path: str, module: str, name: str) -> None:
    file = Path(module)
    if module and name and file.name == module and file.suffix != ".py":
        return
    place = f"the folder {file.parent}" if file.name != module else "the folder that it is in"
    raise ValueError(
        f"{path} was asked for, but a function or class of your own is written module:name. Write "
        f"{file.name.removesuffix('.py') or 'module'}:{name or 'name'}, and run from {place}."
    )


def _callables(module: object) -> list[str]:
    return [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")][:8]


def made(
    path: str,
    factory: Callable[..., object],
    arguments: dict[str, int],
    shape: Sequence[int] | None,
) -> tuple[nn.Module, Tensor]:
    """The factory's module and example."""
    try:
        result = factory(**arguments)
    except Exception as error:
        raise ValueError(
            f"{path} was called{f' with {arguments}' if arguments else ''}, but raises "
            f"{type(error).__name__}: {error}"
        ) from error
    model, example = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(model, nn.Module) or not isinstance(example, Tensor | None):
        raise ValueError(
            f"{path} was to return an nn.Module, or one and an example tensor, but returns "
            f"{type(result).__name__}. Wrap it in a function that does."
        )
    if shape is not None:
        example = torch.zeros(2, *shape)
    if example is None:
        raise ValueError(
            f"{path} returns a model only. Give the shape of a sample, such as --input 3,32,32, "
            "or let it return the model and an example."
        )
    return model, example


Shape = tuple[int, ...]

_FITS_A_RUN = ("data_folder", "validation_size")
_OR_A_NETWORK = "Or name a network (skipless models), or package.module:factory of your own."
_OR_A_RUN = (
    "See them: skipless models. Or name the folder of a run of skipless train, one of its "
    "checkpoints, or package.module:factory of your own."
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
        split = split.whole if isinstance(split, Subset) else split
        if isinstance(split, ArraySplit | ImageSplit):
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
    path = expand_home(what)
    if average and not path.exists():
        raise ValueError(f"--average was given, but {what} is no run. Leave it out.")
    if _is_name(what) and not (path / RUN).is_file():
        return _by_name(what, given, shape)
    if path.exists():
        return _of_run(what, given, shape, average)
    if _is_factory(what):
        return _own(what, given, shape)
    if "/" in what or path.suffix:
        return _of_run(what, given, shape, average)  # which tells that it is not there
    raise ValueError(f"{_misnamed(what)} {_OR_A_RUN}")


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
    if _is_factory(name):
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
    return _misnamed(what) is None


def _misnamed(what: str) -> str | None:
    """What is wrong with the name of a network, if something is."""
    try:
        parsed(what)
    except ValueError as error:
        return str(error)
    return None


def _is_factory(what: str) -> bool:
    module, colon, _ = what.partition(":")
    return bool(colon) and module not in get_args(Family)


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
    what: str, given: Mapping[str, object], shape: Shape | None, average: bool
) -> Candidate:
    try:
        run, checkpoint = find_checkpoint(what)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{error} {_OR_A_NETWORK}") from None
    weights, averaged = _weights(what, checkpoint, average)
    for name in given:
        if name not in _FITS_A_RUN:
            raise ValueError(f"{flag(name)} was given, but {what} says that itself. Leave it out.")
    configuration = Configuration.of(stored_configuration(Record.read(run)).as_mapping(), given)
    classes, data, lacking = len(weights.tensors.get("fc.weight", ())), None, ""
    try:
        data = _loaded(configuration)
        shape, classes = data.shape, data.num_classes
    except (ValueError, OSError, ImportError) as error:
        lacking = f"the data of the run are not here: {' '.join(str(error).split())}"
        if shape is None:
            raise ValueError(
                f"{what} was to be deployed, but {lacking} Name --data-folder, or give the shape "
                "of a sample, such as --input 3,32,32, to do without them."
            ) from error
    shape = _image_shape(shape)
    try:
        model = network(configuration, shape, classes)
        model.load_state_dict(weights.tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"The weights of {what} do not fit the network that {run / RUN} describes for samples "
            f"of {'x'.join(map(str, shape))}: {' '.join(str(error).split())[:300].rstrip('.')}. "
            "Restore it, or name another run."
        ) from error
    return Candidate(
        configuration.model,
        f"{configuration.model}{_form(configuration)}, {'averaged ' * averaged}weights of {what}, "
        f"step {weights.step}",
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
            f"{what} was called with a batch of shape {tuple(example.shape)}, but raises "
            f"{type(error).__name__}: {error}. Its first dimension is that of the batch. Give "
            "another --input, if the others are not the shape of a sample."
        ) from error
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"{what} was to return one tensor, but returns {type(outputs).__name__}. Wrap it in a "
            "module that does."
        )
    demand_batch(model, example, what)
    if data is not None and outputs.shape[1:] != (data.num_classes,):
        raise ValueError(
            f"{what} was to tell the {data.num_classes} classes of {data.name}, but a sample's "
            f"output has the shape {tuple(outputs.shape[1:])}. Name other data, or leave it out."
        )


def _weights(what: str, checkpoint: Path, average: bool) -> tuple[TrainedWeights, bool]:
    """Those of a checkpoint, or of the file in it that was named; and whether they are averaged."""
    if checkpoint.is_dir():
        checkpoint /= AVERAGE if average else MODEL
    elif average and checkpoint.name == MODEL:
        raise ValueError(f"--average was given, but {what} is not averaged. Leave one of them out.")
    averaged = checkpoint.name == AVERAGE
    if averaged and not checkpoint.is_file():
        raise ValueError(
            f"The moving average of {what} was asked for, but the run has none. Leave --average "
            "out, or train with --average 0.999."
        )
    return load_weights(checkpoint), averaged


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
