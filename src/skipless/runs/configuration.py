"""Every option of training, declared once: for the command line, for files and for `run.json`.

`--help`, `skipless plot` and `skipless report` import this module, so it must not import torch.
"""

from __future__ import annotations

import difflib
import json
import re
import reprlib
import tomllib
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from skipless.files import read_document
from skipless.optim.settings import KFACSettings
from skipless.record import RUN
from skipless.train.settings import CropName, Settings, option

if TYPE_CHECKING:
    from skipless.core.solution import Method

_MOST_BYTES = 2**18  # of a configuration; YAML is slow
CLIP, CLIPPED_RATE = 1.0, 0.03  # of SGD without normalisation layers: benchmarks/clipping.py

MethodName = Literal["tat", "dks", "eoc"]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
TARGETS: dict[MethodName, tuple[str, ...]] = {
    "tat": ("eta", "tau"),
    "dks": ("zeta",),
    "eoc": ("sigma_b", "spread"),
}


def build_method(
    name: MethodName, activation: str | None, targets: Mapping[str, float | None]
) -> Method:
    """The method called `name`, with those of the `targets` that are not None."""
    from skipless.core.activations import activation as look_up
    from skipless.core.solution import DKS, EOC, TAT

    given = {key: value for key, value in targets.items() if value is not None}
    for key in given:
        if key not in TARGETS[name]:
            own = " and ".join(map(flag, TARGETS[name]))
            raise ValueError(f"{flag(key)} is not an option of {name}, which takes {own}")
    if activation == "prelu":
        raise ValueError(
            f"prelu learns its slopes, but --method {name} solves for them. Drop --activation "
            "prelu or --method."
        )
    if name == "tat":
        phi = activation or "leaky_relu"
        leaky = look_up(phi).negative_slope is not None
        used, unused = ("eta", "tau") if leaky else ("tau", "eta")
        if unused in given:
            raise ValueError(f"{flag(unused)} has no effect on {phi}; use {flag(used)}")
    return {"tat": TAT, "dks": DKS, "eoc": EOC}[name](**given)


def flag(name: str) -> str:
    """The command-line option of a field: `sigma_b` is `--sigma-b`."""
    return f"--{name.replace('_', '-')}"


def parse_model(text: str) -> Literal["network", "factory", "run"]:
    """What a MODEL argument names: a network of ours, package.module:factory, or a run's folder.

    A folder with a `run.json` is a run, whatever it is called.

    >>> parse_model("mlp:100"), parse_model("my_package:resnet"), parse_model("runs/first")
    ('network', 'factory', 'run')
    """
    path = Path(text)
    with suppress(RuntimeError):  # ~name of an unknown user
        path = path.expanduser()
    if not (path / RUN).is_file():
        if re.fullmatch(r"(mlp|resnet|wide_resnet)(:.*|\d*)", text):
            return "network"
        if not path.exists():
            return "factory" if ":" in text else "run" if "/" in text or path.suffix else "network"
    return "run"


@dataclass(frozen=True)
class NetworkOptions:
    """All that the C maps of a network depend on."""

    model: str = option("mlp:50", "Network to train: resnet50, wide_resnet100, mlp:50, ...")
    width: float | None = option(None, "Multiplies the channels; for an mlp, units per layer.")
    shortcut_weight: float | None = option(
        None, "Weight of the shortcuts; 0 removes them.  [default: plain sums; with --method, 0]"
    )
    norm: Literal["none", "batch", "layer"] | None = option(None, "Normalisation layers.")
    activation: str | None = option(None, "Activation function, or prelu.")
    negative_slope: float | None = option(None, "prelu: initial slope below zero.")
    method: MethodName | None = option(None, "How to shape the kernel.")  # noqa: RUF009 - a field
    eta: float | None = option(None, "TAT with leaky ReLU: C_f(0).")
    tau: float | None = option(None, "TAT with smooth activations: C_f''(1).")
    zeta: float | None = option(None, "DKS: C_f'(1).")
    sigma_b: float | None = option(None, "EOC: standard deviation of the biases.")
    spread: float | None = option(
        None, "EOC: variance of the Jacobian's squared singular values, in place of --sigma-b."
    )
    clamp: bool = option(False, "Use the nearest reachable target if the target is out of reach.")

    @property
    def normalised(self) -> bool:
        """Whether the network has normalisation layers."""
        if self.norm is not None:
            return self.norm != "none"
        plain = self.method is not None or self.shortcut_weight is not None
        return not plain and not self.model.startswith("mlp")

    @property
    def batch_normalised(self) -> bool:
        """Whether these are BatchNorm, the default where there are any."""
        return self.normalised and self.norm != "layer"

    def build_method(self) -> Method | None:
        """The method by which the kernel is shaped, if there is one."""
        targets = {name: getattr(self, name) for own in TARGETS.values() for name in own}
        if self.method is not None:
            return build_method(self.method, self.activation, targets)
        if given := [name for name, value in targets.items() if value is not None]:
            raise ValueError(f"{flag(given[0])} needs a method, such as --method tat")
        return None


