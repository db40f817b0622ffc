"""Initial weights of layers that a model writes as functions of its own parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx, nn

from skipless.core.solution import Solution

from .init import delta_, scaled_uniform_orthogonal_, transposed_delta_
from .operations import operation
from .reader import UnsupportedModelError


def draw_functional_(
    model: nn.Module,
    layers: Sequence[fx.Node],
    solution: Solution,
    generator: torch.Generator | None = None,
) -> set[str]:
    """Names of the parameters drawn: weights and biases of `layers`, nodes of the model's graph."""
    drawn: set[str] = set()
    for node in layers:
        given = _arguments(node)
        weight, bias = (_parameter(given.get(name)) for name in ("weight", "bias"))
        if weight is None:
            raise UnsupportedModelError(
                f"{node.format_node()} multiplies by something that is no parameter of the model, "
                "so that it cannot be drawn. Remove weight normalisation and the like, or write "
                "the layer as nn.Linear or nn.Conv2d."
            )
        if weight in drawn:
            continue
        _draw_weight_(
            operation(node), _attribute(model, weight), given, solution.sigma_w, generator
        )
        drawn.add(weight)
        if bias is not None:
            tensor = _attribute(model, bias)
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(solution.sigma_b * noise)
            drawn.add(bias)
    return drawn


def _arguments(node: fx.Node) -> Mapping[str, object]:
    """The arguments of a layer's operation by name, under one name for its weight."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    match operation(node):
        case "mm" | "addmm":
            return {"weight": given["mat2"], "bias": given.get("self") if "mat1" in given else None}
        case "matmul":
            return {"weight": given["other"]}
        case _:
            return given


def _parameter(argument: object) -> str | None:
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        return str(argument.target)
    return None


def _attribute(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(name).detach()


def _draw_weight_(
    name: str,
    weight: Tensor,
    given: Mapping[str, object],
    gain: float,
    generator: torch.Generator | None,
) -> None:
    groups = given.get("groups", 1)
    assert isinstance(groups, int)
    if name in ("mm", "addmm", "matmul"):
        scaled_uniform_orthogonal_(weight.mT, gain, generator=generator)
    elif name.startswith("conv_transpose"):
        stride = given.get("stride", (1,))
        assert isinstance(stride, list | tuple)
        stride = stride[0] if len(stride) == 1 else stride
        transposed_delta_(weight, gain, stride=stride, groups=groups, generator=generator)
    elif name.startswith("conv"):
        delta_(weight, gain, groups=groups, generator=generator)
    else:
        scaled_uniform_orthogonal_(weight, gain, generator=generator)
