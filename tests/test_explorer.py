"""The explorer in a browser: its controls work, and its numbers are those of `core`."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skipless as sk
from browser import Browser, chromium
from html_pages import CHARTS, CONTRAST
from skipless.core.activations import Activation
from skipless.core.graph import Graph, Nonlinearity, Sum
from skipless.core.maps import c_map, c_map_curvature, c_map_slope, q_map
from skipless.core.network import Point, fold, max_c_value, max_curvature, max_slope, propagate
from skipless.report.svg import light_colours

FOLDER = Path(__file__).parents[1] / "docs" / "explorer"
PAGE = FOLDER / "index.html"

# The page and `core` solve the same equations by other routes: other quadratures of the C map,
# other root finders. Each is good to 1e-10 or better in one layer; a thousand may add up.
TOLERANCE = 1e-7

# Method, activation, depth, target, shortcut weight: every method, and every way to a C map. Those
# with kinks are shallow, because `core` takes its time for them.
VIEWS = [
    ("tat", "leaky_relu", 100, 0.9, 0.0),
    ("tat", "leaky_relu", 1000, 0.95, 0.8),
    ("tat", "tanh", 300, 0.3, 0.0),
    ("tat", "tanh", 30, 1.5, 0.95),
    ("dks", "leaky_relu", 6, 3.0, 0.5),
    ("dks", "relu", 4, 1.5, 0.0),
    ("dks", "softplus", 100, 1.5, 0.3),
    ("dks", "tanh", 12, 100.0, 0.0),
    ("eoc", "elu", 3, 0.3, 0.6),
    ("eoc", "relu", 40, 0.0, 0.0),
    ("eoc", "tanh", 200, 0.2, 0.0),
    ("eoc", "erf", 90, 0.3, 0.7),
    ("eoc", "erf", 20, 0.0, 0.0),  # drawn to q = 0, by weights that undo a slope of 2/√π
    ("plain", "selu", 3, None, 0.0),
    ("plain", "relu", 50, None, 0.0),
    ("plain", "sigmoid", 5, None, 0.0),
    ("plain", "gelu", 12, None, 0.4),
    ("plain", "hard_tanh", 3, None, 0.0),
    ("plain", "softsign", 3, None, 0.0),
]
SHALLOW = 6  # activations, up to which it is quicker to ask for each c value than for a table
# What has no solution, and says why: the words are those of `core`.
REFUSED = [
    ("tat", "leaky_relu", 3, 0.95, 0.0),
    ("tat", "leaky_relu", 60, 0.95, 0.99),
    ("tat", "relu", 50, 0.3, 0.0),
    ("tat", "square", 50, 0.3, 0.0),
    ("dks", "leaky_relu", 2, 100.0, 0.0),
    ("dks", "softplus", 1, 5000.0, 0.0),
    ("eoc", "gelu", 50, 0.1, 0.0),
    ("eoc", "softplus", 50, 0.0, 0.0),
    ("dks", "tanh", 50, 1.0, 0.0),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def choose(browser: Browser, view: tuple[str, str, int, float | None, float]) -> None:
    """Set every control as a reader does, who changes one after the other."""
    method, activation, depth, target, shortcut = view
    values = {"method": method, "activation": activation, "depth-number": depth}
    values |= {} if target is None else {"target-number": target}
    chosen = json.dumps(values | {"shortcut": shortcut})
    browser.run(
        f"for (const [id, value] of Object.entries({chosen})) {{"
        "  const control = document.getElementById(id);"
        "  control.value = value;"
        "  control.dispatchEvent(new Event(control.type === 'range' ? 'input' : 'change'));"
        "}"
    )


def shown(browser: Browser) -> dict[str, Any]:
    """All numbers on the page, to their last digit, and the points of its lines."""
    return browser.run(
        "const cells = [...document.querySelectorAll('td[id]')].map(cell => [cell.id, "
        "  cell.dataset.value === 'Infinity' ? 'inf' : JSON.parse(cell.dataset.value)]);"
        "const lines = [...document.querySelectorAll('.line[data-name]')].map(line =>"
        "  [line.dataset.name, line.getAttribute('d').slice(1).split('L').map(p =>"
        "    p.split(' ').map(Number))]);"
        "return {...Object.fromEntries(cells), lines: Object.fromEntries(lines),"
        "  message: document.getElementById('message').hidden ? '' :"
        "    document.getElementById('message').textContent,"
        "  python: document.getElementById('python').textContent, hash: location.hash};"
    )


def graph_of(depth: int, shortcut: float) -> Graph:
    if shortcut == 0.0:
        return Graph.chain(depth)
    return Graph.residual(max(1, math.floor(depth / 3 + 0.5)), shortcut_weight=shortcut)


def solved(graph: Graph, method: str, activation: str, target: float | None) -> sk.Solution:
    match method, target:
        case "tat", float(value):
            leaky = activation == "leaky_relu"
            return sk.solve(graph, sk.TAT(eta=value) if leaky else sk.TAT(tau=value), activation)
        case "dks", float(value):
            return sk.solve(graph, sk.DKS(zeta=value), activation)
        case "eoc", float(value):
            return sk.solve(graph, sk.EOC(sigma_b=value), activation)
        case _:
            return sk.Solution.of(sk.activation(activation))


def layer_map(graph: Graph, solution: sk.Solution) -> Callable[[float], float]:
    """The C map of one layer."""
    if graph.depth > SHALLOW or solution.shaped.degree == 1.0:
        return lambda c: float(solution.c_map(np.asarray(c)))
    bias = solution.sigma_b**2 / solution.q
    return lambda c: bias + (1.0 - bias) * float(c_map(solution.shaped, c, solution.q))


def ends(graph: Graph, solution: sk.Solution) -> tuple[float, float, float, float]:
    """C'(1) and C''(1) of a layer and of the network, by the chain rule."""
    q = solution.q or 1e-12
    kept = 1.0 - solution.sigma_b**2 / q * (solution.q > 0.0)
    slope = kept * float(c_map_slope(solution.shaped, 1.0, q))
    curvature = kept * float(c_map_curvature(solution.shaped, 1.0, q))
    finite = curvature if math.isfinite(curvature) else 0.0
    layer = lambda x: np.array([slope * x[0], finite * x[0] ** 2 + slope * x[1]])
    whole = fold(graph, layer, np.array([1.0, 0.0]))
    last = float(whole[1]) if math.isfinite(curvature) else math.inf
    return slope, curvature, float(whole[0]), last


