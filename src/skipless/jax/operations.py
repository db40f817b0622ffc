"""JAX's primitives by what they mean to the theory."""

from __future__ import annotations

from typing import Any

from .record import Operation, Tensor

LAYOUTS = {"reshape", "transpose", "squeeze", "expand_dims", "copy", "convert_element_type"}
MOVES = {
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "dynamic_slice",
    "pad", "rev", "gather", "split", "tile",
}  # fmt: skip
APPROXIMATE_MOVES = {"reduce_window_max", "reduce_max"}
SUMS = {"reduce_sum", "reduce_window_sum"}
AFFINE = {"dot_general", "conv_general_dilated"}
ADDITIONS = {"add", "sub", "add_any"}
CONCATENATIONS = {"concatenate"}

# What has no maps: of what kind it is, and what can be done.
_APART = "shape the parts before and after it on their own"
UNKNOWN = ("", f"Leave it out of the traced function, or {_APART}.")
_LOOP = (" along the input", f"Leave the recurrent part out of the traced function, or {_APART}.")
PROBABILITIES = (
    " for probabilities or attention",
    "If it ends the network, let the loss compute it (softmax_cross_entropy of the logits); if it "
    f"is part of attention, leave that out of the traced function, or {_APART}.",
)
UNCOVERED = {
    "scan": _LOOP,
    "while": (
        " whose number of turns is not known",
        "Write layers as a Python loop, or with jax.lax.scan over their stacked parameters.",
    ),
    "cond": (
        " by a condition that depends on the input or is not known",
        "Give the arrays that decide it, and not their shapes only, or leave it out.",
    ),
    "stack": (" of arrays along a new axis", "Concatenate them along channels, or add them up."),
    "scan_results": (
        " of all its turns",
        "Return what the scan carries, or write its layers as a Python loop.",
    ),
    "gather": (
        " by indices that depend on the input, as an embedding does",
        "Trace the network that reads the vectors, and not the indices.",
    ),
}


def signals(op: Operation) -> list[Tensor]:
    """The inputs of `op` that depend on the network's input."""
    return [tensor for tensor in op.inputs if tensor.signal]


def weight_of(op: Operation) -> Tensor:
    """The input of a layer's operation that does not depend on the network's input."""
    return next(tensor for tensor in op.inputs if not tensor.signal)


def unmoved(tensor: Tensor) -> Tensor:
    """The constant that `tensor` is, before it was reshaped, transposed or converted."""
    while (op := tensor.operation) is not None and op.name in LAYOUTS | {"broadcast_in_dim"}:
        tensor = op.inputs[0]
    return tensor


def by_layers(tensor: Tensor) -> bool:
    """Whether the constant `tensor` was computed with products, as what layers return."""
    seen: set[Operation] = set()
    waiting = [tensor]
    while waiting:
        op = waiting.pop().operation
        if op is not None and op not in seen:
            if multiplies(op):
                return True
            seen.add(op)
            waiting += op.inputs
    return False


def multiplies(op: Operation) -> bool:
    """Whether `op` is a product, as those of layers are, or calls a function that has some."""
    return op.name in AFFINE or any(map(_has_products, op.parameters.values()))


def _has_products(parameter: Any) -> bool:
    """Whether the parameter of an operation is a jaxpr in which there are products."""
    equations = getattr(getattr(parameter, "jaxpr", parameter), "eqns", ())
    return any(
        e.primitive.name in AFFINE or any(map(_has_products, e.params.values())) for e in equations
    )


def origins(tensor: Tensor) -> set[Tensor]:
    """The arrays that were given, or are held, of which `tensor` is computed."""
    found: set[Tensor] = set()
    seen, waiting = {tensor}, [tensor]
    while waiting:
        current = waiting.pop()
        if current.operation is not None:
            new = set(current.operation.inputs) - seen
            seen |= new
            waiting += new
        elif current.parametric:
            found.add(current)
    return found


def fan_in(op: Operation, source: Tensor, weight: Tensor) -> tuple[int, bool]:
    """How many channels an output of a layer reads if there are groups, and if it reads its own.

    The number is 0 for a layer without groups, which reads all of them.
    """
    if op.name == "conv_general_dilated":
        groups = op.parameters["feature_group_count"]
        specification = op.parameters["dimension_numbers"]
        channels = source.shape[specification.lhs_spec[1]] // groups
        outputs = weight.shape[specification.rhs_spec[0]]
        return (channels, channels == 1 and outputs == groups) if groups > 1 else (0, False)
    (contracted, _), (batched, _) = op.parameters["dimension_numbers"]
    groups = bool(batched)
    channels = 1
    for axis in contracted:
        channels *= op.inputs[0].shape[axis]
    return (channels, False) if groups else (0, False)


def reduced(op: Operation) -> float:
    """How many numbers a sum or a window adds up."""
    if op.name == "reduce_window_sum":
        sizes = op.parameters["window_dimensions"]
    else:
        sizes = [op.inputs[0].shape[axis] for axis in op.parameters["axes"]]
    count = 1
    for size in sizes:
        count *= size
    return float(count)
