"""Figure 2: global C maps of ReLU networks (EOC) and TReLU networks by depth.

    skipless reproduce figure2 --scale cpu

The paper: with depth the C map of ReLU networks becomes flat at 1, that of TReLU networks (with
C_f(0) = 0.5) converges to a curve that is not. Depths are not named; we take 10 to 1,000.
"""

import numpy as np

from skipless.core.graph import Graph
from skipless.core.network import fold
from skipless.core.solution import EOC, TAT
from skipless.core.solve import solve
from skipless.core.theory import infinite_depth_c_map
from skipless.paper.item import Claim, Computed, Item, Judgement, Results, Series, Value, panels
from skipless.paper.scales import ScaleName

ETA = 0.5
DEPTHS = (10, 30, 100, 300, 1000)
SMOKE_DEPTHS = (10, 30)
METHODS = {"ReLU (EOC)": (EOC(), "relu"), "TReLU": (TAT(eta=ETA), "leaky_relu")}


def compute(scale: ScaleName) -> Computed:
    """C_f on a grid of c, for both methods at every depth."""
    c = np.linspace(-1.0, 1.0, 81)
    lines, values = [], []
    for name, (method, activation) in METHODS.items():
        for depth in SMOKE_DEPTHS if scale == "smoke" else DEPTHS:
            graph = Graph.chain(depth)
            solution = solve(graph, method, activation)
            mapped = fold(graph, solution.c_map, c)
            rounded = tuple(round(float(y), 6) for y in mapped)
            lines.append(Series(name, f"{depth} layers", tuple(map(float, c)), rounded))
            at_zero = float(fold(graph, solution.c_map, np.zeros(1))[0])
            wanted = ETA if name == "TReLU" else None
            values.append(Value(name, f"C_f(0), {depth} layers", round(at_zero, 9), wanted))
            limit = infinite_depth_c_map(c, ETA)
            gap = float(np.abs(np.asarray(mapped) - limit).max())
            if name == "TReLU":
                values.append(Value(name, f"distance to the limit, {depth} layers", round(gap, 6)))
    return Computed(tuple(values), tuple(lines))


def _flat(results: Results) -> Judgement:
    ends = {n: results.value("ReLU (EOC)", f"C_f(0), {n} layers") for n in DEPTHS}
    if np.isnan(list(ends.values())).any():
        return None, ""
    told = ", ".join(f"{n} layers: {value:.4f}" for n, value in ends.items())
    rising = all(np.diff(list(ends.values())) > 0)
    return bool(rising and ends[DEPTHS[-1]] > 0.999), f"C_f(0) at {told}"


def _converges(results: Results) -> Judgement:
    gaps = {n: results.value("TReLU", f"distance to the limit, {n} layers") for n in DEPTHS}
    if np.isnan(list(gaps.values())).any():
        return None, ""
    told = ", ".join(f"{n} layers: {value:.2g}" for n, value in gaps.items())
    falling = all(np.diff(list(gaps.values())) < 0)
    return bool(falling and gaps[DEPTHS[-1]] < 0.001), f"largest distance at {told}"


ITEM = Item(
    name="figure2",
    title="Figure 2: global C maps by depth",
    label="fig:cvalue",
    minutes={"cpu": 1},
    introduction="What whole networks make of the cosine similarity of two inputs. Under EOC all "
    "outputs become alike with depth; under TAT, with C_f(0) = 0.5, the map converges.",
    claims=(
        Claim("With depth, the C map of ReLU networks becomes flat at 1", _flat),
        Claim("The C map of TReLU networks converges to that of proposition 3", _converges),
    ),
    compute=compute,
    charts=lambda r: panels(r.lines, "c of the inputs", "c of the outputs", -1.0, 1.0),
)