@pytest.mark.filterwarnings("ignore:DKS cannot give ReLU")
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: "-".join(map(str, view)))
def test_the_numbers_on_the_page_are_those_of_core(
    browser: Browser, view: tuple[str, str, int, float | None, float]
) -> None:
    method, activation, depth, target, shortcut = view
    browser.go(PAGE)
    choose(browser, view)
    page = shown(browser)
    graph = graph_of(depth, shortcut)
    solution = solved(graph, method, activation, target)

    expected = solution.parameters | {"q": solution.q}
    if method == "plain":  # on weights that keep q = 1
        expected["sigma_w"] = q_map(solution.shaped, 1.0) ** -0.5
    for name, value in expected.items():
        assert page[name] == (
            value if value is None else pytest.approx(value, TOLERANCE, TOLERANCE)
        )

    slope, curvature, network_slope, network_curvature = ends(graph, solution)
    local = layer_map(graph, solution)
    assert page["c_f_zero"] == pytest.approx(fold(graph, local, 0.0), abs=TOLERANCE)
    assert page["slope"] == pytest.approx(network_slope, TOLERANCE)
    assert float(page["curvature"]) == pytest.approx(network_curvature, TOLERANCE, TOLERANCE)
    maxima = {
        "mu0": lambda: max_c_value(graph, local),
        "mu1": lambda: max_slope(graph, slope),
        "mu2": lambda: max_curvature(graph, curvature),
    }
    for name in maxima.keys() & page.keys():
        assert page[name] == pytest.approx(maxima[name](), TOLERANCE)
        assert page[name] == pytest.approx(target, TOLERANCE)
    assert (maxima.keys() & page.keys() != set()) == (method in ("tat", "dks"))


