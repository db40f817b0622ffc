"""How long `solve` takes: every method and activation, beside DeepMind's dks, and by depth.

    make bench

The first solve with an activation traces its solution curves ("first"); later ones, for any network
and target, only follow them ("warm", the median of several). The peer does the same work for the
same network in the same process; the ratio is what counts on a noisy machine.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

from skipless import DKS, EOC, TAT, Graph, UnreachableTargetError, activation_names, solve
from skipless.core.solution import Method
from skipless.tables import table

DEPTH = 50
PEER_CASES = (
    ("TAT", "leaky_relu"),
    ("TAT", "tanh"),
    ("TAT", "softplus"),
    ("DKS", "leaky_relu"),
    ("DKS", "softplus"),
    ("DKS", "tanh"),
    ("DKS", "elu"),
)
METHODS: dict[str, Method] = {
    "TAT": TAT(),
    "DKS": DKS(),
    "EOC": EOC(),
    "EOC, σ_b = 0.45": EOC(sigma_b=0.45),  # which has solutions for some that EOC() has not
}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def warm(work: Callable[[], object], repeats: int = 15) -> float:
    return statistics.median(seconds(work) for _ in range(repeats))


def every_activation() -> None:
    graph, rows, refused = Graph.chain(DEPTH), [], []
    for name, method in METHODS.items():
        for phi in activation_names():
            work = partial(solve, graph, method, phi)
            try:
                first = seconds(work)
            except UnreachableTargetError:
                refused.append(f"{name} {phi}")
                continue
            residual = f"{work().largest_residual:.0e}"
            rows.append([name, phi, f"{1e3 * first:.1f}", f"{1e3 * warm(work):.2f}", residual])
    print(f"Every method and activation at depth {DEPTH}, in milliseconds:\n")
    print(table(["method", "activation", "first", "warm", "residual"], rows))
    print(f"\nWithout a solution at these targets: {', '.join(refused)}.")


def beside_dks() -> None:
    try:
        from dks.base.activation_transform import (  # pyright: ignore[reportMissingImports]
            get_transformed_activations,
        )
    except ModuleNotFoundError:
        print("\ndks is not installed; no comparison.")
        return

    def subnet_max(x: float, r: Callable[[float], float]) -> float:
        for _ in range(DEPTH):  # the C map of the network, which a user of dks writes by hand
            x = r(x)
        return x

    graph, rows = Graph.chain(DEPTH), []
    for method, phi in PEER_CASES:
        peer = partial(
            get_transformed_activations, [phi], method=method, subnet_max_func=subnet_max
        )
        theirs = min(seconds(peer) for _ in range(2))
        ours = warm(partial(solve, graph, METHODS[method], phi))
        rows.append(
            [method, phi, f"{1e3 * theirs:.1f}", f"{1e3 * ours:.2f}", f"{theirs / ours:.0f}x"]
        )
    print(f"\nBeside dks at depth {DEPTH}, in milliseconds:\n")
    print(table(["method", "activation", "dks", "skipless", "faster"], rows))


def by_depth() -> None:
    depths = (10, 100, 1_000, 10_000)
    rows = []
    for name, phi in (("TAT", "leaky_relu"), ("TAT", "tanh"), ("DKS", "tanh")):
        times = []
        for depth in depths:
            graph = Graph.chain(depth)
            method = TAT(eta=0.5) if name == "TAT" else METHODS[name]
            work = partial(solve, graph, method, phi)
            work()
            times.append(warm(work, repeats=5))
        per_layer = times[-1] / times[1] * depths[1] / depths[-1]
        rows.append([f"{name} {phi}", *(f"{1e3 * t:.2f}" for t in times), f"{per_layer:.2f}"])
    print(
        "\nWarm solves by depth, in milliseconds; the last column is the cost of a layer at depth"
    )
    print("10,000 as a multiple of that at depth 100:\n")
    print(table(["", *(f"{d:,}" for d in depths), "per layer"], rows))


def main() -> None:
    # ReLU's dropped condition, and overflows inside of dks.
    warnings.simplefilter("ignore")
    every_activation()
    beside_dks()
    by_depth()


if __name__ == "__main__":
    main()
