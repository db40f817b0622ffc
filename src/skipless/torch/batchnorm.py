"""BatchNorm taken into the layer before it, which in evaluation mode is an affine function, too."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import TensorMetadata

from .layers import CONVOLUTIONS, TRANSPOSED
from .roles import module, parameter, plain_operation

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def absorb_batch_norms_(model: fx.GraphModule) -> list[str]:
    r"""What could not be done: every BatchNorm that stays, and why.

    A layer $Wx + b$ that is read by nothing but $\gamma\,(y - \mu) / \sigma + \beta$ becomes
    $\frac{\gamma}{\sigma} W x + \frac{\gamma}{\sigma} (b - \mu) + \beta$, computed in float64.
    Graph and layers of `model` are changed.

    >>> two = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)).eval()
    >>> one = fx.symbolic_trace(two)
    >>> absorb_batch_norms_(one), len(list(one.graph.nodes))  # input, layer, output
    ([], 3)
    >>> x = torch.eye(2)[None]
    >>> torch.allclose(one(x), two(x))
    True
    """
    remaining: list[str] = []
    for node in list(model.graph.nodes):
        norm = module(model, node)
        if node.op == "call_function" and plain_operation(node) == "batch_norm":
            remaining.append(f"{node.name} stays a BatchNorm, for it is a function, not a module")
        if type(norm) not in _NORMS:
            continue
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        if (why := _obstacle(model, node, norm)) is not None:
            remaining.append(f"{node.target} stays a BatchNorm, for {why}")
            continue
        source = node.args[0]
        layer = module(model, source)
        assert layer is not None
        _absorb_(layer, norm)
        node.replace_all_uses_with(source)
        model.graph.erase_node(node)
    return remaining


def _obstacle(
    model: fx.GraphModule, node: fx.Node, norm: nn.modules.batchnorm._BatchNorm
) -> str | None:
    """Why the layer before cannot take `norm` in, or None if it can."""
    if norm.running_mean is None or norm.running_var is None:
        return "it normalises by the batch at hand"
    source = node.args[0] if node.args else None
    layer = module(model, source) if isinstance(source, fx.Node) else None
    if not isinstance(source, fx.Node) or not _is_affine(layer):
        return "no layer comes right before it"
    if len(source.users) > 1:
        return f"{source.target} is read by others as well"
    if norm.num_features != _outputs(layer):
        return f"it does not normalise what {source.target} puts out"
    # Of three dimensions a linear layer changes the last one, and BatchNorm the second.
    if isinstance(layer, nn.Linear) and len(_shape(source)) != 2:
        return f"it is not known to normalise the last dimension of {source.target}"
    if _used_elsewhere(model, layer):
        return f"the weights of {source.target} are used elsewhere"
    return None


def _shape(node: fx.Node) -> tuple[int, ...]:
    """The shape of what `node` computes, where an example was run; else none."""
    seen = node.meta.get("tensor_meta")
    return tuple(seen.shape) if isinstance(seen, TensorMetadata) else ()


def _used_elsewhere(model: fx.GraphModule, layer: nn.Module | None) -> bool:
    calls = [node for node in model.graph.nodes if module(model, node) is layer]
    others = [p for other in model.modules() if other is not layer for p in _own(other)]
    stored = [node for node in model.graph.nodes if node.op == "get_attr"]
    others += [p for node in stored if (p := parameter(model, str(node.target))) is not None]
    return len(calls) > 1 or bool({id(p) for p in others} & {id(p) for p in _own(layer)})


def _is_affine(layer: nn.Module | None) -> bool:
    known = type(layer) is nn.Linear or type(layer) in CONVOLUTIONS or type(layer) in TRANSPOSED
    # A weight that is itself computed, as under `parametrize`, is not there to be changed.
    return known and layer is not None and "weight" in layer._parameters


def _outputs(layer: nn.Module | None) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels  # pyright: ignore


def _own(owner: nn.Module | None) -> list[Tensor]:
    return [] if owner is None else list(owner.parameters(recurse=False))


def _absorb_(layer: nn.Module, norm: nn.modules.batchnorm._BatchNorm) -> None:
    weight, bias = layer.get_parameter("weight"), layer._parameters.get("bias")
    exact = lambda t: t.detach().to("cpu", torch.float64)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        factor = factor * exact(norm.weight)
    added = -exact(norm.running_mean) if bias is None else exact(bias) - exact(norm.running_mean)
    added = added * factor
    if norm.bias is not None:
        added = added + exact(norm.bias)
    if type(layer) in TRANSPOSED:  # whose weight is (inputs, outputs of a group, ...)
        groups: int = layer.groups  # pyright: ignore[reportAssignmentType]
        scaled = exact(weight).unflatten(0, (groups, -1))
        per_output = factor.reshape(groups, 1, -1, *[1] * (scaled.ndim - 3))
        scaled = (scaled * per_output).flatten(0, 1)
    else:
        scaled = exact(weight) * factor.reshape(-1, *[1] * (weight.ndim - 1))
    weight.data = scaled.to(weight)
    layer.bias = nn.Parameter(added.to(weight), weight.requires_grad)
