"""Copies of a model's layers with new initial weights."""

from __future__ import annotations

import math
import random
from typing import Any

import keras
from keras import layers

from skipless.core.signals import UnsupportedModelError

from .activations import Config
from .init import DeltaOrthogonal, DepthwiseDelta, ScaledUniformOrthogonal, TransposedDelta
from .operations import AFFINE, CONVOLUTIONS, DEPTHWISE, SEPARABLE, TRANSPOSED, stock


class Copies:
    """Layers and operations made anew from their configurations, each once.

    Layers with weights lose their activation, which becomes a layer of its own, and get the
    initialisers of the theory.
    """

    def __init__(self, sigma_w: float, sigma_b: float, seed: int | None) -> None:
        self.sigma_w, self.sigma_b = sigma_w, sigma_b
        self.untouched: list[str] = []
        self._random = random.Random(seed)
        self._made: dict[int, Any] = {}
        self._kept: list[object] = []  # so that no id is given twice
        self._names: set[str] = set()

    def of(self, operation: Any, path: str, with_bias: bool) -> Any:
        """The copy of an operation."""
        if id(operation) not in self._made:
            self._kept.append(operation)
            config = operation.get_config()
            if isinstance(operation, layers.Layer):
                config["name"] = self.free(operation.name, path)
            if stock(operation, AFFINE):
                config |= self._drawn(operation, path)
                config["use_bias"] = config.get("use_bias", True) or with_bias
            elif isinstance(operation, layers.Layer) and operation.trainable_variables:
                self.untouched.append(path)
            self._made[id(operation)] = type(operation).from_config(config)
        return self._made[id(operation)]

    def free(self, name: str, path: str) -> str:
        """A name that no other layer has: the same, or the whole path, or one with a number."""
        number, whole = 1, path.replace("/", "_")
        candidate = name
        while candidate in self._names:
            candidate = whole if whole not in self._names else f"{whole}_{number}"
            number += 1
        self._names.add(candidate)
        return candidate

    def _drawn(self, layer: Any, path: str) -> Config:
        seed, gain = self._seed(), self.sigma_w
        config: Config = {"activation": None, "bias_initializer": "zeros"}
        if self.sigma_b:
            bias = keras.initializers.RandomNormal(stddev=self.sigma_b, seed=self._seed())
            config["bias_initializer"] = bias
        if isinstance(layer, SEPARABLE):
            config["depthwise_initializer"] = DepthwiseDelta(gain, seed=seed)
            pointwise = ScaledUniformOrthogonal(gain, seed=self._seed())
            config["pointwise_initializer"] = pointwise
        elif isinstance(layer, DEPTHWISE):
            config["depthwise_initializer"] = DepthwiseDelta(gain, seed=seed)
        elif isinstance(layer, TRANSPOSED):
            _demand_no_gaps(layer, path)
            config["kernel_initializer"] = TransposedDelta(layer.strides, gain, seed=seed)
        elif isinstance(layer, CONVOLUTIONS):
            config["kernel_initializer"] = DeltaOrthogonal(
                gain, groups=layer.groups, tap=_tap(layer), seed=seed
            )
        elif isinstance(layer, layers.Dense):
            config["kernel_initializer"] = ScaledUniformOrthogonal(gain, seed=seed)
        else:
            raise UnsupportedModelError(
                f"{path} ({type(layer).__name__}) has weights of a shape that the theory's "
                "distributions are not made for. Write it as a Dense layer."
            )
        return config

    def _seed(self) -> int:
        return self._random.randrange(2**31)


def _tap(layer: Any) -> tuple[int, ...] | None:
    """The tap that reads the location itself, where it is not the centre."""
    # Causal padding is all in front. Of Keras' layers only Conv1D has it.
    return tuple(size - 1 for size in layer.kernel_size) if layer.padding == "causal" else None


def _demand_no_gaps(layer: Any, path: str) -> None:
    axes = zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True)
    if any(size < step or math.gcd(step, space) > 1 for size, step, space in axes):
        raise UnsupportedModelError(
            f"{path}, a transposed convolution with kernel {layer.kernel_size}, strides "
            f"{layer.strides} and dilation {layer.dilation_rate}, cannot reach all locations and "
            "would leave q = 0 at others. Use a kernel at least as large as the stride, and no "
            "dilation."
        )
