"""Figure 4: empirical c values of finite networks, beside their C maps (appendix E.1).

    skipless reproduce figure4 --scale cpu

The paper: TReLU has a small error even at width 30, with Gaussian weights too; DKS with SoftPlus
has a much larger one, above all with Gaussian weights. The setting: `paper/kernel_error.py`.
"""

from skipless.paper.item import Claim, Computed, Item, Judgement, Results, Series, Value, panels
from skipless.paper.kernel_error import DISTRIBUTIONS, DKS_SOFTPLUS, SCALES, TRELU, figure_4
from skipless.paper.scales import ScaleName
from skipless.runs.check import layers

NAMES = {"smoke": "smoke", "cpu": "cpu", "full": "paper"}
MOST_POINTS = 26  # of a line, each with its error bar


def compute(scale: ScaleName) -> Computed:
    """Measured c values by layer, their largest error, and the prediction."""
    lines, values = [], []
    for error in figure_4(SCALES[NAMES[scale]]):
        panel = f"{error.setting.name}, {error.distribution}"
        rows = layers(error.check)
        stride = -(-len(rows) // MOST_POINTS)
        chosen = [(n, row) for n, row in enumerate(rows) if n % stride == 0]
        x = tuple(float(n) for n, _ in chosen)
        label = f"width {error.width}"
        means = tuple(round(row.measured.c.mean, 5) for _, row in chosen)
        spreads = tuple(round(row.measured.c.spread, 5) for _, row in chosen)
        lines.append(Series(panel, label, x, means, spreads))
        predicted = Series(panel, "predicted", x, tuple(round(r.predicted.c, 5) for _, r in chosen))
        if not any(line.panel == panel and line.label == "predicted" for line in lines):
            lines.append(predicted)
        worst = max(rows, key=lambda row: abs(row.c_difference))
        spread = max(row.measured.c.spread for row in rows)
        values.append(Value(panel, f"largest error, {label}", round(abs(worst.c_difference), 5)))
        values.append(
            Value(panel, f"its standard error, {label}", round(worst.measured.c.error, 5))
        )
        values.append(Value(panel, f"largest deviation, {label}", round(spread, 5)))
    return Computed(tuple(values), tuple(lines))


def _smaller(results: Results, distribution: str) -> Judgement:
    """Whether TReLU's largest error is below that of DKS at every width."""
    widths = [
        v.column.split(", ")[1] for v in results.values if v.column.startswith("largest error")
    ]
    told, smaller = [], []
    for width in dict.fromkeys(widths):
        ours, theirs = (
            results.value(f"{setting.name}, {distribution}", f"largest error, {width}")
            for setting in (TRELU, DKS_SOFTPLUS)
        )
        smaller.append(ours < theirs)
        told.append(f"{width}: {ours:.3f} against {theirs:.3f}")
    return (all(smaller), "; ".join(told)) if smaller else (None, "")


def _steadier(results: Results) -> Judgement:
    told, steadier = [], []
    rows = [f"{TRELU.name}, gaussian", f"{DKS_SOFTPLUS.name}, gaussian"]
    for width in dict.fromkeys(v.column.split(", ")[1] for v in results.values):
        ours, theirs = (results.value(row, f"largest deviation, {width}") for row in rows)
        steadier.append(ours < theirs)
        told.append(f"{width}: {ours:.3f} against {theirs:.3f}")
    return (all(steadier), "; ".join(told)) if steadier else (None, "")


ITEM = Item(
    name="figure4",
    title="Figure 4: kernel approximation error of finite networks",
    label="fig:kernel-error",
    minutes={"cpu": 6},
    introduction="c values behind each of 100 layers, averaged over 100 pairs of inputs and 50 "
    "networks, with their standard deviation, beside what the C map predicts. TReLU starts from "
    "c = 0, DKS with SoftPlus from c = 0.8, as in the paper. The scale cpu leaves out width 1,000.",
    claims=(
        *(
            Claim(
                f"With {distribution} weights, TReLU's error is smaller than DKS + SoftPlus's",
                lambda r, distribution=distribution: _smaller(r, distribution),
            )
            for distribution in DISTRIBUTIONS
        ),
        Claim("With Gaussian weights, TReLU's c values deviate less between networks", _steadier),
    ),
    compute=compute,
    charts=lambda r: panels(r.lines, "layer", "c value", 0.0, 1.0),
)
