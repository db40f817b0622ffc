"""Everything that a run of training can be told, by the names of the command line and of files.

Methods by name, with targets as a command line or a file gives them.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from skipless.optim.settings import KFACSettings
from skipless.train.settings import Precision, ScheduleName

if TYPE_CHECKING:
    from skipless.core.solution import Method

MethodName = Literal["tat", "dks", "eoc"]
METHODS: tuple[MethodName, ...] = ("tat", "dks", "eoc")
TARGETS: dict[MethodName, tuple[str, ...]] = {
    "tat": ("eta", "tau"),
    "dks": ("zeta",),
    "eoc": ("sigma_b",),
}


def method_of(
    name: MethodName, activation: str | None, given: Mapping[str, float | None]
) -> Method:
    """The method with the targets that were given, which must be its own and in use."""
    from skipless.core.activations import activation as look_up
    from skipless.core.solution import DKS, EOC, TAT

    named = {key: value for key, value in given.items() if value is not None}
    for key in named:
        if key not in TARGETS[name]:
            own = " and ".join(map(flag, TARGETS[name]))
            raise ValueError(f"{flag(key)} does not belong to {name}, which has {own}.")
    if activation == "prelu":
        raise ValueError(
            f"--activation prelu was asked for with --method {name}, but its slopes are trained, "
            "where a method solves for them. Leave one of the two out."
        )
    if name == "tat":
        leaky = activation is None or look_up(activation).negative_slope is not None
        used, unused = ("eta", "tau") if leaky else ("tau", "eta")
        if unused in named:
            raise ValueError(
                f"{flag(unused)} has no effect on {activation or 'leaky_relu'}, which TAT shapes "
                f"by {flag(used)}. Use that."
            )
    return {"tat": TAT, "dks": DKS, "eoc": EOC}[name](**named)


def flag(name: str) -> str:
    """The option of the command line for a field: `sigma_b` is `--sigma-b`."""
    return f"--{name.replace('_', '-')}"


# What may differ when a run goes on: it does not change what is computed.
CHANGEABLE = ("data_folder", "workers", "device", "keep", "checkpoint_every")
# What may be elsewhere then: that it is the same is seen by its checksum.
MOVABLE = ("teacher",)

# What a network is made from, of all that a run is told.
NETWORK = (
    "width", "shortcut_weight", "norm", "activation", "negative_slope", "method", "eta", "tau",
    "zeta", "sigma_b", "clamp", "normalize", "seed",
)  # fmt: skip


def _told(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True)
class Configuration:
    """A network, the data, and how the one is trained on the other."""

    model: str = _told("mlp:50", "A network: resnet50, wide_resnet100, mlp:50, ...")
    width: float | None = _told(None, "Times the usual channels; units of an mlp's layers.")
    shortcut_weight: float | None = _told(
        None, "Weight of the shortcuts; 0 removes them. Without it, sums are plain."
    )
    norm: Literal["none", "batch", "layer"] | None = _told(None, "Normalisation layers.")
    activation: str | None = _told(None, "Name of the activation, or prelu.")
    negative_slope: float | None = _told(None, "prelu: the slope below zero to start from.")
    method: Literal["tat", "dks", "eoc"] | None = _told(None, "How to shape the kernel.")
    eta: float | None = _told(None, "TAT, leaky ReLU: C_f(0).")
    tau: float | None = _told(None, "TAT, smooth activations: C_f''(1).")
    zeta: float | None = _told(None, "DKS: C_f'(1).")
    sigma_b: float | None = _told(None, "EOC: scale of the biases.")
    clamp: bool = _told(False, "Take the nearest target within reach.")
    dropout: float = _told(0.0, "Of the layer before the logits.")
    distribution: Literal["orthogonal", "gaussian"] = _told("orthogonal", "Of initial weights.")
    delta: bool = _told(True, "Only the centre of a kernel is drawn, the rest of it is zero.")

    data: str = _told(
        "digits",
        "digits, fashion-mnist, cifar10, imagefolder:PATH, parquet:PATH, hf:NAME, "
        "synthetic:3x32x32.",
    )
    data_folder: str | None = _told(None, "Where the files of the data are.")
    image_size: int | None = _told(None, "Height and width that images are brought to.")
    train_size: int | None = _told(None, "Images to train on, drawn once and for all.")
    validation_size: int | None = _told(None, "Images to validate on, drawn once and for all.")
    augment: bool | None = _told(None, "Crop and flip at random; by default as the data usually.")
    normalize: Literal["sample", "location", "dataset"] = _told(
        "sample", "Inputs of q = 1 by sample, or by location with a channel more, or neither."
    )

    optimizer: Literal["sgd", "lars", "muon", "adamw", "soap", "kfac"] = _told(
        "sgd", "What turns gradients into steps."
    )
    lr: float | None = _told(None, "Learning rate at its height; by default one for --optimizer.")
    momentum: float | None = _told(None, "By default 0.9; of Muon and SOAP 0.95.")
    nesterov: bool | None = _told(None, "Nesterov's momentum; by default of Muon only.")
    l2: float = _told(0.0, "Penalty on weights, never on biases or normalisation.")
    kfac: KFACSettings = _told(KFACSettings(), "K-FAC")  # noqa: RUF009 - frozen
    schedule: ScheduleName = _told(  # noqa: RUF009 - a field
        "cosine", "After the warm-up: a tenth at 4/9 and 7/9, half a cosine, or nothing."
    )
    marks: str | None = _told(
        None, "step: where the rate falls to a tenth, in place of 4/9,7/9 of the run: 75/200,0.75."
    )
    warmup: float | None = _told(
        None, "Epochs in which the learning rate rises; by default 5, or a tenth of a shorter run."
    )
    epochs: int = _told(90, "Passes over the data.")
    steps: int | None = _told(None, "Steps, instead of epochs.")
    batch_size: int = _told(128, "Images a step, over all processes.")
    classes_per_batch: int | None = _told(
        None, "Classes that the images of a step are of, equally many of each; else as it happens."
    )
    accumulate: int = _told(1, "Parts that a batch is computed in, to save memory.")
    label_smoothing: float = _told(0.1, "Share of the target that all classes get.")
    teacher: str | None = _told(
        None, "A trained network to learn from: folder of a run, or one of its checkpoints."
    )
    teacher_weight: float = _told(0.9, "Share of the teacher's soft labels in the loss.")
    teacher_temperature: float = _told(4.0, "What logits are divided by to make labels soft.")
    clip: float | None = _told(None, "Largest norm of the gradient.")
    average: float | None = _told(None, "Decay of a moving average of weights, such as 0.999.")

    precision: Precision = _told("float32", "Of the forward pass.")  # noqa: RUF009
    channels_last: bool | None = _told(None, "Memory format; by default for convolutions.")
    compile: bool = _told(False, "By torch.compile.")
    device: Literal["auto", "cpu", "cuda", "mps"] = _told("auto", "Where to compute.")
    threads: int | None = _told(None, "Of PyTorch on the CPU.")
    workers: int | None = _told(None, "Processes that decode images; by default as it helps.")
    seed: int = _told(0, "Of weights, order of data, crops and dropout.")
    log_every: int = _told(10, "Steps between lines of metrics.jsonl.")
    evaluate_every: int = _told(1, "Epochs between evaluations.")
    checkpoint_every: int | None = _told(None, "Steps between checkpoints; by default an epoch's.")
    keep: int = _told(3, "Checkpoints to keep.")

    @classmethod
    def of(cls, *layers: Mapping[str, object]) -> Configuration:
        """The configuration with the values of all `layers`, the later before the earlier."""
        merged: dict[str, Any] = {}
        for layer in layers:
            merged |= {str(name).replace("-", "_"): value for name, value in layer.items()}
        known = options()
        values: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        for name, value in merged.items():
            if name not in known:
                raise ValueError(_unknown(name))
            option = known[name]
            checked = _checked(name, value, option.type)
            own = values if option.group is None else nested.setdefault(option.group, {})
            own[option.field] = checked
        for group, own in nested.items():
            values[group] = replace(getattr(cls, group), **own)
        return cls(**values)

    def as_mapping(self) -> dict[str, Any]:
        """Every value by the name of its option, in types that JSON has."""
        return {name: option.value(self) for name, option in options().items()}

    def changed(self, given: Mapping[str, object]) -> Configuration:
        """This configuration of a run that goes on, with what may differ then."""
        new = Configuration.of(self.as_mapping(), given)
        values = new.as_mapping()
        for name, value in self.as_mapping().items():
            wanted = values[name]
            moved = name in MOVABLE and None not in (value, wanted)
            if wanted != value and name not in CHANGEABLE and not moved:
                before = f"the usual {flag(name)}" if value is None else f"{flag(name)} {value}"
                raise ValueError(
                    f"The run was started with {before}, and {wanted} was asked for. "
                    "Leave it out to go on, or start another run with another --output."
                )
        return new


@dataclass(frozen=True)
class Option:
    """A field of the configuration, or of an object that it holds, as an option of a run."""

    group: str | None  # the field of the configuration that holds the object
    field: str
    type: Any
    default: Any
    help: str

    def value(self, configuration: Configuration) -> Any:
        """The option's value in `configuration`."""
        holder = configuration if self.group is None else getattr(configuration, self.group)
        return getattr(holder, self.field)


