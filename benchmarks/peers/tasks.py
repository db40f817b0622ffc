"""The networks on which steps are timed, and how; for torch and for JAX."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

SLOPE = 0.5  # of leaky ReLU
CLASSES = 10
ROUNDS = 4
# What steps are spent on, in turn: of K-FAC with periods of 2 and 4 for factors and inverses, of
# singd with one of 2 for both, of SGD.
KFAC_KINDS = ("inverse", "plain", "curvature", "plain")
KINDS = {"sgd": ("step",), "singd": ("curvature", "plain")}

# Fully connected: batch, width, layers. Convolutional: batch, pixels a side, channels, layers.
MLP = (256, 256, 20)
CONVNET = (64, 8, 32, 6)
NETWORKS = {
    "mlp": "MLP, 20 layers of 256, batches of 256",
    "convnet": "6 layers of 3x3 convolutions, 32 channels, 8x8 images, batches of 64",
}


def medians(steps: dict[str, Callable[[], None]]) -> dict[str, dict[str, float]]:
    """Median seconds of the steps of each optimiser, by kind.

    They take turns, so that whatever else the machine does slows all of them down alike. A first
    round, which compiles, does not count.
    """
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in steps}
    for number in range(-len(KFAC_KINDS), len(KFAC_KINDS) * ROUNDS):
        for name, step in steps.items():
            kinds = KINDS.get(name, KFAC_KINDS)
            start = time.perf_counter()
            step()
            if number >= 0:
                found[name][kinds[number % len(kinds)]].append(time.perf_counter() - start)
    return {
        name: {kind: statistics.median(own) for kind, own in by.items()}
        for name, by in found.items()
    }
