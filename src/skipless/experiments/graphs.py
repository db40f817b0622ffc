"""The graph that a MODEL of the command line stands for, without its weights."""

from __future__ import annotations

from collections.abc import Sequence

from skipless.core.graph import Graph

_MOST_LAYERS = 100_000


def graph_of(
    model: str, shortcut_weight: float | None = None, shape: Sequence[int] | None = None
) -> Graph:
    """The graph of mlp:DEPTH, of a network by name, or of the user's own factory, as converted.

    A chain needs no framework. A ResNet by name has no shortcuts unless a weight is given; in a
    factory's network the terms of sums then keep their proportions, as `convert` leaves them.

    >>> graph_of("mlp:100")
    Graph(201 nodes, 100 activations, depth 100)
    """
    family, colon, rest = model.partition(":")
    if colon and family not in ("mlp", "resnet", "wide_resnet"):
        return _converted(model, shortcut_weight, shape)
    if shape is not None:
        raise ValueError(
            f"An input shape was given, but the graph of {model} has none. Leave it out."
        )
    if colon and family == "mlp":
        return _chain(rest, shortcut_weight)
    return _named(model, shortcut_weight)


def _chain(text: str, shortcut_weight: float | None) -> Graph:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(
            f"MODEL 'mlp:{text}' was asked for; a chain is written as mlp:DEPTH, such as mlp:100."
        )
    depth = int(text)
    if shortcut_weight is not None:
        raise ValueError(
            f"A shortcut weight of {shortcut_weight:g} was asked for, but mlp:{depth} has no "
            "shortcuts. Leave it out."
        )
    if not 1 <= depth <= _MOST_LAYERS:
        raise ValueError(f"A depth of {depth} was asked for; it must be 1 to {_MOST_LAYERS}.")
    return Graph.chain(depth)


def _named(model: str, shortcut_weight: float | None) -> Graph:
    from skipless.core.methods import EOC
    from skipless.models import create_model
    from skipless.models.names import parsed

    weight = shortcut_weight
    if parsed(model)[0] != "mlp" and weight is None:
        weight = 0.0
    # Thin, as only its graph is wanted.
    width = 1 if parsed(model)[0] == "mlp" else 1 / 16
    network = create_model(
        model, width=width, input_size=32, num_classes=2, shortcut_weight=weight, method=EOC()
    )
    assert network.shaping is not None
    return network.shaping.graph


def _converted(model: str, shortcut_weight: float | None, shape: Sequence[int] | None) -> Graph:
    from skipless.core.rescale import in_residual_form, normalised_weights, reweighted
    from skipless.torch.trace import trace

    from .factories import imported, made

    graph = in_residual_form(trace(*made(model, imported(model), {}, shape)))
    return reweighted(graph, normalised_weights(graph, shortcut_weight))
