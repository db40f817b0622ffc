"""solve: its solutions solve what they were asked, by a route that shares no code with it."""

import math
import pickle
import warnings
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from skipless.core.activations import Activation, activation, activation_names, leaky_relu
from skipless.core.gaussian import distortion
from skipless.core.graph import Graph, GraphBuilder
from skipless.core.maps import c_map
from skipless.core.network import max_curvature, max_slope
from skipless.core.solution import (
    DKS,
    EOC,
    TAT,
    ClampedTargetWarning,
    Solution,
    UnreachableTargetError,
)
from skipless.core.solve import solve

TAT_SMOOTH = [
    "tanh",
    "softplus",
    "sigmoid",
    "log_sigmoid",
    "erf",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "elu",
    "celu",
    "mish",
    "softsign",
    "atan",
    "asinh",
    "bent_identity",
    "squareplus",
    "sin",
    "cos",
    "gaussian",
    "tanh_shrink",
]
DKS_SHAPED = [*TAT_SMOOTH, "selu", "hard_swish", "soft_shrink", "leaky_relu"]
SATURATED = ["hard_tanh", "hard_sigmoid", "relu6"]  # DKS only where layers are steep
HOMOGENEOUS = ["abs", "identity", "square", "relu_squared"]
RESIDUAL = 1e-10  # the promise of `solve`

chain = cache(Graph.chain)  # to build 10,000 layers, or compare them, takes longer than to solve


def number(x: float | None) -> float:
    assert x is not None
    return x


def gaussian_mean(f, breaks):
    """E[f(z)] by QUADPACK, split at `breaks`."""
    ends = sorted({-12.0, 12.0, *(b for b in breaks if -12.0 < b < 12.0)})
    density = lambda z: math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    parts = [
        quad(lambda z: f(z) * density(z), a, b, epsabs=1e-14, epsrel=1e-13, limit=400)[0]
        for a, b in pairwise(ends)
    ]
    return math.fsum(parts)


def measured_conditions(solution: Solution) -> dict[str, float]:
    """Q(1), Q'(1), C(0), C'(1), C''(1) of φ̂ from their definitions, by QUADPACK."""
    phi = solution.shaped
    scale = solution.input_scale or 1.0
    origin = -(solution.input_shift or 0.0) / scale
    layer = (origin - 40.0 / scale, origin, origin + 40.0 / scale)  # where a steep φ̂ bends
    at = lambda f: lambda z: float(f(np.array([z]))[0])
    value, slope, curvature = at(phi.value), at(phi.slope), at(phi.curvature)
    mean = lambda f: gaussian_mean(f, (*phi.kinks, *layer))
    q = mean(lambda z: value(z) ** 2)
    return {
        "Q(1)": q,
        "Q'(1)": mean(lambda z: value(z) * slope(z) * z),
        "C(0)": mean(value) ** 2 / q,
        "C'(1)": mean(lambda z: slope(z) ** 2) / q,
        "C''(1)": mean(lambda z: curvature(z) ** 2) / q,
    }


def assert_conditions_hold(solution: Solution) -> None:
    measured = measured_conditions(solution)
    for name, target in solution.targets.items():
        if name in measured:
            assert measured[name] == pytest.approx(target, rel=0, abs=RESIDUAL), name
    assert solution.largest_residual < RESIDUAL


@pytest.mark.parametrize("depth", [2, 10_000])
@pytest.mark.parametrize("name", TAT_SMOOTH)
def test_tat_by_tau_meets_its_four_conditions_by_quadpack(name: str, depth: int) -> None:
    solution = solve(chain(depth), TAT(tau=0.3), name)
    assert solution.targets["C''(1)"] == pytest.approx(0.3 / depth, rel=1e-12)
    assert_conditions_hold(solution)


