"""The items without training: table 1, and figures 2 and 4. See `tables` for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skipless.core.graph import Graph
from skipless.core.maps import c_map_curvature, c_map_slope, q_map, q_map_slope
from skipless.core.network import fold
from skipless.core.solution import DKS, EOC, TAT, Method, Solution
from skipless.core.solve import solve
from skipless.core.theory import infinite_depth_c_map
from skipless.report.sections import word

from .claims import NOT_RUN, Judgement, judge_all
from .item import Item, panel_charts
from .results import Results, Series, Value
from .scales import ScaleName

if TYPE_CHECKING:
    from skipless.core.bands import Distribution
    from skipless.core.measure import Check

METHODS: dict[str, tuple[Method, str]] = {
    "EOC (smooth)": (EOC(sigma_b=0.2), "tanh"),
    "EOC (LReLU)": (EOC(), "relu"),
    "DKS": (DKS(zeta=1.5), "softplus"),
    "TAT (smooth)": (TAT(tau=0.3), "tanh"),
    "TAT (LReLU)": (TAT(eta=0.9), "leaky_relu"),
}
# In an EOC network with biases, q is the fixed point of its Q map.
CONDITIONS: dict[str, dict[str, float]] = {
    "EOC (smooth)": {"Q(q∞) / q∞": 1.0, "C'(1)": 1.0},
    "EOC (LReLU)": {"Q(1)": 1.0, "Q(4) / 4": 1.0, "C'(1)": 1.0},
    "DKS": {"Q(1)": 1.0, "Q'(1)": 1.0, "C_f(0)": 0.0, "C_f'(1)": 1.5},
    "TAT (smooth)": {"Q(1)": 1.0, "Q'(1)": 1.0, "C_f'(1)": 1.0, "C_f''(1)": 0.3},
    "TAT (LReLU)": {"Q(1)": 1.0, "Q(4) / 4": 1.0, "C_f'(1)": 1.0, "C_f(0)": 0.9},
}
TOLERANCE = 1e-8  # of each condition


def table1() -> Item:
    """The conditions that each method sets, computed without the solver's own residuals."""
    return Item(
        title="Table 1: the conditions of each method",
        label="table:comparison",
        minutes=1,
        introduction="The conditions that each method sets for a network, here a chain of 100 "
        "layers, and what its solution reaches, computed by quadrature from the shaped activation. "
        "C_f(0), the similarity of outputs of unrelated inputs, is added if it is not one of them.",
        claims={
            "Every solution meets the conditions of its method": _meets_conditions,
            (
                "Only EOC with ReLU maps unrelated inputs to almost the same output, C_f(0) > 0.99"
            ): _only_eoc_degenerates,
        },
        compute=_compute_conditions,
    )


def _compute_conditions(scale: ScaleName) -> tuple[list[Value], list[Series]]:
    """Every condition of every method, beside what it should be, and C_f(0) of all of them."""
    values = []
    graph = Graph.chain(20 if scale == "smoke" else 100)
    for name, (method, activation) in METHODS.items():
        solution, wanted = solve(graph, method, activation), CONDITIONS[name]
        for condition in dict.fromkeys((*wanted, "C_f(0)")):
            value = _condition(condition, graph, solution)
            values.append(Value(name, condition, float(f"{value:.12g}"), wanted.get(condition)))
    return values, []


def _condition(name: str, graph: Graph, solution: Solution) -> float:
    # c_map_slope is that of the activation alone; weights and biases change it by this factor.
    mixed = solution.sigma_w**2 * q_map(solution.shaped, solution.q) / solution.q
    slope = mixed * float(c_map_slope(solution.shaped, 1.0, solution.q))
    curvature = lambda: float(c_map_curvature(solution.shaped, 1.0, solution.q))
    conditions: dict[str, Callable[[], float]] = {
        "Q(1)": lambda: solution.q_map(1.0),
        "Q(q∞) / q∞": lambda: solution.q_map(solution.q) / solution.q,
        "Q(4) / 4": lambda: solution.q_map(4.0) / 4.0,
        "Q'(1)": lambda: solution.sigma_w**2 * q_map_slope(solution.shaped, 1.0),
        "C_f(0)": lambda: float(fold(graph, solution.c_map, np.zeros(1))[0]),
        "C'(1)": lambda: slope,
        "C_f'(1)": lambda: fold(graph, lambda s: slope * s, 1.0),
        "C_f''(1)": lambda: fold(graph, lambda k: curvature() + k, 0.0),
    }
    return conditions[name]()


def _meets_conditions(results: Results) -> Judgement:
    misses = [(abs(v.value - v.wanted), v) for v in results.values if v.wanted is not None]
    if not misses:
        return NOT_RUN
    miss, worst = max(misses, key=lambda pair: pair[0])
    place = f"{worst.row}, {worst.column}"
    words = f"{len(misses)} conditions, the largest miss is {miss:.1g} ({place})"
    return word(miss <= TOLERANCE), words


