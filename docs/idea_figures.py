"""Draws the figures of "The idea in pictures" and README, each computed by `core`: make figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr

from skipless.core.activations import Array, activation
from skipless.core.graph import Graph
from skipless.core.maps import leaky_relu_c_map
from skipless.core.network import fold
from skipless.core.solution import DKS, EOC, TAT, Solution
from skipless.core.solve import solve
from skipless.record import write_atomically
from skipless.report.svg import Axis, Chart, Line, linear_axis, svg_file

FOLDER = Path(__file__).parent / "images" / "idea"
SQUARES = FOLDER.with_name("squares.png")
DEPTHS = (20, 100, 1000)
SQUARE_DEPTHS = (20, 50, 100, 200)
WIDTH = 384  # of the networks that are sampled
GREY = "#7d858d"  # legible on white and on black
# Close together towards both ends, where the maps of deep networks bend.
_C = np.cos(np.linspace(np.pi, 0.0, 201))
_RELU = Solution.of(activation("relu"))

Maps = Sequence[tuple[str, Callable[[Array], Array]]]


def one_layer() -> Chart:
    """C maps of a single layer: ReLU, linear, and leaky ReLU between them."""
    maps = [
        (words, np.vectorize(lambda c, alpha=alpha: leaky_relu_c_map(c, alpha)))
        for words, alpha in (
            ("ReLU", 0.0),
            ("leaky ReLU, α = 0.5", 0.5),
            ("linear, α = 1", 1.0),
        )
    ]
    return _c_map_chart("One layer", maps)


def depth() -> Chart:
    """C maps of ReLU networks, which come closer to 1 the deeper they are."""
    return _c_map_chart(
        "ReLU networks of many layers",
        [
            (f"{layers} layer{'s' * (layers > 1)}", _network_map(Graph.chain(layers), _RELU))
            for layers in (1, 5, 20, 100)
        ],
    )


def tailored() -> Chart:
    """The leaky ReLUs that TAT finds for networks of different depths, and ReLU."""
    shaped = [(f"{layers} layers", solve(Graph.chain(layers), TAT(eta=0.9))) for layers in DEPTHS]
    x = np.linspace(-3.0, 3.0, 61)
    plain = (x, np.sqrt(2.0) * np.maximum(x, 0.0))
    curves = [("ReLU, times √2", "", *plain)] + [
        (f"TAT, {words}", f"slope {solution.negative_slope:.3f}", x, solution(x))
        for words, solution in shaped
    ]
    return Chart(
        title="The activations that TAT finds",
        description="Leaky ReLUs: the deeper the network, the closer the negative slope is to the "
        "positive one.",
        x=linear_axis("x", -3.0, 3.0),
        y=linear_axis("φ̂(x)", -3.0, 4.5),
        lines=tuple(
            Line(label, value, style, list(zip(xs.tolist(), ys.tolist(), strict=True)), marked=())
            for style, (label, value, xs, ys) in enumerate(curves)
        ),
        key=True,
    )


def held() -> Chart:
    """C maps of TAT networks of different depths, which all keep C_f(0) at 0.9."""
    graphs = [(f"TAT, {layers} layers", Graph.chain(layers)) for layers in DEPTHS]
    maps = [("ReLU, 100 layers", _network_map(Graph.chain(100), _RELU))]
    maps += [(words, _network_map(g, solve(g, TAT(eta=0.9)))) for words, g in graphs]
    return _c_map_chart("TAT keeps C_f(0) at 0.9 at every depth", maps)


def methods() -> Chart:
    """C maps of 100 layers under every method."""
    graph = Graph.chain(100)
    solutions = [
        ("EOC, ReLU", solve(graph, EOC(), "relu")),
        ("TAT, leaky ReLU (η = 0.9)", solve(graph, TAT(eta=0.9))),
        ("TAT, tanh (τ = 0.3)", solve(graph, TAT(tau=0.3), "tanh")),
        ("DKS, softplus (ζ = 1.5)", solve(graph, DKS(zeta=1.5), "softplus")),
    ]
    return _c_map_chart(
        "100 layers, four ways", [(words, _network_map(graph, s)) for words, s in solutions]
    )


def shortcuts() -> Chart:
    """C maps of ReLU networks with shortcuts of different weights."""
    graphs = [(f"weight {w:g}", Graph.residual(33, shortcut_weight=w)) for w in (0.8, 0.95, 0.99)]
    maps = [("no shortcuts", _network_map(Graph.chain(99), _RELU))]
    maps += [(words, _network_map(graph, _RELU)) for words, graph in graphs]
    return _c_map_chart("99 layers of ReLU with shortcuts", maps)


FIGURES: tuple[Callable[[], Chart], ...] = (one_layer, depth, tailored, held, methods, shortcuts)


def write_figures(folder: Path) -> list[Path]:
    """Draw all figures into `folder`, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.__name__}.svg" for figure in FIGURES]
    for path, figure in zip(paths, FIGURES, strict=True):
        write_atomically(path, svg_file(figure()))
    return paths


