"""What the modules of a model hold: activations and normalisation layers, found and replaced."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from skipless.jax.functions import Function

from .activations import ShapedActivation

_Normalisation = nnx.BatchNorm | nnx.LayerNorm | nnx.RMSNorm | nnx.GroupNorm | nnx.InstanceNorm
# Evenly spaced, so that second differences tell what bends; and the same with another second half.
_PROBE = np.linspace(-4.0, 4.0, 18, dtype=np.float32)
_OTHER = np.where(np.arange(18) < 9, _PROBE, np.float32(0.3))
_BEND = 1e-3


class Identity(nnx.Module):
    """What stands where a normalisation layer stood: its input, whatever else it is given."""

    def __call__(self, x: Array, *_: object, **__: object) -> Array:
        return x


class Held(nnx.Module):
    """A place where an activation was held, and may be tried out."""

    function: Function

    def __init__(self) -> None:
        self.function = jnp.tanh

    def __call__(self, x: Array) -> Array:
        return self.function(x)


def is_normalisation(value: object) -> bool:
    return isinstance(value, _Normalisation)


def is_activation(value: object) -> bool:
    """Whether `value` is a function of one array that acts on each number, and is not affine."""
    if isinstance(value, nnx.Module):
        return isinstance(value, ShapedActivation | nnx.PReLU)
    if not callable(value) or isinstance(value, type):
        return False
    try:
        found = [value(jnp.asarray(points)) for points in (_PROBE, _OTHER)]
    except Exception:  # it is for other arguments, whatever it is
        return False
    if not all(isinstance(y, Array) and y.shape == _PROBE.shape for y in found):
        return False
    whole, half = (np.asarray(y, float)[: len(_PROBE) // 2] for y in found)
    # What acts on each number by itself does not care for the others.
    return np.allclose(whole, half, rtol=1e-5, atol=1e-6) and bool(
        np.abs(np.diff(np.asarray(found[0], float), n=2)).max() > _BEND
    )


def replace(
    model: nnx.Module, chosen: Callable[[object], bool], build: Callable[[], nnx.Module]
) -> list[str]:
    """Names of the places in `model` where what was `chosen` is now something new."""
    names: list[str] = []
    # Most layers hold the same few functions. They are kept, for ids are those of what is alive.
    answers: dict[int, tuple[bool, object]] = {}

    def is_chosen(value: object) -> bool:
        if id(value) not in answers:
            answers[id(value)] = chosen(value), value
        return answers[id(value)][0]

    def mapped(value: object, name: str) -> object:
        if type(value) is tuple or type(value) is list:
            return type(value)(mapped(v, f"{name}.{i}") for i, v in enumerate(value))
        if type(value) is dict:
            return {key: mapped(v, f"{name}.{key}") for key, v in value.items()}
        if not is_chosen(value):
            return value
        names.append(name)
        return build()

    for path, module in list(nnx.iter_modules(model)):
        for attribute, value in list(vars(module).items()):
            found = len(names)
            new = mapped(value, ".".join(map(str, (*path, attribute))))
            if len(names) > found:
                setattr(module, attribute, nnx.data(new))
    return names