def _only_eoc_degenerates(results: Results) -> Judgement:
    ends = {name: results.value(name, "C_f(0)") for name in METHODS}
    if any(math.isnan(end) for end in ends.values()):
        return NOT_RUN
    words = ", ".join(f"{name} {value:.3f}" for name, value in ends.items())
    return word([name for name, end in ends.items() if end > 0.99] == ["EOC (LReLU)"]), words


DEPTHS = (10, 30, 100, 300, 1000)  # of figure 2


def figure2() -> Item:
    """Global C maps of ReLU networks (EOC) and TReLU networks by depth.

    The paper: with depth the C map of ReLU networks becomes flat at 1, that of TReLU networks (with
    C_f(0) = 0.5) converges to a curve that is not. It names no depths; we take 10 to 1,000.
    """
    return Item(
        title="Figure 2: global C maps by depth",
        label="fig:cvalue",
        minutes=1,
        introduction="The cosine similarity of two outputs by that of the inputs, for whole "
        "networks. With EOC, all outputs become alike with depth; with TAT and C_f(0) = 0.5, the "
        "map converges.",
        claims={
            "With depth, the C map of ReLU networks becomes flat at 1": _becomes_flat,
            "The C map of TReLU networks converges to that of proposition 3": _converges,
        },
        compute=_compute_c_maps,
        charts=lambda results: panel_charts(
            results.lines, "c of the inputs", "c of the outputs", -1.0, 1.0
        ),
    )


def _compute_c_maps(scale: ScaleName) -> tuple[list[Value], list[Series]]:
    """C_f on a grid of c, for both methods at every depth."""
    c, eta = np.linspace(-1.0, 1.0, 81), 0.5
    values, lines = [], []
    for name, method, activation, wanted in (
        ("ReLU (EOC)", EOC(), "relu", None),
        ("TReLU", TAT(eta=eta), "leaky_relu", eta),
    ):
        for depth in DEPTHS[:2] if scale == "smoke" else DEPTHS:
            graph = Graph.chain(depth)
            solution = solve(graph, method, activation)
            mapped = fold(graph, solution.c_map, c)
            rounded = tuple(round(float(y), 6) for y in mapped)
            lines.append(Series(name, f"{depth} layers", tuple(map(float, c)), rounded))
            at_zero = float(fold(graph, solution.c_map, np.zeros(1))[0])
            values.append(Value(name, f"C_f(0), {depth} layers", round(at_zero, 9), wanted))
            if wanted is not None:
                gap = float(np.abs(np.asarray(mapped) - infinite_depth_c_map(c, eta)).max())
                values.append(Value(name, f"distance to the limit, {depth} layers", round(gap, 6)))
    return values, lines


def _becomes_flat(results: Results) -> Judgement:
    ends = [results.value("ReLU (EOC)", f"C_f(0), {n} layers") for n in DEPTHS]
    holds = bool(np.all(np.diff(ends) > 0)) and ends[-1] > 0.999
    return _judge_depths(ends, holds, "C_f(0) at {}", ".4f")


def _converges(results: Results) -> Judgement:
    gaps = [results.value("TReLU", f"distance to the limit, {n} layers") for n in DEPTHS]
    holds = bool(np.all(np.diff(gaps) < 0)) and gaps[-1] < 0.001
    return _judge_depths(gaps, holds, "largest distance at {}", ".2g")


def _judge_depths(values: list[float], holds: bool, evidence: str, form: str) -> Judgement:
    if any(math.isnan(value) for value in values):
        return NOT_RUN
    words = (f"{n} layers: {value:{form}}" for n, value in zip(DEPTHS, values, strict=True))
    return word(holds), evidence.format(", ".join(words))


@dataclass(frozen=True)
class Setting:
    """A method with the activation that it shapes, and the cosine of the inputs."""

    name: str
    method: Method
    activation: str
    cosine: float


TRELU = Setting("TReLU", TAT(eta=0.9), "leaky_relu", 0.0)
DKS_SOFTPLUS = Setting("DKS + SoftPlus", DKS(zeta=10.0), "softplus", 0.8)
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "orthogonal")
MOST_POINTS = 26  # of a line, each with its error bar


@dataclass(frozen=True)
class KernelScale:
    """How much of figure 4 is computed."""

    depth: int
    widths: tuple[int, ...]
    seeds: int
    pairs: int


KERNEL_SCALES: dict[str, KernelScale] = {
    "smoke": KernelScale(depth=20, widths=(10, 30), seeds=3, pairs=4),
    "cpu": KernelScale(depth=100, widths=(30, 100, 300), seeds=50, pairs=100),
    "full": KernelScale(depth=100, widths=(30, 100, 300, 1000), seeds=50, pairs=100),
}


