"""Curvature by brute force: one label, one patch, one position at a time, and dense inverses."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Array = np.ndarray
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def summed_loss(outputs: Tensor, labels: Tensor, loss: str) -> Tensor:
    """PyTorch's loss of that name, summed."""
    match loss:
        case "cross_entropy":
            return F.cross_entropy(outputs, labels, reduction="sum")
        case "binary_cross_entropy":
            return F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")
        case _:
            return F.mse_loss(outputs, labels, reduction="sum")


def all_labels(output: Tensor, loss: str) -> list[tuple[float, Tensor]]:
    """Every label that the network can predict for the output of one example, and how likely.

    For `mse` labels are normal, of variance 1/2; two points at that distance have the same first
    and second moments, and the scores are linear in them.
    """
    output = output.detach()
    if loss == "cross_entropy":
        likely = output.softmax(dim=0).reshape(len(output), -1)
        return [
            (
                float(prod(likely[label, place] for place, label in enumerate(labels))),
                torch.tensor(labels).reshape(output.shape[1:]),
            )
            for labels in itertools.product(range(len(output)), repeat=likely.shape[1])
        ]
    found = []
    for bits in itertools.product((0.0, 1.0), repeat=output.numel()):
        sides = torch.tensor(bits, dtype=output.dtype).reshape(output.shape)
        if loss == "mse":
            found.append((0.5 ** output.numel(), output + (2 * sides - 1) * 0.5**0.5))
        else:
            likely = output.sigmoid()
            found.append((float((sides * likely + (1 - sides) * (1 - likely)).prod()), sides))
    return found


def terms(outputs: Tensor, loss: str) -> int:
    """What reduction="mean" divides by."""
    return outputs[:, 0].numel() if loss == "cross_entropy" else outputs.numel()


@dataclass
class Factors:
    """The two factors of each group of a layer: second moments of inputs, and of scores."""

    inputs: list[Array]
    outputs: list[Array]


def brute_force_factors(
    model: nn.Module,
    inputs: Tensor,
    loss: str,
    *,
    divisor: int | None = None,
    same: dict[nn.Module, nn.Module] | None = None,
) -> dict[nn.Module, Factors]:
    """The factors of every layer with the expectation over all labels; `same` layers are one."""
    same = same or {}
    outputs, uses = uses_of_layers(model, inputs)
    rows: dict[nn.Module, list[list[Array]]] = {}
    moments: dict[nn.Module, list[Array]] = {}
    for used, entered, _ in uses:
        new = input_rows(used, entered)
        known = rows.setdefault(same.get(used, used), [[] for _ in new])
        for own, more in zip(known, new, strict=True):
            own.extend(more)
    for index in range(len(outputs)):
        for probability, label in all_labels(outputs[index], loss):
            score = summed_loss(outputs[index : index + 1], label[None], loss)
            back = torch.autograd.grad(score, [out for *_, out in uses], retain_graph=True)
            for (used, entered, _), gradient in zip(uses, back, strict=True):
                new = [outer_products(own) for own in output_rows(used, entered, gradient)]
                known = moments.setdefault(same.get(used, used), [np.zeros_like(m) for m in new])
                for own, more in zip(known, new, strict=True):
                    own += probability * more
    divisor = divisor or terms(outputs, loss)
    return {
        module: Factors(
            [outer_products(own) / len(own) for own in rows[module]],
            [own / divisor for own in moments[module]],
        )
        for module in rows
    }


def uses_of_layers(
    model: nn.Module, inputs: Tensor
) -> tuple[Tensor, list[tuple[nn.Module, Tensor, Tensor]]]:
    """What comes out of the network, and what went into each layer and came out of it."""
    uses: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, entered: tuple[Tensor, ...], came: Tensor) -> None:
        uses.append((module, entered[0].detach(), came))

    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Embedding, *CONVOLUTIONS))]
    handles = [layer.register_forward_hook(note) for layer in layers]
    outputs = model(inputs)
    for handle in handles:
        handle.remove()
    return outputs, uses


def outer_products(rows: list[Array]) -> Array:
    """The sum of each row's product with itself."""
    total = np.zeros((len(rows[0]), len(rows[0])))
    for row in rows:
        total += np.outer(row, row)
    return total