@pytest.mark.parametrize("view", [VIEWS[0], VIEWS[6]], ids=["chain", "residual"])
def test_the_curves_are_drawn_from_the_maps(
    browser: Browser, view: tuple[str, str, int, float | None, float]
) -> None:
    method, activation, depth, target, shortcut = view
    browser.go(PAGE)
    choose(browser, view)
    lines = shown(browser)["lines"]
    graph = graph_of(depth, shortcut)
    solution = solved(graph, method, activation, target)

    # The frame of chart.js in the units of the drawing: x from 44 to 374, y from 250 up to 46.
    drawn = np.array(lines["map"])
    c, out = (drawn[:, 0] - 44) / 330 * 2 - 1, (250 - drawn[:, 1]) / 204 * 2 - 1
    assert c[0] == -1
    assert c[-1] == 1
    # Two decimals of a path are 5e-3 / 102 of an axis.
    assert out == pytest.approx(fold(graph, solution.c_map, np.clip(c, -1, 1)), abs=3e-4)

    behind = Nonlinearity if shortcut == 0.0 else Sum
    local = lambda c, _: float(solution.c_map(np.asarray(c)))
    for start in (0.9, 0.5, 0.0, -0.5):
        points = propagate(graph, lambda q: q, local, start=Point(1.0, start))
        pairs = zip(graph.nodes, points, strict=True)
        values = [start, *(point.c for node, point in pairs if isinstance(node, behind))]
        path = np.array(lines[f"from {start:g}"])
        assert (250 - path[:, 1]) / 204 * 2 - 1 == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("view", REFUSED, ids=lambda view: "-".join(map(str, view)))
def test_what_is_out_of_reach_is_refused_in_the_words_of_core(
    browser: Browser, view: tuple[str, str, int, float, float]
) -> None:
    method, activation, depth, target, shortcut = view
    browser.go(PAGE)
    choose(browser, view)
    with pytest.raises(ValueError, match=r"cannot shape|has no|must be|out of reach") as refused:
        solved(graph_of(depth, shortcut), method, activation, target)
    # The smallest reading of a smooth φ is where rounding error begins, which is no one's own.
    least = partial(re.sub, r"reaches \S+e-\d+ to", "reaches 0 to")
    assert least(shown(browser)["message"]) == least(str(refused.value))
    assert browser.run("return document.getElementById('charts').hidden")


def test_sliders_move_what_they_name_and_a_link_brings_the_view_back(browser: Browser) -> None:
    browser.go(PAGE)
    browser.run(
        "for (const [id, value] of [['depth', 130], ['target', 500], ['shortcut', 0.5]]) {"
        "  const slider = document.getElementById(id);"
        "  slider.value = value;"
        "  slider.dispatchEvent(new Event('input'));"
        "}"
    )
    moved = shown(browser)
    # 10^1.3 is 20 to the nearest layer; half of the way from 0.01 to 0.99 is 0.5.
    fragment = "#method=tat&activation=leaky_relu&depth=20&eta=0.5&shortcut=0.5"
    assert moved["hash"] == fragment
    solution = sk.solve(sk.Graph.residual(7, shortcut_weight=0.5), sk.TAT(eta=0.5))
    assert moved["negative_slope"] == pytest.approx(solution.negative_slope, TOLERANCE)
    browser.go(PAGE)
    assert shown(browser)["c_f_zero"] == pytest.approx(0.9, TOLERANCE)
    browser.run(f"location.hash = {fragment!r}; dispatchEvent(new Event('hashchange'))")
    assert shown(browser) == moved


@pytest.mark.parametrize("view", [VIEWS[1], VIEWS[6], VIEWS[10]], ids=["tat", "dks", "eoc"])
def test_the_line_of_python_gives_what_the_page_shows(
    browser: Browser, view: tuple[str, str, int, float | None, float]
) -> None:
    browser.go(PAGE)
    choose(browser, view)
    page = shown(browser)
    solution = eval(page["python"], {"sk": sk})
    for name, value in solution.parameters.items():
        assert page[name] == (
            value if value is None else pytest.approx(value, TOLERANCE, TOLERANCE)
        )


