"""Initial weights of a whole model, also of layers that it writes as functions of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from .init import (
    Distribution,
    delta_,
    gaussian_fan_in_,
    initialize_,
    scaled_uniform_orthogonal_,
    transposed_delta_,
)
from .operations import AFFINE, operation, origin
from .reader import UnsupportedModelError


def draw_(
    model: nn.Module,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
    generator: torch.Generator | None = None,
) -> list[str]:
    """Names of the parameters left as they were, after drawing all others in place.

    As `initialize_`, and of a `torch.fx.GraphModule` also the weights of layers that are functions.
    """
    untouched = initialize_(
        model,
        sigma_w=sigma_w,
        sigma_b=sigma_b,
        distribution=distribution,
        generator=generator,
    )
    drawn: set[str] = set()
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    for node in nodes:
        if node.op != "call_function" or operation(node) not in AFFINE:
            continue
        given = _arguments(node)
        weight, bias = (_parameter(given.get(name)) for name in ("weight", "bias"))
        if weight is None:
            raise UnsupportedModelError(
                f"{origin(node)} computes {operation(node)} with something that is no parameter of "
                "the model, so that it cannot be drawn. Remove weight normalisation and the like, "
                "or write the layer as nn.Linear or nn.Conv2d."
            )
        if weight not in drawn:
            tensor = model.get_parameter(weight).detach()
            _draw_weight_(operation(node), tensor, given, sigma_w, distribution, generator)
        if bias is not None and bias not in drawn:
            tensor = model.get_parameter(bias).detach()
            device = tensor.device if generator is None else generator.device
            noise = torch.randn(tensor.shape, generator=generator, device=device)
            tensor.copy_(sigma_b * noise)
        drawn.update(name for name in (weight, bias) if name is not None)
    return [name for name in untouched if name not in drawn]


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


def _draw_weight_(
    name: str,
    weight: Tensor,
    given: Mapping[str, object],
    gain: float,
    distribution: Distribution,
    generator: torch.Generator | None,
) -> None:
    groups = given.get("groups", 1)
    assert isinstance(groups, int)
    matrix = scaled_uniform_orthogonal_ if distribution == "orthogonal" else gaussian_fan_in_
    if name in ("mm", "addmm", "matmul"):
        matrix(weight.mT, gain, generator=generator)
    elif name.startswith("conv_transpose"):
        stride = given.get("stride", (1,))
        assert isinstance(stride, list | tuple)
        stride = stride[0] if len(stride) == 1 else stride
        transposed_delta_(
            weight,
            gain,
            stride=stride,
            groups=groups,
            distribution=distribution,
            generator=generator,
        )
    elif name.startswith("conv"):
        delta_(weight, gain, groups=groups, distribution=distribution, generator=generator)
    else:
        matrix(weight, gain, generator=generator)
