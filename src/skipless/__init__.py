"""Very deep networks that train without shortcuts and without normalisation layers.

Everything here is imported when first used, so `import skipless` itself costs nothing, and the
frameworks, for `skipless.torch`, `skipless.models`, `skipless.jax` and `skipless.keras`, are needed
only where asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skipless import jax as jax
    from skipless import keras as keras
    from skipless import models as models
    from skipless import torch as torch
    from skipless.core.activations import Activation, activation, activation_names
    from skipless.core.graph import Graph, GraphBuilder
    from skipless.core.solution import (
        DKS,
        EOC,
        TAT,
        ClampedTargetWarning,
        Solution,
        UnreachableTargetError,
    )
    from skipless.core.solve import solve

__version__ = "0.1.0"

__all__ = [
    "DKS",
    "EOC",
    "TAT",
    "Activation",
    "ClampedTargetWarning",
    "Graph",
    "GraphBuilder",
    "Solution",
    "UnreachableTargetError",
    "__version__",
    "activation",
    "activation_names",
    "solve",
]

_MODULES = {
    "DKS": "solution",
    "EOC": "solution",
    "TAT": "solution",
    "Activation": "activations",
    "ClampedTargetWarning": "solution",
    "Graph": "graph",
    "GraphBuilder": "graph",
    "Solution": "solution",
    "UnreachableTargetError": "solution",
    "activation": "activations",
    "activation_names": "activations",
    "solve": "solve",
}
# What is imported with a framework, and the extra that brings it.
_FRAMEWORKS = {"torch": "torch", "models": "torch", "jax": "jax", "keras": "keras"}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # or a type checker would take any name at all

    def __getattr__(name):
        if name in _MODULES:
            return getattr(import_module(f"skipless.core.{_MODULES[name]}"), name)
        if name not in _FRAMEWORKS:
            raise AttributeError(f"module 'skipless' has no attribute {name!r}")
        try:
            return import_module(f"skipless.{name}")
        except ModuleNotFoundError as error:
            if error.name == f"skipless.{name}":
                raise AttributeError(f"skipless {__version__} has no {name} support") from None
            raise ImportError(
                f"skipless.{name} needs {error.name}, which is not installed: "
                f"pip install 'skipless[{_FRAMEWORKS[name]}]'"
            ) from error