@pytest.mark.parametrize("depth", [3, 10_000])
@pytest.mark.parametrize("name", DKS_SHAPED)
def test_dks_meets_its_four_conditions_by_quadpack(name: str, depth: int) -> None:
    zeta = 1.5 if name not in ("tanh_shrink", "bent_identity") else 1.3
    solution = solve(chain(depth), DKS(zeta), name)
    assert solution.targets["C'(1)"] == pytest.approx(zeta ** (1 / depth), rel=1e-12)
    assert_conditions_hold(solution)


@pytest.mark.parametrize("name", SATURATED)
def test_dks_for_a_clipped_line_works_where_layers_are_steep(name: str) -> None:
    assert_conditions_hold(solve(chain(2), DKS(100.0), name))
    with pytest.raises(UnreachableTargetError, match=rf"{name} reaches 0\.467"):
        solve(chain(50), DKS(1.5), name)


@pytest.mark.parametrize(("name", "centre"), [("hard_tanh", 0), ("hard_sigmoid", 0), ("relu6", 3)])
def test_of_mirror_images_the_smallest_shift_is_taken_then_the_positive_one(name, centre) -> None:
    beta = number(solve(chain(3), DKS(10.0), name).input_shift)
    assert beta > 0.0 if centre == 0 else abs(beta) < abs(2 * centre - beta)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "erf", "softsign", "atan", "asinh"])
def test_bounded_or_odd_activations_reach_every_zeta_at_every_depth(name: str) -> None:
    for zeta, depth in ((1.1, 10_000), (100.0, 2), (100.0, 10_000), (10.0, 7)):
        assert solve(chain(depth), DKS(zeta), name).largest_residual < RESIDUAL


@pytest.mark.parametrize("name", TAT_SMOOTH)
@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_tau_from_a_twentieth_to_one_is_reached_at_every_depth(name: str, tau: float) -> None:
    for depth in (2, 10_000):
        assert solve(chain(depth), TAT(tau=tau), name).largest_residual < RESIDUAL