@cache
def options() -> dict[str, Option]:
    """All options by name; those of an object have its field as a prefix: `kfac_damping`."""
    found: dict[str, Option] = {}
    hints = get_type_hints(Configuration)
    for own in fields(Configuration):
        help_ = own.metadata["help"]
        if not is_dataclass(own.default):
            found[own.name] = Option(None, own.name, hints[own.name], own.default, help_)
            continue
        inner_hints = get_type_hints(type(own.default))
        for inner in fields(own.default):
            if "help" in inner.metadata:  # the others are not for the command line
                found[f"{own.name}_{inner.name}"] = Option(
                    own.name,
                    inner.name,
                    inner_hints[inner.name],
                    inner.default,
                    f"{help_}: {inner.metadata['help']}",
                )
    return found


def from_file(path: Path) -> dict[str, object]:
    """The values that a TOML, YAML or JSON file gives."""
    if not path.is_file():
        what = "which is a folder" if path.is_dir() else "which does not exist"
        raise FileNotFoundError(f"A configuration was asked for from {path}, {what}. Name a file.")
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix.lower():
            case ".toml":
                found: object = tomllib.loads(text)
            case ".yaml" | ".yml":
                found = _yaml(text)
            case ".json":
                found = json.loads(text)
            case _:
                raise ValueError("its name ends in none of .toml, .yaml, .yml and .json")
    except ValueError as error:
        raise ValueError(f"The configuration {path} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(
            f"The configuration {path} has no names for its values, such as epochs. Add them."
        )
    return found


def _yaml(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _unknown(name: str) -> str:
    names = list(options())
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Is it {close[0]}?" if close else f"The names are {', '.join(names)}."
    return f"{name} was given, which is no option of training. {hint}"


def _checked(name: str, value: object, hint: Any) -> object:
    """The value, if it is of the type that `name` wants; whole numbers also do for others."""
    allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in allowed:
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    raise ValueError(f"{name} = {value!r} was given; it is {wanted(hint)}.")


def wanted(hint: Any) -> str:
    """A type in words."""
    words = {
        bool: "true or false",
        float: "a number",
        int: "a whole number",
        str: "a text",
        types.NoneType: "none",
    }
    allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return " or ".join(
        ", ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else words[kind]
        for kind in allowed
    )