def input_rows(module: nn.Module, entered: Tensor) -> list[list[Array]]:
    """For each group what the layer's matrix multiplies, one row after another."""
    values = entered.numpy()
    if isinstance(module, nn.Embedding):
        codes = np.eye(module.num_embeddings)
        return [[codes[code] for code in values.flatten() if code != module.padding_idx]]
    homogeneous = [] if module.bias is None else [1.0]
    if isinstance(module, nn.Linear):
        flat = values.reshape(-1, values.shape[-1])
        return [[np.append(row, homogeneous) for row in flat]]
    assert isinstance(module, CONVOLUTIONS)
    with torch.no_grad():
        positions = module(entered).shape[2:]
    width = module.in_channels // module.groups
    return [
        [
            np.append(patch(module, example[group * width : (group + 1) * width], at), homogeneous)
            for example in values
            for at in itertools.product(*map(range, positions))
        ]
        for group in range(module.groups)
    ]


def patch(module: nn.Module, image: Array, at: tuple[int, ...]) -> Array:
    """What a convolution reads of channels at one position of its output, pixel by pixel."""
    assert isinstance(module, CONVOLUTIONS)
    read = []
    for channel in image:
        for tap in itertools.product(*map(range, module.kernel_size)):
            place = []
            for axis, (position, offset) in enumerate(zip(at, tap, strict=True)):
                reach = module.dilation[axis] * (module.kernel_size[axis] - 1)
                before = reach // 2 if module.padding == "same" else int(module.padding[axis])
                index = position * module.stride[axis] + offset * module.dilation[axis] - before
                if module.padding_mode == "circular":
                    index %= channel.shape[axis]
                place.append(index)
            inside = all(0 <= i < size for i, size in zip(place, channel.shape, strict=True))
            read.append(channel[tuple(place)] if inside else 0.0)
    return np.array(read)


def output_rows(module: nn.Module, entered: Tensor, gradient: Tensor) -> list[list[Array]]:
    """For each group what comes back to the layer's outputs, one row after another."""
    values = gradient.numpy()
    if isinstance(module, nn.Embedding):
        counted = entered.numpy().flatten() != module.padding_idx
        return [list(values.reshape(-1, values.shape[-1])[counted])]
    if isinstance(module, nn.Linear):
        return [list(values.reshape(-1, values.shape[-1]))]
    assert isinstance(module, CONVOLUTIONS)
    width = module.out_channels // module.groups
    return [
        [
            example[(slice(group * width, (group + 1) * width), *at)]
            for example in values
            for at in itertools.product(*map(range, example.shape[1:]))
        ]
        for group in range(module.groups)
    ]


