"""Very deep networks that train without shortcuts and without normalisation layers.

    import skipless as sk

    deep = sk.convert(model, example)  # a PyTorch, Keras or Flax model without normalisation
    print(deep.skipless_report)

Everything here is imported on first use: `import skipless` itself imports no framework, and
`sk.torch`, `sk.jax`, `sk.keras`, `sk.onnx`, `sk.models` and `sk.optim` need theirs only then.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skipless import jax as jax
    from skipless import keras as keras
    from skipless import models as models
    from skipless import onnx as onnx
    from skipless import optim as optim
    from skipless import torch as torch
    from skipless.core.activations import Activation, activation, activation_names
    from skipless.core.graph import Graph, GraphBuilder
    from skipless.core.predict import predict
    from skipless.core.solution import (
        DKS,
        EOC,
        TAT,
        ClampedTargetWarning,
        Solution,
        UnreachableTargetError,
    )
    from skipless.core.solve import solve
    from skipless.core.trace import UnsupportedModelError
    from skipless.frameworks import check, convert, measure, trace

__version__ = "0.1.0"

_HOMES = {
    "core.activations": ("Activation", "activation", "activation_names"),
    "core.graph": ("Graph", "GraphBuilder"),
    "core.predict": ("predict",),
    "core.solution": (
        "DKS", "EOC", "TAT", "ClampedTargetWarning", "Solution", "UnreachableTargetError",
    ),
    "core.solve": ("solve",),
    "core.trace": ("UnsupportedModelError",),
    "frameworks": ("check", "convert", "measure", "trace"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# Rooms that need more than the base install, and the extras that bring it.
_ROOMS = ("jax", "keras", "models", "onnx", "optim", "torch")
_EXTRAS = {"flax": "jax", "jax": "jax", "keras": "keras", "torch": "torch"}

__all__ = [
    "DKS", "EOC", "TAT", "Activation", "ClampedTargetWarning", "Graph", "GraphBuilder", "Solution",
    "UnreachableTargetError", "UnsupportedModelError", "__version__", "activation",
    "activation_names", "check", "convert", "measure", "predict", "solve", "trace",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS]


if not TYPE_CHECKING:  # or a type checker would accept any name

    def __getattr__(name):
        if name in _HOME_OF:
            return getattr(import_module(f"skipless.{_HOME_OF[name]}"), name)
        if name not in _ROOMS:
            raise AttributeError(f"module 'skipless' has no attribute {name!r}")
        try:
            return import_module(f"skipless.{name}")
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            from skipless._install import not_installed

            extra = _EXTRAS[error.name]
            raise ImportError(not_installed(f"skipless.{name}", error.name, extra)) from None
