"""A Keras model as the theory sees it: trace(model) -> Graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import keras

from skipless.core.axes import demand_channels_apart
from skipless.core.graph import Graph
from skipless.core.signals import Notes, UnsupportedModelError

from .axes import Layout
from .reader import Reader, Step
from .record import Record, Tensor, record

__all__ = ["Reading", "UnsupportedModelError", "read", "trace"]


def trace(model: keras.Model, example: object = None) -> Graph:
    """The graph of a Functional or Sequential `model`, each node with the name of its layer.

    Models inside of it are read as if they were written out. Normalisation layers are passed over:
    the theory has no use for them. A softmax at the end belongs to the loss. What the theory does
    not cover, such as attention or products of branches, raises `UnsupportedModelError`.

    A Sequential model that has not been built needs an `example` of its input, or its shape.

    >>> dense = lambda: keras.layers.Dense(4, activation="relu")
    >>> trace(keras.Sequential([keras.Input((3,)), dense(), dense()])) == Graph.chain(2)
    True
    """
    return read(model, example).graph


@dataclass(frozen=True)
class Reading:
    """A model's graph, and how it lies in the record of the model's calls."""

    graph: Graph
    notes: Notes
    record: Record
    steps: Mapping[Tensor, Step]
    activations: Mapping[Tensor, str]


def read(model: keras.Model, example: object = None) -> Reading:
    """The graph of `model` in the record of its calls."""
    recorded = record(model, example)
    reader = Reader(recorded)
    graph = reader.read()
    demand_channels_apart(reader.steps, Layout())
    return Reading(graph, reader.notes, recorded, reader.steps, reader.activations)
