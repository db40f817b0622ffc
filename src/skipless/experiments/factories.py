"""Networks of the user's own, by the name of the function that makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn


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