@pytest.mark.parametrize("eta", [0.01, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("depth", [200, 10_000])
def test_trelu_reaches_eta_by_iterating_the_published_c_map(eta: float, depth: int) -> None:
    solution = solve(chain(depth), TAT(eta=eta))
    a, c = number(solution.negative_slope), 0.0
    for _ in range(depth):  # equation 9, as printed
        c += (1 - a) ** 2 / (math.pi * (1 + a * a)) * (math.sqrt(1 - c * c) - c * math.acos(c))
    assert c == pytest.approx(eta, abs=RESIDUAL)
    assert 0.0 <= a < 1.0
    assert solution.output_scale == pytest.approx(math.sqrt(2 / (1 + a * a)), rel=1e-15)
    assert_conditions_hold(solution)


def test_trelu_at_depth_two_is_solved_by_hand() -> None:
    # C(C(0)) with κ from a plain bisection on the closed form.
    def c_f(kappa: float) -> float:
        c = kappa / math.pi
        return c + kappa / math.pi * (math.sqrt(1 - c * c) - c * math.acos(c))

    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if c_f(middle) < 0.3 else (low, middle)
    a = number(solve(chain(2), TAT(eta=0.3)).negative_slope)
    assert (1 - a) ** 2 / (1 + a * a) == pytest.approx(low, abs=1e-12)


# What DeepMind's dks 0.1.2 finds for a chain of 50 layers at its default targets, which are ours.
DKS_LIBRARY = [
    (TAT(), "leaky_relu", {"negative_slope": 0.4305229485, "output_scale": 1.298947786}),
    (
        TAT(),
        "tanh",
        {
            "input_scale": 0.08165523497,
            "input_shift": 0.5258489445,
            "output_scale": 15.94163368,
            "output_shift": -0.4831889547,
        },
    ),
    (
        DKS(),
        "softplus",
        {
            "input_scale": 0.3266251734,
            "input_shift": 0.4093739677,
            "output_scale": 5.094842887,
            "output_shift": -0.9312843020,
        },
    ),
    (
        DKS(),
        "tanh",
        {
            "input_scale": 0.1284404788,
            "input_shift": 0.5707795475,
            "output_scale": 10.60444762,
            "output_shift": -0.5098072417,
        },
    ),
    (
        DKS(),
        "leaky_relu",
        {
            "negative_slope": 0.7963707059,
            "input_shift": 0.0,
            "output_scale": 1.110765725,
            "output_shift": -0.08123633529,
        },
    ),
]


@pytest.mark.parametrize(("method", "name", "theirs"), DKS_LIBRARY)
def test_the_library_of_the_authors_finds_the_same_parameters(method, name, theirs) -> None:
    ours = solve(chain(50), method, name).parameters
    for key, value in theirs.items():
        # Its searches stop at 1e-8 in the target.
        assert ours[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


def test_the_targets_are_those_of_the_whole_network_with_shortcuts() -> None:
    graph = Graph.residual(10, shortcut_weight=0.8)
    tat = solve(graph, TAT(tau=0.3), "tanh")
    assert max_curvature(graph, measured_conditions(tat)["C''(1)"]) == pytest.approx(0.3, abs=1e-9)
    dks = solve(graph, DKS(10.0), "tanh")
    assert max_slope(graph, measured_conditions(dks)["C'(1)"]) == pytest.approx(10.0, abs=1e-8)


def test_dks_for_relu_drops_one_condition_and_says_so() -> None:
    with pytest.warns(UserWarning, match="homogeneous; the condition is dropped"):
        solution = solve(chain(50), DKS(1.5), "relu")
    assert "Q'(1)" not in solution.targets
    assert_conditions_hold(solution)
    assert abs(measured_conditions(solution)["Q'(1)"] - 1) > 1e-3


def test_dks_for_leaky_relu_takes_the_less_distorted_of_its_two_curves() -> None:
    solution = solve(chain(4), DKS(2.0), "leaky_relu")
    # The other curve, with β < 0 (paper, footnote of section 5.4), at the same C'(1).
    slope = solution.targets["C'(1)"]
    other = shifted_leaky_relu(slope)
    assert measured_conditions(other)["Q'(1)"] == pytest.approx(1.0, abs=1e-8)
    assert measured_conditions(other)["C'(1)"] == pytest.approx(slope, abs=1e-8)
    assert bend(solution) < 0.7 * bend(other)


def bend(s: Solution) -> float:
    rest = number(s.input_shift), number(s.output_scale), number(s.output_shift)
    return distortion(s.base, (1.0, *rest))


def shifted_leaky_relu(slope: float) -> Solution:
    """DKS's leaky ReLU with β ≠ 0, by a plain two-dimensional root finder."""
    from scipy.optimize import root

    def build(p):
        a, b = p
        phi = leaky_relu(a)
        at = lambda f: lambda z: float(f(np.array([z + b]))[0])
        mean = gaussian_mean(at(phi.value), (-b,))
        q = gaussian_mean(lambda z: (at(phi.value)(z) - mean) ** 2, (-b,))
        return Solution(
            "leaky_relu",
            negative_slope=float(a),
            input_shift=float(b),
            output_scale=q**-0.5,
            output_shift=-mean,
        )

    def gap(p):
        m = measured_conditions(build(p))
        return [m["Q'(1)"] - 1.0, m["C'(1)"] - slope]

    found = root(gap, [-0.1, -2.9], tol=1e-12)
    assert found.success
    assert found.x[1] < -1.0
    return build(found.x)


@pytest.mark.parametrize("name", HOMOGENEOUS)
@pytest.mark.parametrize("method", [TAT(), DKS()])
def test_a_homogeneous_activation_has_no_solution_and_the_error_says_why(name, method) -> None:
    with pytest.raises(UnreachableTargetError, match=r"homogeneous|slope jumps"):
        solve(chain(50), method, name)


@pytest.mark.parametrize("name", ["relu", "selu", "hard_tanh", "relu6", "hard_swish", "abs"])
def test_tat_by_tau_is_refused_where_the_slope_jumps(name: str) -> None:
    with pytest.raises(UnreachableTargetError, match=r"slope jumps, so C''\(1\) is infinite"):
        solve(chain(50), TAT(), name)


def test_every_listed_activation_is_solved_or_refused_for_a_reason() -> None:
    known = {*TAT_SMOOTH, *DKS_SHAPED, *SATURATED, *HOMOGENEOUS, "relu"}
    assert known == set(activation_names())


def relu_reaches(depth: int) -> float:
    """C_f(0) of a chain of ReLU layers, by the arc-cosine kernel of Cho and Saul (2009)."""
    c = 0.0
    for _ in range(depth):
        c = (math.sqrt(1.0 - c * c) + (math.pi - math.acos(c)) * c) / math.pi
    return c


def test_eta_out_of_reach_names_what_is_reachable_and_a_call_that_works() -> None:
    with pytest.raises(
        UnreachableTargetError, match=r"ReLU, .* has 0\.872\. Use TAT\(\)"
    ) as caught:
        solve(chain(10), TAT(eta=0.9))
    assert f"{solve(chain(10), TAT()).targets['mu0']:.3g} here" in str(caught.value)
    assert solve(chain(13), TAT(eta=0.9)).largest_residual < RESIDUAL
    with pytest.raises(UnreachableTargetError):
        solve(chain(12), TAT(eta=0.9))


@pytest.mark.parametrize("depth", [1, 2, 5, 12, 13, 100])
def test_without_eta_every_depth_has_a_target_that_is_not_plain_relu(depth: int) -> None:
    found = solve(chain(depth))
    most = relu_reaches(depth)
    expected = 0.9 if most >= 0.9 else 0.8 * most
    assert found.targets["mu0"] == pytest.approx(expected, rel=1e-12)
    assert f"eta = {expected:.3g} by default" in str(found)
    assert ("out of reach" in found.note) == (most < 0.9)
    assert found.negative_slope is not None
    assert found.negative_slope > 0.0
    assert found == solve(chain(depth), TAT(eta=found.targets["mu0"]))


def test_the_most_that_relu_reaches_is_no_clamped_target() -> None:
    with pytest.warns(ClampedTargetWarning):
        most = solve(chain(5), TAT(eta=0.9), clamp=True).targets["mu0"]
    assert solve(chain(5), TAT(eta=most)).note == ""


def test_a_wrong_method_is_named_before_anything_else() -> None:
    with pytest.raises(TypeError, match=r"^The method must be TAT.*, got 'gelu'"):
        solve(chain(5), "gelu", TAT())  # pyright: ignore[reportArgumentType]


def test_clamping_takes_the_nearest_target_and_says_so() -> None:
    with pytest.warns(ClampedTargetWarning, match=r"0\.9 is out of reach; using 0\.871"):
        relu = solve(chain(10), TAT(eta=0.9), clamp=True)
    assert relu.negative_slope == 0.0
    assert "clamped to plain ReLU" in str(relu)
    with pytest.warns(ClampedTargetWarning):
        softplus = solve(chain(2), DKS(100.0), "softplus", clamp=True)
    # A softplus of great scale is a ReLU: C'(1) = (1/2) / (1/2 - 1/(2π)) for a shift of zero.
    assert softplus.targets["C'(1)"] == pytest.approx(1 / (1 - 1 / math.pi), rel=2e-3)
    assert_conditions_hold(softplus)
    with pytest.warns(ClampedTargetWarning):
        leaky = solve(chain(2), DKS(100.0), clamp=True)
    assert leaky.negative_slope == pytest.approx(-1.0)  # |x|
    with pytest.warns(ClampedTargetWarning):
        hard = solve(chain(50), DKS(1.5), "hard_tanh", clamp=True)
    assert hard.targets["mu1"] > 1.5
    with pytest.warns(ClampedTargetWarning):
        assert solve(chain(5), EOC(0.5), "relu", clamp=True).sigma_b == 0.0


@pytest.mark.parametrize("name", ["sigmoid", "cos", "softsign", "gelu"])
@pytest.mark.parametrize("method", [TAT(tau=0.3), DKS(1.5)], ids=["TAT", "DKS"])
def test_parameters_vary_smoothly_with_depth_in_canonical_form(name, method) -> None:
    depths = np.unique(np.geomspace(2, 10_000, 25).astype(int))
    found = [solve(chain(int(d)), method, name) for d in depths]
    scale = np.array([s.input_scale for s in found])
    shift = np.array([s.input_shift for s in found])
    assert np.all(scale > 0)
    assert all(number(s.output_scale) > 0 for s in found)
    assert np.all(np.diff(np.log(scale)) < 0)
    # Between neighbours the depth grows by at most half; no parameter may do more than that.
    steps = np.abs(np.diff(shift)) / (np.abs(shift[1:]) + scale[1:])
    growth = np.diff(np.log(depths))
    assert np.all(steps < growth)
    if name != "gelu":  # odd, even or odd about its middle: the sign is free
        assert np.all(shift > 0)


def test_no_global_random_state_is_touched() -> None:
    np.random.seed(5)  # noqa: NPY002 - the legacy state is what must stay as it is
    expected = np.random.random(3)  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    solve(chain(23), TAT(tau=0.29), "atan")
    assert np.array_equal(np.random.random(3), expected)  # noqa: NPY002


def test_solving_twice_gives_the_very_same_solution() -> None:
    for method, name in ((TAT(), "silu"), (DKS(), "leaky_relu"), (EOC(0.3), "tanh")):
        assert solve(Graph.chain(30), method, name) == solve(Graph.chain(30), method, name)


def test_an_activation_of_the_user_is_solved_like_a_built_in_one() -> None:
    built_in = activation("tanh")
    own = Activation(built_in.value, built_in.slope, built_in.curvature, name="mine")
    ours, theirs = (solve(chain(40), TAT(), phi) for phi in (built_in, own))
    assert theirs.activation == "mine"
    assert theirs.parameters == ours.parameters
    assert theirs(0.3) == ours(0.3)


def test_a_solution_is_callable_and_survives_pickling() -> None:
    solution = pickle.loads(pickle.dumps(solve(chain(40), DKS(), "tanh")))
    x = np.linspace(-3, 3, 7)
    by_hand = solution.output_scale * (
        np.tanh(solution.input_scale * x + solution.input_shift) + solution.output_shift
    )
    assert solution(x) == pytest.approx(by_hand, rel=1e-14)
    assert solution(x.reshape(7, 1)).shape == (7, 1)


def test_parameters_that_a_method_does_not_use_are_none() -> None:
    trelu = solve(chain(20)).parameters
    assert [k for k, v in trelu.items() if v is None] == [
        "input_scale",
        "input_shift",
        "output_shift",
    ]
    assert solve(chain(20), TAT(), "tanh").negative_slope is None
    eoc = solve(chain(20), EOC(), "relu").parameters
    assert {k for k, v in eoc.items() if v is not None} == {"sigma_w", "sigma_b"}


def test_a_graph_whose_sums_change_q_is_refused_unless_the_activation_is_homogeneous() -> None:
    builder = GraphBuilder()
    x = builder.affine(builder.input())
    branch = builder.affine(builder.activation(x))
    y = builder.sum((x, branch), (1.0, 1.0))
    builder.activation(y, origin="block.act")
    graph = builder.build()
    with pytest.raises(ValueError, match=r"\(block\.act\) gets q = 2 from sums"):
        solve(graph, TAT(), "tanh")
    with pytest.raises(ValueError, match="not normalised"):
        solve(graph, DKS(1.2), "leaky_relu")
    assert solve(graph, TAT(eta=0.2)).largest_residual < RESIDUAL


def test_a_graph_without_activations_is_refused() -> None:
    builder = GraphBuilder()
    builder.affine(builder.input())
    with pytest.raises(ValueError, match="needs a graph with an activation"):
        solve(builder.build())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TAT(eta=1.0), r"eta must be in \(0, 1\), got 1 "),
        (lambda: TAT(eta=0.0), "got 0 .typically 0.9"),
        (lambda: TAT(tau=-1.0), "tau must be finite and > 0, got -1 "),
        (lambda: TAT(tau=math.nan), "got nan"),
        (lambda: DKS(zeta=1.0), "zeta must be finite and > 1, got 1 "),
        (lambda: EOC(sigma_b=-0.1), r"sigma_b must be finite and >= 0, got -0\.1"),
    ],
)
def test_targets_outside_of_their_range_are_refused(build, message) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_nothing_warns_on_the_way() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in TAT_SMOOTH:
            solve(chain(64), TAT(), name)


