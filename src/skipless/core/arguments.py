"""Arguments that users give, checked where they come in: errors name the argument.

A network with a scale of nan, or three and a half seeds, fails far from the call that is wrong, or
does not fail at all.
"""

import math
import reprlib
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np


def number(name: str, value: object) -> float:
    """The number `value`, which may be an array of one.

    >>> number("gain", np.float32(2.0))
    2.0
    >>> number("gain", "2")
    Traceback (most recent call last):
    ...
    TypeError: gain must be a number, got '2'
    """
    try:
        if isinstance(value, bool | str | bytes | None):
            raise TypeError
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {reprlib.repr(value)}") from None
    except OverflowError:
        return math.inf


def numbers(name: str, values: object) -> np.ndarray:
    """The array of floats `values`: numpy would also take text for numbers, and None for nan."""
    found = np.asarray(values)
    if found.dtype.kind in "bcOSUMm":  # not those of other libraries, such as bfloat16
        raise TypeError(f"{name} must be numbers, got {reprlib.repr(values)}")
    return found.astype(float, copy=False)


def finite_number(
    name: str, value: object, least: float = -math.inf, most: float = math.inf
) -> float:
    """The number `value`, if it is finite and in that range."""
    found = number(name, value)
    if not (math.isfinite(found) and least <= found <= most):
        above = f"finite and >= {least:g}" if math.isfinite(least) else "finite"
        range_ = f"from {least:g} to {most:g}" if math.isfinite(most) else above
        raise ValueError(f"{name} must be {range_}, got {found:g}")
    return found


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """The integer `value`, if it is one in that range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {reprlib.repr(value)}")
    found = int(value)
    if found < least or (most is not None and found > most):
        range_ = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {range_}, got {found}")
    return found


def require_flag(name: str, value: object) -> None:
    """Raise unless `value` is true or false: any other text or number would count as true."""
    if not isinstance(value, bool | np.bool):
        raise TypeError(f"{name} must be True or False, got {reprlib.repr(value)}")


def require_function(name: str, value: Callable[..., Any] | None) -> None:
    """Raise unless `value` can be called, or is None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, got {reprlib.repr(value)}")


def require_axis(name: str, axis: object, shape: tuple[Any, ...]) -> None:
    """Raise unless arrays of that shape have the axis."""
    if not -len(shape) <= whole_number(name, axis, -len(shape) - 64) < len(shape):
        raise ValueError(f"{name} must be an axis of the shape {shape}, got {axis}")