@dataclass(frozen=True)
class KernelError:
    """One line of a panel: networks of one width, checked."""

    setting: Setting
    distribution: Distribution
    width: int
    check: Check

    @property
    def panel(self) -> str:
        return f"{self.setting.name}, {self.distribution}"


def kernel_errors(scale: KernelScale) -> Iterator[KernelError]:
    """All lines of figure 4 by distribution, setting and width; 16 minutes on one core if full."""
    import torch

    from skipless.runs.check import build_mlp
    from skipless.torch import check
    from skipless.torch.init import threads

    for distribution in DISTRIBUTIONS:
        for setting in (TRELU, DKS_SOFTPLUS):
            solution = solve(Graph.chain(scale.depth), setting.method, setting.activation)
            for width in scale.widths:
                with threads(1):
                    found = check(
                        build_mlp(scale.depth, width, solution),
                        torch.zeros(1, width),
                        solution,
                        cosines=(setting.cosine,),
                        seeds=scale.seeds,
                        pairs=scale.pairs,
                        distribution=distribution,
                    )
                yield KernelError(setting, distribution, width, found)


def figure4() -> Item:
    """Empirical c values of finite networks, beside their C maps (appendix E.1).

    The paper names the widths 30 and 100, and no depth. We take 100 layers, and widths up to 1000.

    The paper finds that TReLU has a small error even at width 30; that under DKS deviations are
    much larger, and with Gaussian weights the means at widths 30 and 100 are off; that orthogonal
    weights have much smaller errors; and that standard deviations grow with depth. So do we, but
    DKS at width 30 errs as much with orthogonal weights (c ends at 0.42, not at 0.28), and under
    TReLU the deviation is largest at about layer 25, and falls as all c values near 1.
    """
    return Item(
        title="Figure 4: kernel approximation error of finite networks",
        label="fig:kernel-error",
        minutes=6,
        introduction="c values after each of 100 layers, averaged over 100 pairs of inputs and 50 "
        "networks, with their standard deviation, and what the C map predicts. TReLU starts "
        "from c = 0, DKS with SoftPlus from c = 0.8, as in the paper. The scale cpu leaves out "
        "width 1,000.",
        claims={
            "With Gaussian weights, TReLU's error is smaller than DKS + SoftPlus's": partial(
                _is_below_dks, quantity="largest error", distribution="gaussian"
            ),
            "With orthogonal weights, TReLU's error is smaller than DKS + SoftPlus's": partial(
                _is_below_dks, quantity="largest error", distribution="orthogonal"
            ),
            "With Gaussian weights, TReLU's c values vary less between networks": partial(
                _is_below_dks, quantity="largest deviation", distribution="gaussian"
            ),
        },
        compute=_compute_kernel_errors,
        charts=lambda results: panel_charts(results.lines, "layer", "c value", 0.0, 1.0),
    )


def _compute_kernel_errors(scale: ScaleName) -> tuple[list[Value], list[Series]]:
    """Measured c values by layer, their largest error, and the prediction."""
    from skipless.runs.check import layers

    lines: dict[tuple[str, str], Series] = {}
    values = []
    for error in kernel_errors(KERNEL_SCALES[scale]):
        panel, width = error.panel, f"width {error.width}"
        rows = layers(error.check)
        step = -(-len(rows) // MOST_POINTS)
        x = tuple(map(float, range(0, len(rows), step)))
        means = tuple(round(row.measured.c.mean, 5) for row in rows[::step])
        spreads = tuple(round(row.measured.c.spread, 5) for row in rows[::step])
        lines[panel, width] = Series(panel, width, x, means, spreads)
        predicted = tuple(round(row.predicted.c, 5) for row in rows[::step])
        lines.setdefault((panel, ""), Series(panel, "predicted", x, predicted))
        errors = [abs(row.measured.c.mean - row.predicted.c) for row in rows]
        largest = int(np.argmax(errors))
        spread = max(row.measured.c.spread for row in rows)
        values += [
            Value(panel, f"largest error, {width}", round(errors[largest], 5)),
            Value(panel, f"its standard error, {width}", round(rows[largest].measured.c.error, 5)),
            Value(panel, f"largest deviation, {width}", round(spread, 5)),
        ]
    return values, list(lines.values())


def _is_below_dks(results: Results, quantity: str, distribution: str) -> Judgement:
    """Whether a quantity is smaller for TReLU than for DKS at every width."""
    judged = []
    widths = [v.column.split(", ")[1] for v in results.values if v.column.startswith(quantity)]
    for width in dict.fromkeys(widths):
        ours, theirs = (
            results.value(f"{setting.name}, {distribution}", f"{quantity}, {width}")
            for setting in (TRELU, DKS_SOFTPLUS)
        )
        judged.append((word(ours < theirs), f"{width}: {ours:.3f} against {theirs:.3f}"))
    return judge_all(judged)
