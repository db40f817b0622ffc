"""What a run would be, told before it starts: `skipless train --dry-run`."""

from __future__ import annotations

import numpy as np

from skipless.core.network import fold
from skipless.report.tables import table
from skipless.train.batches import Batches
from skipless.train.memory import Memory

from .configuration import Configuration
from .training import USUAL_RATES, Assembly

_COSINES = (-1.0, 0.0, 0.5, 0.9)


def told(configuration: Configuration, parts: Assembly, memory: Memory) -> str:
    """The resolved configuration, the network, its C map and the memory, as text."""
    settings = {**configuration.as_mapping(), "channels_last": parts.settings.channels_last}
    settings["workers"] = parts.settings.workers
    if configuration.lr is None:
        settings["lr"] = USUAL_RATES[configuration.optimizer]
    rows = [[name, _value(value)] for name, value in settings.items() if value is not None]
    classes = parts.settings.classes_per_batch
    batches = Batches(parts.data.train, parts.settings.batch_size, classes_per_batch=classes)
    total = parts.settings.steps or parts.settings.epochs * batches.steps
    return "\n\n".join(
        [
            table(["option", "value"], rows),
            f"{type(parts.model).__name__} with {parts.parameters:,} parameters; "
            f"{len(parts.data.train):,} images of shape {parts.data.shape} for training and "
            f"{len(parts.data.validation):,} for validation; {total:,} steps, {batches.steps:,} an "
            "epoch.",
            _kernel(parts),
            _memory(memory),
        ]
    )


def _kernel(parts: Assembly) -> str:
    """The predicted C map in numbers."""
    shaping = parts.model.shaping
    if shaping is None:
        return "The kernel is not shaped: the network is normalised, or its slopes are trained."
    graph, solution = shaping.graph, shaping.solution
    found = fold(graph, solution.c_map, np.array(_COSINES))
    rows = [[f"C_f({c:g})", f"{value:.4f}"] for c, value in zip(_COSINES, found, strict=True)]
    rows += [[k, f"{v:.6g}"] for k, v in solution.parameters.items() if v is not None]
    head = f"{shaping.method}, {graph.depth} activations, {solution.activation}:"
    return f"{head}\n\n{table(['predicted', 'value'], rows)}"


def _memory(memory: Memory) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimiser": memory.optimizer,
        "activations": memory.activations,
        "their gradients": memory.passing,
        **({"teacher": memory.teacher} if memory.teacher else {}),
        "together": memory.total,
    }
    rows = [[name, f"{size / 2**20:,.1f} MiB"] for name, size in parts.items()]
    return table(["memory, about, beside PyTorch itself", ""], rows)


def _value(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
