"""The record of a function, run again on other inputs and weights, with an eye on its q and c.

In names of dimensions, `_p` runs over pairs, `_l` over locations and `_c` over channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core.activations import Array
from skipless.core.samples import at_nodes

from .axes import Axes, all_axes, input_axes
from .operations import signals
from .record import Tensor
from .trace import Reading


class Replay:
    """Runs the record of `reading`, step by step, on inputs of the shape that it was made with."""

    def __init__(self, reading: Reading) -> None:
        self.graph = reading.graph
        self.input_axes = input_axes(reading)
        self._reading = reading
        self._tensors = reading.tensors()
        self._beginning = self._tensors[0][0]
        axes = all_axes(reading, self.input_axes, self._beginning)
        self._observed = {tensor: axes[tensor] for tensor, _ in self._tensors.values()}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of what the graph begins with, behind what normalises the inputs."""
        return self._beginning.shape

    def __call__(
        self,
        inputs: jax.Array,
        drawn: Mapping[Tensor, object],
        beginning: jax.Array | None = None,
    ) -> tuple[Array, Array]:
        """The q and c values of shape (live nodes, pairs), of weights that are `drawn`.

        With a `beginning`, that is what the graph begins with, whatever the inputs.
        """
        return at_nodes(self.graph, self._tensors, self._run(inputs, drawn, beginning))

    def _run(
        self, inputs: jax.Array, drawn: Mapping[Tensor, object], beginning: jax.Array | None
    ) -> dict[Tensor, tuple[jax.Array, jax.Array]]:
        record, samples = self._reading.record, len(inputs)
        seen: dict[Tensor, tuple[jax.Array, jax.Array]] = {}
        values: dict[Tensor, object] = {}
        readers = {tensor: len(users) for tensor, users in record.users.items()}

        def keep(tensor: Tensor, value: object) -> None:
            if tensor is self._beginning and beginning is not None:
                value = beginning
            if tensor in self._observed:
                seen[tensor] = _kernel(value, self._observed[tensor], samples)
            values[tensor] = value

        keep(record.input, inputs)
        for op in record.operations:
            if not signals(op):
                continue
            arguments = [values[t] if t.signal else self._constant(t, drawn) for t in op.inputs]
            for tensor, value in zip(op.outputs, op.run(*arguments), strict=True):
                keep(tensor, value)
            for tensor in {t for t in op.inputs if t.signal}:
                readers[tensor] -= 1
                if not readers[tensor]:
                    del values[tensor]
        return seen

    def _constant(self, tensor: Tensor, drawn: Mapping[Tensor, object]) -> object:
        value = drawn.get(tensor)
        value = self._reading.constants.array(tensor) if value is None else value
        if value is None:
            raise ValueError(
                "The function was to be run, but of an array that it uses only the shape "
                f"{tensor.shape} is known. Give arrays in place of jax.ShapeDtypeStruct."
            )
        return value


@partial(jax.jit, static_argnums=(1, 2))
def _kernel(x: jax.Array, axes: Axes, samples: int) -> tuple[jax.Array, jax.Array]:
    """The q and c value of each pair in a batch, averaged over locations.

    Locations where a sample is zero have no cosine and are left out of that average.
    """
    x = jnp.atleast_2d(x.T).T if x.ndim == 1 else x
    width = int(np.prod([x.shape[axis] for axis in axes.channels]))
    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    last = [x.ndim - len(axes.channels) + i for i in range(len(axes.channels))]
    x_plc = jnp.moveaxis(wide, (axes.batch, *axes.channels), (0, *last))
    x_plc = x_plc.reshape(samples, -1, width)
    first, second = x_plc[0::2], x_plc[1::2]
    q_1, q_2 = jnp.mean(first**2, axis=2), jnp.mean(second**2, axis=2)
    c_pl = jnp.mean(first * second, axis=2) / (jnp.sqrt(q_1) * jnp.sqrt(q_2))
    return jnp.mean(q_1 + q_2, axis=1) / 2.0, jnp.nanmean(jnp.clip(c_pl, -1.0, 1.0), axis=1)