@pytest.mark.parametrize(
    ("method", "name"),
    [(TAT(), "leaky_relu"), (EOC(), "relu"), (DKS(), "leaky_relu"), (DKS(), "gelu")],
)
def test_the_c_map_of_a_solution_is_that_of_its_activation(method, name) -> None:
    solution = solve(chain(50), method, name)
    c = np.array([[-1.0, -0.7], [0.2, 0.999]])
    assert solution.c_map(c) == pytest.approx(c_map(solution.shaped, c), abs=1e-12)
    assert float(solution.c_map(0.2)) == solution.c_map(c)[1, 0]


def test_activations_that_lead_nowhere_do_not_count() -> None:
    builder = GraphBuilder()
    x = builder.affine(builder.input())
    builder.activation(x)
    builder.affine(x)
    for method in (TAT(), DKS(), EOC()):
        with pytest.raises(ValueError, match="on a path to its output"):
            solve(builder.build(), method, "tanh")


@pytest.mark.parametrize("zeta", [1000.0, 1.0 + 1e-13])
def test_relu_under_dks_says_what_is_out_of_reach(zeta: float) -> None:
    with (
        pytest.warns(UserWarning, match="condition is dropped"),
        pytest.raises(UnreachableTargetError, match="shifted ReLU only reaches"),
    ):
        solve(chain(1), DKS(zeta), "relu")


