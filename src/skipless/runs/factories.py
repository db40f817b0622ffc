"""The user's own network, which a MODEL argument package.module:factory names."""

import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn


def import_factory(path: str) -> Callable[..., object]:
    """What `package.module:factory` names; the current folder is searched too, after all others."""
    module_name, _, name = path.partition(":")
    file = Path(module_name)
    named = all(part.isidentifier() for part in module_name.split(".")) and file.suffix != ".py"
    if not (named and name):
        place = f"the folder {file.parent}" if file.name != module_name else "its folder"
        stem = file.name.removesuffix(".py").strip(". ")
        module = stem if stem.isidentifier() else "module"
        raise ValueError(
            f"A factory must be written module:name, got {path}. Write {module}:{name or 'name'}, "
            f"and run from {place}."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # first, a file in it could stand in for any module not yet imported
    try:
        module = import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(
            f"{path}: importing {module_name} failed: {describe(error)}. Check the name (for "
            f"{name} in {module_name.replace('.', '/')}.py it is {path}), and run from its folder."
        ) from error
    factory: object = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ValueError(
            f"{module_name} has no function or class {name!r}. It has "
            f"{', '.join(names[:8]) or 'none'}, and is "
            f"{getattr(module, '__file__', 'built in') or 'a folder without __init__.py'}."
        )
    if isinstance(factory, nn.Module):
        raise ValueError(
            f"{path} is a model. Name a function that returns one: def net(): return …"
        )
    return factory


def call_factory(
    path: str, shape: Sequence[int] | None, width: int | None = None
) -> tuple[nn.Module, Tensor]:
    """The factory's module, and an example: a batch of zeros if `shape` is given."""
    factory, arguments = import_factory(path), {} if width is None else {"width": width}
    try:
        result = factory(**arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(
            f"{path}{f' with {arguments}' if arguments else ''} raised {describe(error)}"
        ) from error
    if inspect.iscoroutine(result):
        result.close()  # Python would warn that nothing awaits it
    model, example = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(model, nn.Module) or not isinstance(example, Tensor | None):
        raise ValueError(
            f"{path} must return an nn.Module, or one and an example tensor, got "
            f"{type(result).__name__}"
        )
    types = [p.dtype for p in model.parameters() if p.is_floating_point()]
    if shape is not None:
        example = torch.zeros(2, *shape, dtype=types[0] if types else torch.float32)
    if example is None:
        raise ValueError(
            f"{path} returns only a model. Give the shape of a sample, such as --input 3,32,32, or "
            "return an example with the model."
        )
    return model, example


def describe(error: BaseException) -> str:
    """The type of an error of the user's code, and its words, if it has any."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # of its own __str__
        words = ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