def test_the_page_knows_every_activation_as_core_does(browser: Browser) -> None:
    browser.go(PAGE)
    x = np.array([-3.7, -1.0 - 2**-20, -0.3, -1e-5, 1e-5, 0.45, 0.8, 2.0, 7.5])
    table = browser.run(
        f"const xs = {json.dumps(x.tolist())};"
        "return Object.fromEntries(Object.entries(ACTIVATIONS).map(([name, phi]) => [name, {"
        "  value: xs.map(phi.value), slope: xs.map(phi.slope), curvature: xs.map(phi.curvature),"
        "  kinks: phi.kinks, jumps: phi.jumps, degree: phi.degree ?? null}]));"
    )
    assert sorted(table) == list(sk.activation_names())
    offered = browser.run(
        "return [...document.querySelectorAll('#activation option')].map(o => o.value)"
    )
    assert sorted(offered) == sorted(table)
    for name, own in table.items():
        phi: Activation = sk.activation(name)
        for part in ("value", "slope", "curvature"):
            assert own[part] == pytest.approx(getattr(phi, part)(x), 1e-12, 1e-14), (name, part)
        assert tuple(own["kinks"]) == phi.kinks
        assert own["jumps"] == pytest.approx(phi.slope_jumps, 1e-9)
        assert own["degree"] == phi.degree


def test_the_page_has_the_c_map_of_every_activation_as_core_does(browser: Browser) -> None:
    browser.go(PAGE)
    c = [-0.6, 0.3, 0.999]
    table = browser.run(
        f"const cs = {json.dumps(c)};"
        "return Object.fromEntries(Object.entries(ACTIVATIONS).map(([name, phi]) => {"
        "  const layer = layerMap(plain(phi));"
        "  return [name, [...cs.map(layer.map), layer.slope, String(layer.curvature)]];"
        "}));"
    )
    for name, (*values, slope, curvature) in table.items():
        phi = sk.activation(name)
        assert values == pytest.approx([float(c_map(phi, x, 1.0)) for x in c], abs=1e-8), name
        assert slope == pytest.approx(float(c_map_slope(phi, 1.0, 1.0)), 1e-9), name
        wanted = float(c_map_curvature(phi, 1.0, 1.0))
        assert float(curvature.replace("Infinity", "inf")) == pytest.approx(wanted, 1e-9), name


class Listening(SimpleHTTPRequestHandler):
    """Serves files, and records the requested paths."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_page_asks_for_its_own_files_and_nothing_else(browser: Browser) -> None:
    Listening.asked = []
    handler = partial(Listening, directory=str(FOLDER))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        browser.console()
        browser.run(f"location.href = '{address}/index.html'")
        for _ in range(100):
            if browser.run(
                "return document.readyState === 'complete' && !!document.querySelector('.line')"
            ):
                break
        choose(browser, VIEWS[0])
        requests = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
        server.shutdown()
    own = {f"/{path.name}" for path in FOLDER.iterdir()}
    assert set(Listening.asked) == own
    assert {request.removeprefix(address) for request in requests} == own - {"/index.html"}
    assert browser.console() == []
    for path in FOLDER.iterdir():
        assert not re.search(r"https?:|fetch\(|XMLHttp|import\(|url\(|@import", path.read_text())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_everything_can_be_read_on_a_phone_and_in_the_dark(
    browser: Browser, scheme: str, width: int
) -> None:
    browser.go(PAGE)
    browser.prefer(scheme)
    browser.resize(width)
    choose(browser, VIEWS[6])
    assert browser.run("return document.documentElement.scrollWidth") <= width
    charts = browser.run(CHARTS)
    assert len(charts) == 3
    for chart in charts:
        assert chart["clipped"] == []
        assert min(chart["lines"]) > 10
    paper, contrast = browser.run(CONTRAST)
    assert (paper > 0.5) == (scheme == "light")
    assert contrast >= 4.5  # WCAG 2.2, AA
    assert browser.console() == []


def test_colours_are_those_of_the_report_pages() -> None:
    style = (FOLDER / "explorer.css").read_text(encoding="utf-8")
    page = Path(sk.__file__ or "").parent / "report" / "page.css"
    blocks = [re.findall(r"--(\w+): (#\w+);", text) for text in (style, page.read_text("utf-8"))]
    assert blocks[0] == blocks[1]
    assert dict(blocks[0][: len(blocks[0]) // 2]) == light_colours()
