"""The layers that K-FAC covers: second moments of inputs and output gradients, and matrices.

A layer is a matrix that multiplies rows: the inputs of a Linear, the patches of a convolution, the
one-hot codes of an Embedding. A bias is the matrix's last column, for a last coordinate of 1.

Axes: groups come first everywhere, one matrix per group of a convolution and a single one for all
other layers; then rows = outputs, and columns = inputs (with taps and bias).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .moments import Scratch, at_least_float32, output_moments, patch_moments, row_moment
from .windows import Window

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_FORWARDS = {kind.forward for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)}


@dataclass(frozen=True, eq=False)
class FactoredLayer:
    """One matrix of a network, with the modules that multiply by it."""

    name: str
    module: nn.Module  # the first of those that share the weight
    weight: nn.Parameter
    bias: nn.Parameter | None  # if it is trained

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weight, and the bias if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def groups(self) -> int:
        """How many matrices the layer has."""
        return self.module.groups if isinstance(self.module, Convolution) else 1

    @property
    def diagonal(self) -> bool:
        """Whether the second moment of the rows is diagonal, and stored so: for one-hot codes."""
        return isinstance(self.module, nn.Embedding)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of each matrix."""
        if isinstance(self.module, nn.Embedding):
            return self.weight.shape[1], self.weight.shape[0]
        outputs = self.weight.shape[0] // self.groups
        return outputs, self.weight[0].numel() + (self.bias is not None)

    def input_moments(self, inputs: Tensor, stride: int, scratch: Scratch) -> tuple[Tensor, int]:
        """Second moments of the rows, summed, (groups, columns, columns), and their number.

        Only every `stride`-th example of a batch counts.
        """
        module, homogeneous = self.module, self.bias is not None
        if inputs.ndim < self.weight.ndim - self.diagonal:  # a single example
            inputs = inputs.unsqueeze(0)
        inputs = inputs[::stride]
        if isinstance(module, nn.Embedding):
            codes = inputs[_is_trained(module, inputs)]
            counts = torch.bincount(codes, minlength=module.num_embeddings)
            return counts.to(at_least_float32(self.weight)).unsqueeze(0), codes.numel()
        if isinstance(module, Convolution):
            return patch_moments(inputs, Window.of(module), homogeneous, scratch)
        rows = inputs.reshape(-1, inputs.shape[-1])
        return row_moment(rows, homogeneous).unsqueeze(0), len(rows)

    def output_moments(self, inputs: Tensor, scores: Tensor) -> Tensor:
        """Second moments of the scores at the outputs: (groups, rows, rows)."""
        module = self.module
        if isinstance(module, nn.Embedding):
            return row_moment(scores[_is_trained(module, inputs)], False).unsqueeze(0)
        if isinstance(module, Convolution):
            batch = scores if scores.ndim == self.weight.ndim else scores.unsqueeze(0)
            return output_moments(batch, self.groups)
        return row_moment(scores.reshape(-1, scores.shape[-1]), False).unsqueeze(0)

    def matrices(self, values: Mapping[nn.Parameter, Tensor], out: Tensor | None = None) -> Tensor:
        """Values of the weight and the bias, such as gradients, as (groups, rows, columns).

        Where one is missing, as for a parameter that is frozen by now, it is zero.
        """
        weight, *biases = (
            values[p] if p in values else torch.zeros_like(p, dtype=at_least_float32(p))
            for p in self.parameters
        )
        if out is None:
            out = torch.empty((self.groups, *self.shape), dtype=weight.dtype, device=weight.device)
        if self.diagonal:
            return out.copy_(weight.t().unsqueeze(0))
        of_weight = out[..., :-1] if biases else out
        of_weight.unflatten(2, weight.shape[1:]).copy_(weight.unflatten(0, (self.groups, -1)))
        for bias in biases:
            out[..., -1] = bias.view(self.groups, -1)
        return out

    def parts(self, matrices: Tensor) -> list[Tensor]:
        """The inverse of `matrices`: shaped like the weight, and the bias if there is one."""
        if self.diagonal:
            return [matrices[0].t()]
        if self.bias is None:
            return [matrices.reshape(self.weight.shape)]
        weight, bias = matrices[..., :-1], matrices[..., -1]
        return [weight.reshape(self.weight.shape), bias.reshape(self.bias.shape)]


def find_layers(model: nn.Module) -> tuple[list[FactoredLayer], dict[nn.Module, FactoredLayer]]:
    """The trainable layers of `model`, and the layer of each module.

    Modules that share weight and bias are one layer; other ways of sharing are not covered.
    """
    layers: list[FactoredLayer] = []
    by_module: dict[nn.Module, FactoredLayer] = {}
    owners_of = _owners(model)
    for name, module in model.named_modules():
        weight = _weight_of(module)
        if weight is None or not weight.requires_grad:
            continue
        owners = owners_of[weight]
        if owners[0] is not module or not _are_one_layer(owners, owners_of):
            continue
        bias = getattr(module, "bias", None)
        trained = bias if bias is not None and bias.requires_grad else None
        layers.append(FactoredLayer(name or type(module).__name__, module, weight, trained))
        by_module.update(dict.fromkeys(owners, layers[-1]))
    return layers, by_module


def _owners(model: nn.Module) -> dict[nn.Parameter, list[nn.Module]]:
    """For each parameter, the modules that hold it."""
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        for _, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if module not in (known := owners.setdefault(parameter, [])):
                known.append(module)
    return owners


def _weight_of(module: nn.Module) -> nn.Parameter | None:
    """The weight of a module that K-FAC covers, if it is a parameter."""
    if type(module).forward not in _FORWARDS:  # what it multiplies by may not be its weight
        return None
    if isinstance(module, nn.Embedding) and (module.scale_grad_by_freq or module.max_norm):
        return None
    return module._parameters.get("weight")  # None where it is computed, as by weight_norm


def _are_one_layer(
    modules: Sequence[nn.Module], owners_of: dict[nn.Parameter, list[nn.Module]]
) -> bool:
    """Whether modules with one weight multiply by it alike, and nothing else shares the bias."""
    bias = getattr(modules[0], "bias", None)
    is_shared = bias is not None and set(owners_of[bias]) != set(modules)
    return not is_shared and len(set(map(_use_of_weight, modules))) == 1


def _use_of_weight(module: nn.Module) -> tuple[object, ...]:
    reads = Window.of(module) if isinstance(module, Convolution) else None
    padding = module.padding_idx if isinstance(module, nn.Embedding) else None
    return type(module), id(getattr(module, "bias", None)), reads, padding


def _is_trained(module: nn.Embedding, codes: Tensor) -> Tensor:
    """Which codes have a trained embedding: all but the padding."""
    if module.padding_idx is None:
        return torch.ones_like(codes, dtype=torch.bool)
    return codes != module.padding_idx