@dataclass(frozen=True)
class DataOptions:
    """What to train on."""

    data: str = option(
        "digits",
        "digits, fashion-mnist, cifar10, imagefolder:PATH, parquet:PATH, hf:NAME or "
        "synthetic:3x32x32.",
    )
    data_folder: str | None = option(None, "Folder with the data files.", resumable=True)
    image_size: int | None = option(None, "Resize images to this height and width.")
    train_size: int | None = option(None, "Train on a fixed random subset of this size.")
    validation_size: int | None = option(None, "Validate on a fixed random subset of this size.")
    held_out: int | None = option(
        None, "Validate on so many training images, held out, to choose settings by."
    )
    augment: bool | None = option(
        None, "Crop and flip images at random.  [default: as usual for the data]"
    )
    crop: CropName = option(  # noqa: RUF009 - a field
        "window",
        "How they are cropped: a window of the image, or Inception's boxes of any size and shape.",
    )
    normalize: Literal["sample", "location", "dataset"] = option(
        "sample", "Scale inputs to q = 1 per sample, or per location (adds a channel), or not."
    )


@dataclass(frozen=True)
class OptimizerOptions:
    """What turns gradients into steps."""

    optimizer: Literal["sgd", "lars", "muon", "adamw", "soap", "kfac"] = option("sgd", "Optimiser.")
    lr: float | None = option(
        None, "Peak learning rate.  [default: depends on --optimizer and --clip]"
    )
    momentum: float | None = option(None, "Momentum.  [default: 0.9; Muon and SOAP: 0.95]")
    nesterov: bool | None = option(None, "Use Nesterov momentum.  [default: Muon only]")
    l2: float = option(0.0, "L2 penalty on weights, not on biases or normalisation layers.")
    kfac: KFACSettings = option(KFACSettings(), "K-FAC")  # noqa: RUF009 - frozen


@dataclass(frozen=True)
class Configuration(Settings, OptimizerOptions, DataOptions, NetworkOptions):
    """A network, the data, and how to train the one on the other; its parts are its bases."""

    dropout: float = option(0.0, "Dropout rate before the logits.")
    distribution: Literal["orthogonal", "gaussian", "looks_linear"] = option(
        "orthogonal",
        "Distribution of the initial weights; looks_linear is that of an isometry with ReLU.",
    )
    trainable_slope: Literal["channel", "layer"] | None = option(
        None, "Train TReLU's slopes from those that TAT finds, one per channel or layer."
    )
    delta: bool = option(True, "Initialise only the centre of each kernel, the rest to zero.")
    teacher: str | None = option(None, "Network to distil: a run's folder, or a checkpoint in it.")
    teacher_weight: float = option(0.9, "Weight of the teacher's soft labels in the loss.")
    teacher_temperature: float = option(4.0, "Softmax temperature of the soft labels.")
    device: Literal["auto", "cpu", "cuda", "mps"] = option(
        "auto", "Device to train on.", resumable=True
    )
    threads: int | None = option(None, "PyTorch's CPU threads.")

    @classmethod
    def of(cls, *layers: Mapping[str, object]) -> Configuration:
        """The configuration with the values of all `layers`; later ones win."""
        given = {name: value for own in layers for name, value in _check_values(own).items()}
        values: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        for name, value in given.items():
            own = options()[name]
            holder = values if own.group is None else nested.setdefault(own.group, {})
            holder[own.field] = value
        for group, inner in nested.items():
            values[group] = replace(getattr(cls, group), **inner)
        return cls(**values)

    @classmethod
    def of_new_run(cls, *layers: Mapping[str, object]) -> Configuration:
        """As `of`, with the defaults of `skipless train` that depend on the network.

        These are the clipping and learning rate of SGD, and K-FAC's preset for BatchNorm. Other
        configurations do not have them, so that runs of the paper, and those of earlier versions
        that resume, keep their numbers.
        """
        found = cls.of(*layers)
        if found.optimizer == "kfac" and found.batch_normalised:
            if not any("kfac_preset" in layer for layer in layers):
                found = replace(found, kfac=replace(found.kfac, preset="batchnorm"))
            return found
        if found.optimizer != "sgd" or found.normalised:
            return found
        if not any("clip" in layer for layer in layers):
            found = replace(found, clip=CLIP)
        if found.clip is not None and found.lr is None:
            found = replace(found, lr=CLIPPED_RATE)
        return found

    def as_mapping(self) -> dict[str, Any]:
        """Every value by the name of its option, in types that JSON has."""
        return {name: own.value(self) for name, own in options().items()}

    def resume_with(self, given: Mapping[str, object]) -> Configuration:
        """This configuration of a run that resumes, with the options that may change then."""
        new = Configuration.of(self.as_mapping(), given)
        for name, own in options().items():
            before, after = own.value(self), own.value(new)
            # A teacher may have moved: its checksum shows whether it is the same.
            moved = name == "teacher" and None not in (before, after)
            if after != before and not own.resumable and not moved:
                start = f"without {flag(name)}" if before is None else f"with {flag(name)} {before}"
                raise ValueError(
                    f"Cannot resume with {flag(name)} {after}: the run started {start}. Drop "
                    "the option to resume, or start a new run with another --output."
                )
        return new