def test_a_target_that_overflows_is_refused_even_when_clamped() -> None:
    with pytest.raises(UnreachableTargetError, match="overflows"):
        solve(chain(10_000), DKS(1.5), "hard_tanh", clamp=True)


def test_an_eta_next_to_one_is_refused_at_once() -> None:
    with pytest.raises(UnreachableTargetError, match=r"ReLU, .* has 0\.996"):
        solve(chain(100), TAT(eta=1.0 - 1e-16 * 2))


@pytest.mark.parametrize(
    ("depth", "method", "name"),
    [
        (5, TAT(eta=0.9), "leaky_relu"),
        (2, DKS(100.0), "softplus"),
        (2, DKS(100.0), "leaky_relu"),
        (5, EOC(0.5), "relu"),
        (5, DKS(), "relu"),
    ],
)
def test_a_warning_points_at_the_line_that_called_solve(depth, method, name) -> None:
    with pytest.warns(UserWarning, match="is out of reach|is dropped") as caught:
        solve(chain(depth), method, name, clamp=True)
    assert [w.filename for w in caught] == [__file__]


def test_the_c_map_of_a_solution_refuses_what_is_no_cosine() -> None:
    for name in ("leaky_relu", "tanh"):
        with pytest.raises(ValueError, match=r"c must be in \[-1, 1\], got 2"):
            solve(chain(50), DKS(), name).c_map([0.5, 2.0])