def dense_fisher(
    model: nn.Module, inputs: Tensor, loss: str, *, divisor: int | None = None
) -> Array:
    """The whole Fisher matrix, J^T H J by automatic differentiation."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    outputs = model(inputs).detach()
    labels = outputs.argmax(dim=1) if loss == "cross_entropy" else torch.zeros_like(outputs)

    def forward(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, (inputs,)).flatten()

    size = outputs.numel()
    jacobians = torch.func.jacrev(forward)(parameters)
    jacobian = torch.cat([own.reshape(size, -1) for own in jacobians.values()], dim=1)
    hessian = torch.func.jacrev(torch.func.jacrev(summed_loss))(outputs, labels, loss)
    whole = jacobian.T @ hessian.reshape(size, size) @ jacobian
    return whole.numpy() / (divisor or terms(outputs, loss))


def damped_inverse(inputs: Array, outputs: Array, damping: float) -> Array:
    """The dense inverse of one layer's curvature with factored Tikhonov damping.

    Matrices are laid out row by row, so the factor of the outputs comes first. With a factor that
    is a single number there is nothing to factor, and the damping is added to the product.
    """
    identities = np.eye(len(inputs)), np.eye(len(outputs))
    if min(len(inputs), len(outputs)) == 1:
        return np.linalg.inv(np.kron(outputs, inputs) + damping * np.kron(*identities))
    pi = np.sqrt((np.trace(inputs) / len(inputs)) / (np.trace(outputs) / len(outputs)))
    of_inputs = inputs + pi * np.sqrt(damping) * identities[0]
    of_outputs = outputs + np.sqrt(damping) / pi * identities[1]
    return np.linalg.inv(np.kron(of_outputs, of_inputs))


@dataclass(frozen=True)
class Vectors:
    """What belongs to the parameters of a network, in one vector, in their order."""

    model: nn.Module

    @property
    def places(self) -> dict[str, slice]:
        """Where each parameter is."""
        sizes = {name: p.numel() for name, p in self.model.named_parameters()}
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}

    @property
    def values(self) -> Array:
        """The parameters."""
        return _flat(p.detach() for p in self.model.parameters())

    @property
    def penalised(self) -> Array:
        """1 for weights, 0 for biases and the like."""
        return _flat(torch.full_like(p, p.ndim > 1) for p in self.model.parameters())

    def gradient(self, loss: Tensor) -> Array:
        """The gradient of the loss."""
        return _flat(torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True))

    def indices(self, module: nn.Module) -> list[Array]:
        """For each group where a layer's parameters are, along the rows of its matrix."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        weight = _range(self.places[names[id(module.weight)]])
        if isinstance(module, nn.Embedding):
            return [weight.reshape(module.weight.shape).T.flatten()]
        assert isinstance(module, (nn.Linear, *CONVOLUTIONS))
        groups = module.groups if isinstance(module, CONVOLUTIONS) else 1
        matrix = weight.reshape(groups, len(module.weight) // groups, -1)
        if module.bias is not None:
            bias = _range(self.places[names[id(module.bias)]])
            matrix = np.concatenate([matrix, bias.reshape(groups, -1, 1)], axis=2)
        return [own.flatten() for own in matrix]


@dataclass
class DenseKFAC:
    """K-FAC with dense matrices; weighted means over all factors that there were so far."""

    model: nn.Module
    damping: float
    l2: float = 0.0
    ema: float = 0.0
    loss: str = "cross_entropy"
    same: dict[nn.Module, nn.Module] | None = None

    def __post_init__(self) -> None:
        self.vectors = Vectors(self.model)
        self.seen: list[dict[nn.Module, Factors]] = []

    def see(self, inputs: Tensor) -> None:
        """Measure the factors."""
        self.seen.append(brute_force_factors(self.model, inputs, self.loss, same=self.same))

    def factors(self, module: nn.Module) -> list[tuple[Array, Array]]:
        """The running means of a layer's factors, for each group."""
        weights = np.array([self.ema**age for age in reversed(range(len(self.seen)))])
        weights /= weights.sum()
        known = [seen[module] for seen in self.seen]
        return [
            (
                np.tensordot(weights, [own.inputs[group] for own in known], axes=1),
                np.tensordot(weights, [own.outputs[group] for own in known], axes=1),
            )
            for group in range(len(known[0].inputs))
        ]

    def gradient(self, loss: Tensor) -> Array:
        """The gradient of the loss and of the penalty."""
        vectors = self.vectors
        return vectors.gradient(loss) + self.l2 * vectors.penalised * vectors.values

    def direction(self, gradient: Array) -> Array:
        """The damped inverse of the curvature times the gradient, layer by layer."""
        found = np.zeros_like(gradient)
        for module in self.seen[0]:
            for own, group in zip(self.factors(module), self.vectors.indices(module), strict=True):
                found[group] = damped_inverse(*own, self.damping + self.l2) @ gradient[group]
        return found

    def curvature(self) -> Array:
        """The whole matrix, not damped: Kronecker products in its blocks."""
        size = len(self.vectors.values)
        whole = np.zeros((size, size))
        for module in self.seen[0]:
            for own, group in zip(self.factors(module), self.vectors.indices(module), strict=True):
                whole[np.ix_(group, group)] = np.kron(own[1], own[0])
        return whole


def _flat(tensors: Iterable[Tensor]) -> Array:
    return np.concatenate([tensor.flatten().numpy() for tensor in tensors])


def _range(place: slice) -> Array:
    return np.arange(place.start, place.stop)