@dataclass(frozen=True)
class Option:
    """An option of a run: a field of the configuration, or of an object that it holds."""

    group: str | None  # the field of the configuration that holds the object
    field: str
    type: Any
    default: Any
    help: str
    resumable: bool

    def value(self, configuration: Configuration) -> Any:
        """The option's value in `configuration`."""
        holder = configuration if self.group is None else getattr(configuration, self.group)
        return getattr(holder, self.field)


@cache
def options() -> dict[str, Option]:
    """All options by name; those of an object have its field as a prefix: `kfac_damping`."""
    return dict(_collect(Configuration))


def _collect(kind: type, group: str | None = None, title: str = "") -> Iterator[tuple[str, Option]]:
    hints = get_type_hints(kind)
    for own in fields(kind):
        help_ = own.metadata.get("help")
        if is_dataclass(own.default):
            yield from _collect(type(own.default), own.name, f"{help_}: ")
        elif help_ is not None:  # the others are not for the command line
            name = own.name if group is None else f"{group}_{own.name}"
            resumable = own.metadata.get("resumable", False)
            hint = hints[own.name]
            yield name, Option(group, own.name, hint, own.default, title + help_, resumable)


def read_options(path: Path) -> dict[str, object]:
    """The options in a TOML, YAML or JSON file."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"The configuration {path} {problem}. Name a file.")
    parsers = {".toml": tomllib.loads, ".json": json.loads}
    parsers |= dict.fromkeys((".yaml", ".yml"), _parse_yaml)
    try:
        if (parser := parsers.get(path.suffix.lower())) is None:
            raise ValueError("its name must end in .toml, .yaml, .yml or .json")
        found = read_document(path, parser, _MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"Cannot read the configuration {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"The configuration {path} must map names to values, such as epochs to 90")
    try:
        return _check_values(found)
    except ValueError as error:
        raise ValueError(f"In {path}: {error}") from None


def _parse_yaml(text: str) -> object:
    import yaml

    return yaml.safe_load(text)


def _check_values(given: Mapping[str, object]) -> dict[str, object]:
    """The values by the names of options; raises at the first that is not one, or not its type."""
    known, values = options(), {}
    for written, value in given.items():
        name = str(written).replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Options: {', '.join(known)}."
            raise ValueError(f"{name.strip() or repr(name)} is not an option of training. {hint}")
        values[name] = _check_value(name, value, known[name].type)
    return values


def _check_value(name: str, value: object, hint: Any) -> object:
    """The value, if it has the type of the option; an integer also does for a float."""
    for kind in alternatives(hint):
        if isinstance(value, str) and not value.strip():
            break
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):
                return float(value)
        elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    raise ValueError(f"{name} must be {_describe_type(hint)}, got {reprlib.repr(value)}")


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a union is made of, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _describe_type(hint: Any) -> str:
    words = {
        bool: "true or false",
        float: "a number",
        int: "an integer",
        str: "a string",
        types.NoneType: "none",
    }
    return " or ".join(
        ", ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else words[kind]
        for kind in alternatives(hint)
    )
