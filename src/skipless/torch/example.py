"""What a model is called with: a tensor, several of them, or arguments by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Example:
    """The arguments of one call; the theory follows those that are tensors of real numbers."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, given: Tensor | Iterable[Any] | Mapping[str, Any] | Example) -> Example:
        """From a tensor, a sequence of arguments, or a mapping of arguments by name."""
        if isinstance(given, Example):
            return given
        if isinstance(given, Tensor):
            return cls((given,), {})
        return cls((), dict(given)) if isinstance(given, Mapping) else cls(tuple(given), {})

    @property
    def tensors(self) -> list[Tensor]:
        return [a for a in (*self.args, *self.kwargs.values()) if isinstance(a, Tensor)]

    @property
    def signals(self) -> list[Tensor]:
        """The tensors of real numbers; if there are none, the first tensor."""
        return [a for a in self.tensors if a.is_floating_point()] or self.tensors[:1]

    @property
    def first(self) -> Tensor:
        return self.signals[0]

    @property
    def shapes(self) -> str:
        """The shapes of all tensors, for errors."""
        return ", ".join(str(tuple(tensor.shape)) for tensor in self.tensors)

    def map(self, change: Callable[[Tensor], Any]) -> Example:
        """With every tensor changed."""

        def new(argument: Any) -> Any:
            return change(argument) if isinstance(argument, Tensor) else argument

        kwargs = {name: new(argument) for name, argument in self.kwargs.items()}
        return Example(tuple(map(new, self.args)), kwargs)

    def of_samples(self, count: int) -> Example:
        """With `count` copies of the first sample, in all tensors that have as many samples."""
        samples = len(self.first)

        def repeat(tensor: Tensor) -> Tensor:
            if tensor.dim() == 0 or len(tensor) != samples:
                return tensor
            return tensor[:1].expand(count, *tensor.shape[1:]).clone()

        return self.map(repeat)

    def call(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)


Given = Tensor | Iterable[Any] | Mapping[str, Any] | Example


def require_example(model: object, example: object, *, several: bool = True) -> None:
    """Raise unless these are a module and what it can be called with, perhaps `several` inputs."""
    parts: Any = example.values() if isinstance(example, Mapping) else example
    many = isinstance(parts, Iterable) and not isinstance(parts, Tensor | str)
    found = several and many and any(isinstance(part, Tensor) for part in parts)
    if isinstance(model, nn.Module) and (found or isinstance(example, Tensor | Example)):
        return
    advice = "Pass a batch of inputs, such as torch.randn(2, 3, 32, 32)."
    if not isinstance(model, nn.Module):
        advice = "Pass the model first."
    raise TypeError(
        "Expected a model and an example of its input (nn.Module, Tensor), got "
        f"({type(model).__name__}, {type(example).__name__}). {advice}"
    )
