"""Old public names, which work for one more release and warn.

A package that renamed something defines its `__getattr__` by `renamed_names`; a function whose
arguments were renamed is decorated by `renamed_arguments`.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a `__getattr__` for `module` that finds old `names` under their new dotted path.

    >>> getattr_ = renamed_names("skipless.torch", {"export_onnx": "skipless.onnx.export"})
    >>> getattr_("nonsense")
    Traceback (most recent call last):
    AttributeError: module 'skipless.torch' has no attribute 'nonsense'
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name])
        parent, _, new = names[name].rpartition(".")
        return getattr(import_module(parent), new)

    return find


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that passes old keyword arguments on under their new names.

    >>> @renamed_arguments(dropout="drop_rate")
    ... def create(drop_rate=0.0):
    ...     return drop_rate
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     create(dropout=0.2), str(caught[0].message)
    (0.2, 'create(dropout=...) is deprecated, use drop_rate')
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            name = function.__qualname__.removesuffix(".__init__")
            for old in names.keys() & kwargs.keys():
                if names[old] in kwargs:
                    raise TypeError(f"{name}() got both {old} and {names[old]}")
                warn_renamed(f"{name}({old}=...)", names[old])
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of the function that calls this that `old` is called `new` now."""
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=3)