def _network_map(graph: Graph, solution: Solution) -> Callable[[Array], Array]:
    return lambda c: fold(graph, solution.c_map, c)


def _c_map_chart(title: str, maps: Maps) -> Chart:
    lines = []
    for style, (label, c_map) in enumerate(maps):
        values = c_map(_C)
        middle = _C.size // 2
        points = list(zip(_C.tolist(), values.tolist(), strict=True))
        lines.append(Line(label, f"0 → {values[middle]:.3f}", style, points, marked=[middle]))
    spoken = ", ".join(f"{line.label} {line.value}" for line in lines)
    return Chart(
        title=title,
        description=f"Similarity of outputs by that of the inputs; unrelated inputs: {spoken}.",
        x=Axis(
            "c of the two inputs",
            -1.0,
            1.0,
            ((-1.0, "−1\nopposite"), (0.0, "0\nunrelated"), (1.0, "1\nidentical")),
        ),
        y=linear_axis("c of the two outputs", -1.0, 1.0),
        lines=tuple(lines),
        key=True,
        guide=((-1.0, -1.0), (1.0, 1.0)),
    )


def random_outputs(solution: Solution, layers: int, x: Array, seed: int) -> Array:
    """The outputs of a network with random orthogonal weights, a row for each direction in `x`.

    Each has a mean square of 1, so that they differ in their directions alone.
    """
    generator = np.random.default_rng(seed)
    h = x
    for layer in range(layers + 1):
        orthogonal, _ = np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))
        h = (solution(h) if layer else h) @ orthogonal[: h.shape[1]]
        h /= np.sqrt(np.mean(h**2, axis=1, keepdims=True))  # which leaves angles as they are
    return h


def square(size: int) -> Array:
    """Directions in space, a row for each point of a square; its corners are 130 degrees apart."""
    u, v = np.meshgrid(*[np.linspace(-1.5, 1.5, size)] * 2)
    x = np.stack([u, v, np.ones_like(u)], axis=-1).reshape(-1, 3)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def sample(solution: Solution, layers: int, size: int, seed: int) -> tuple[Array, float]:
    """A square of colours, and the mean angle in degrees between inputs that are 90 degrees apart.

    A colour is how three of the outputs at a point of the square differ from their mean over it.
    """
    outputs = random_outputs(solution, layers, np.vstack([np.eye(3), square(size)]), seed)
    c = (outputs[:3] @ outputs[:3].T / WIDTH)[np.triu_indices(3, 1)]
    shown = outputs[3:, :3]
    colours = ndtr(shown - shown.mean(axis=0)).reshape(size, size, 3)
    return colours, float(np.degrees(np.mean(np.arccos(c))))


def draw_squares(path: Path, size: int = 48, seed: int = 0) -> Path:
    """Draw what untrained networks of several depths make of a square, with ReLU and with TReLU."""
    figure = Figure(figsize=(8.4, 4.7), layout="constrained")
    axes = figure.subplots(2, len(SQUARE_DEPTHS))
    for column, layers in enumerate(SQUARE_DEPTHS):
        shaped = solve(Graph.chain(layers), TAT(eta=0.9))
        for own, solution in zip(axes[:, column], (_RELU, shaped), strict=True):
            colours, angle = sample(solution, layers, size, seed)
            own.imshow(colours, interpolation="bilinear")
            own.set(xticks=[], yticks=[])
            own.set_xlabel(f"90° → {angle:.0f}°", color=GREY)
            own.spines[:].set_visible(False)
        axes[0, column].set_title(f"{layers} layers", color=GREY)
    for own, name in zip(axes[:, 0], ("ReLU", "TReLU"), strict=True):
        own.set_ylabel(name, color=GREY, fontsize=14)
    figure.savefig(path, dpi=100, transparent=True)
    return path


if __name__ == "__main__":
    write_figures(FOLDER)
    draw_squares(SQUARES)
