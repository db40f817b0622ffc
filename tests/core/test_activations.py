"""Every activation is what its name says, to rounding error, and declares all of its kinks."""

# mpmath makes its functions at run time.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

from oracles import ORACLES, Oracle, exponential_linear
from skipless.core.activations import (
    Activation,
    Array,
    UnknownActivationError,
    activation,
    activation_names,
    celu,
    elu,
    leaky_relu,
    soft_shrink,
    softplus,
    transform,
)

WITH_PARAMETER: dict[str, tuple[Activation, Oracle]] = {
    "leaky_relu": (leaky_relu(-0.25), lambda x: x if x > 0 else -x / 4),
    "elu": (elu(0.3), exponential_linear(0.3)),
    "celu": (celu(0.3), exponential_linear(0.3, width=0.3)),
    "softplus": (softplus(1.7), lambda x: mp.log(1 + mp.exp(mpf(1.7) * x)) / mpf(1.7)),
    "soft_shrink": (soft_shrink(1.5), lambda x: max(x - 1.5, 0) + min(x + 1.5, 0)),
}
# Their exponent is a rounded product, and exp turns its relative error into an absolute one.
ROUNDED_EXPONENT = {"gelu_tanh", "quick_gelu", "celu(alpha=0.3)", "softplus(beta=1.7)"}
SLOPE_JUMPS = {
    "abs": (2.0,),
    "celu": (0.0,),
    "elu": (0.0,),
    "hard_sigmoid": (1 / 6, -1 / 6),
    "hard_swish": (-0.5, -0.5),
    "hard_tanh": (1.0, -1.0),
    "leaky_relu": (0.99,),
    "relu": (1.0,),
    "relu6": (1.0, -1.0),
    "relu_squared": (0.0,),
    "selu": (1.0507009873554805 * (1 - 1.6732632423543772),),
    "soft_shrink": (-1.0, 1.0),
    "softsign": (0.0,),
}
SMALLEST = 1e-300  # below it, numbers begin to lose their digits
TAILS = (1e-6, 1e-3, 0.95, 12.3, 25.6, 30.0, 120.4, 203.3, 366.6, 699.0, 1000.0)
POINTS = np.array([*np.linspace(-8.3, 8.3, 24), *TAILS, *(-x for x in TAILS)])
FINE = np.linspace(-10.0, 10.0, 20_000)  # no kink is on this grid

every_name = pytest.mark.parametrize("name", activation_names())


def derivative(f: Oracle, x: float, order: int) -> mpf:
    # Enough digits to see 1e-300 beside 1 where φ has tails; fewer where that would only cost time.
    with mp.workdps(50 if abs(x) < 8.5 else 360):
        return mp.diff(f, mpf(x), order)


def assert_matches(phi: Activation, oracle: Oracle, points: Array) -> None:
    tolerance = 1e-13 if phi.name in ROUNDED_EXPONENT else 1e-14
    for order, function in enumerate((phi.value, phi.slope, phi.curvature)):
        for x, found in zip(points.tolist(), function(points).tolist(), strict=True):
            wanted = derivative(oracle, x, order)
            noise = 1e-30 if order and abs(x) < 8.5 else SMALLEST  # of numerical differentiation
            assert abs(found - wanted) <= tolerance * abs(wanted) + noise, (
                f"{phi.name}, derivative {order} at {x}: {found}, not {mpmath.nstr(wanted, 17)}"
            )


def test_every_name_has_an_oracle() -> None:
    assert set(activation_names()) == set(ORACLES)


@every_name
def test_value_slope_and_curvature_are_those_of_the_definition(name: str) -> None:
    assert_matches(activation(name), ORACLES[name], POINTS)


@pytest.mark.parametrize("family", WITH_PARAMETER)
def test_parameters_mean_what_torch_means_by_them(family: str) -> None:
    assert_matches(*WITH_PARAMETER[family], POINTS[::2])


@every_name
def test_nothing_overflows_or_warns_up_to_a_thousand(name: str) -> None:
    x = np.concatenate([-np.geomspace(1e3, 1e-300, 4001), [0.0], np.geomspace(1e-300, 1e3, 4001)])
    phi = activation(name)
    for function in (phi.value, phi.slope, phi.curvature):
        assert np.isfinite(function(x)).all()


@every_name
def test_arguments_are_neither_changed_nor_handed_back(name: str) -> None:
    phi, x = activation(name), np.linspace(-2.0, 2.0, 6).reshape(2, 3)
    before = x.copy()
    for function in (phi.value, phi.slope, phi.curvature):
        result = function(x)
        assert result.shape == x.shape
        assert result.dtype == np.float64
        assert not np.shares_memory(result, x)
    np.testing.assert_array_equal(x, before)


@every_name
def test_slope_and_curvature_are_continuous_off_the_declared_kinks(name: str) -> None:
    phi = activation(name)
    smooth = ~np.any([(FINE[:-1] < k) & (k < FINE[1:]) for k in (*phi.kinks, math.inf)], axis=0)
    for function in (phi.value, phi.slope, phi.curvature):
        steps = np.abs(np.diff(function(FINE)))[smooth]
        # No third derivative exceeds 5; value and slope grow like 2x at most.
        assert steps.max() <= 25.0 * (FINE[1] - FINE[0])


@every_name
def test_slope_or_curvature_jumps_at_every_declared_kink(name: str) -> None:
    phi = activation(name)
    for k in phi.kinks:
        sides = np.array([k - 1e-9, k + 1e-9])
        jumps = np.abs([np.diff(phi.slope(sides)), np.diff(phi.curvature(sides))])
        assert jumps.max() > 0.1


@every_name
def test_slope_jumps_are_those_of_the_closed_form(name: str) -> None:
    phi, wanted = activation(name), SLOPE_JUMPS.get(name, ())
    assert phi.slope_jumps == pytest.approx(wanted, rel=1e-14, abs=0.0)
    assert phi.has_slope_jump == any(wanted)


@given(st.floats(-2.0, 2.0))
def test_slope_of_leaky_relu_and_elu_jumps_by_one_minus_alpha(alpha: float) -> None:
    for phi in (leaky_relu(alpha), elu(alpha)):
        assert sum(phi.slope_jumps) == pytest.approx(1.0 - alpha, rel=1e-11, abs=1e-11)


def test_slope_one_leaves_leaky_relu_without_a_kink() -> None:
    assert leaky_relu(1.0).kinks == ()
    assert not leaky_relu(1.0).has_slope_jump


@every_name
def test_a_period_is_declared_exactly_where_the_function_repeats(name: str) -> None:
    phi = activation(name)
    repeats = np.allclose(phi(POINTS + 2 * math.pi), phi(POINTS), rtol=0.0, atol=1e-12)
    assert phi.period == (2 * math.pi if repeats else None)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ReLU", "relu"),
        ("LeakyReLU", "leaky_relu"),
        ("leaky-relu", "leaky_relu"),
        ("Hard Swish", "hard_swish"),
        ("lrelu", "leaky_relu"),
        ("swish", "silu"),
        ("hard_silu", "hard_swish"),
        ("hardtanh", "hard_tanh"),
        ("hardsigmoid", "hard_sigmoid"),
        ("logsigmoid", "log_sigmoid"),
        ("tanhshrink", "tanh_shrink"),
        ("softshrink", "soft_shrink"),
        ("sine", "sin"),
        ("cosine", "cos"),
        ("arctan", "atan"),
        ("arcsinh", "asinh"),
        ("bentid", "bent_identity"),
        ("linear", "identity"),
    ],
)
def test_every_spelling_finds_the_same_object(spelling: str, name: str) -> None:
    assert activation(spelling) is activation(name)
    assert activation(name).name == name


def test_the_same_parameter_finds_the_same_object_under_a_name_of_its_own() -> None:
    assert activation("leaky_relu", 0.2) is activation("leaky_relu", negative_slope=0.2)
    assert activation("leaky_relu", 0.01) is activation("leaky_relu") is leaky_relu()
    assert activation("elu") is elu() is elu(alpha=1.0)
    assert activation("leaky_relu", 0.2).name == "leaky_relu(negative_slope=0.2)"
    assert len({leaky_relu(0.2), leaky_relu(0.3), elu(0.2), celu(0.2)}) == 4


def test_names_come_sorted_and_lead_to_themselves() -> None:
    names = activation_names()
    assert list(names) == sorted(names)
    assert [activation(name).name for name in names] == list(names)


@pytest.mark.parametrize(
    ("typo", "near"), [("rleu", "relu"), ("Soft Sine", "softsign"), ("swich", "silu")]
)
def test_unknown_names_are_answered_with_near_matches(typo: str, near: str) -> None:
    with pytest.raises(UnknownActivationError) as caught:
        activation(typo)
    assert repr(typo) in str(caught.value)
    assert f"'{near}'" in str(caught.value)
    assert "tanh_shrink" not in str(caught.value)


def test_names_like_nothing_are_answered_with_all_names() -> None:
    with pytest.raises(UnknownActivationError) as caught:
        activation("xyzzy123")
    assert ", ".join(activation_names()) in str(caught.value)


def test_a_parameter_may_be_an_array_without_dimensions() -> None:
    assert leaky_relu(np.array(0.25)) is leaky_relu(0.25)  # pyright: ignore[reportArgumentType]


def test_only_leaky_relu_takes_a_negative_slope() -> None:
    for other in ("relu", "tanh", leaky_relu(0.3)):
        with pytest.raises(ValueError, match="has no negative_slope"):
            activation(other, 0.2)


@pytest.mark.parametrize(
    ("factory", "number"),
    [(leaky_relu, math.nan), (elu, math.inf), (celu, 0.0), (softplus, -1.0), (soft_shrink, 0.0)],
)
def test_impossible_parameters_are_refused(
    factory: Callable[[float], Activation], number: float
) -> None:
    with pytest.raises(ValueError, match="must be"):
        factory(number)


def square_above(k: float) -> Activation:
    return Activation(
        lambda x: np.maximum(x - k, 0.0) ** 2 + x,
        lambda x: 2.0 * np.maximum(x - k, 0.0) + 1.0,
        lambda x: np.where(x > k, 2.0, 0.0),
        kinks=(k,),
    )


def test_a_user_defined_activation_works_like_the_others() -> None:
    phi = square_above(2.0)
    assert activation(phi) is phi
    assert phi.name == "custom"
    assert phi.slope_jumps == (0.0,)
    assert_matches(phi, lambda x: max(x - 2, 0) ** 2 + x, POINTS)


def test_calls_take_scalars_and_lists_and_answer_in_their_shape() -> None:
    phi = activation("square")
    assert isinstance(phi(3), np.float64)
    assert phi(3) == 9.0
    assert phi([[1, 2], [3, 4]]).tolist() == [[1.0, 4.0], [9.0, 16.0]]
    assert phi(np.float32([1.5])).dtype == np.float64
    assert phi([]).shape == (0,)


def test_kinks_become_sorted_floats_without_repetition() -> None:
    phi = Activation(np.sin, np.cos, lambda x: -np.sin(x), kinks=(3, -1, 3))
    assert phi.kinks == (-1.0, 3.0)
    assert all(type(k) is float for k in phi.kinks)


@pytest.mark.parametrize("k", [0.0, -7.5, 1e4])
def test_a_discontinuous_activation_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match="must be continuous"):
        Activation(lambda x: np.where(x > k, 1.0, 0.0), np.zeros_like, np.zeros_like, kinks=(k,))


def test_steep_but_continuous_activations_are_accepted() -> None:
    phi = Activation(
        lambda x: 1e8 * np.maximum(x - 5.0, 0.0),
        lambda x: np.where(x > 5.0, 1e8, 0.0),
        np.zeros_like,
        kinks=(5.0,),
    )
    assert phi.slope_jumps == (1e8,)


@pytest.mark.parametrize(
    ("slope", "found"),
    [
        (1.0, "not callable"),
        (lambda x: 1.0, r"shape \(\)"),
        (lambda x: x > 0, "bool"),
        (lambda x: x.astype(np.float32), "float32"),
        (lambda x: np.append(x, 0.0), r"shape \(4,\)"),
        (math.cos, "TypeError: only"),
        (lambda x: max(x, 0.0), "ValueError: The truth"),
    ],
)
def test_functions_that_do_not_map_arrays_are_refused(slope: object, found: str) -> None:
    with pytest.raises(TypeError, match=f"slope must .*{found}"):
        Activation(np.sin, slope, np.sin)


@pytest.mark.parametrize("kinks", [(math.nan,), (0.0, math.inf)])
def test_kinks_that_are_not_finite_are_refused(kinks: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="kinks must be finite, got"):
        Activation(np.sin, np.cos, np.sin, kinks=kinks)


@pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
def test_periods_that_are_not_positive_are_refused(period: float) -> None:
    with pytest.raises(ValueError, match="period must be positive"):
        Activation(np.sin, np.cos, np.sin, period=period)


@pytest.mark.parametrize("name", ["hard_swish", "selu", "gelu", "sin", "softsign"])
@pytest.mark.parametrize("constants", [(0.7, 0.4, 1.3, -0.2), (-2.5, -1.1, -0.6, 3.0)])
def test_transform_follows_the_chain_rule(
    name: str, constants: tuple[float, float, float, float]
) -> None:
    a, b, c, d = map(mpf, constants)
    phi, points = transform(activation(name), *constants), np.linspace(-3.1, 3.2, 12)
    # Rounding of the inner map is amplified near zeros of φ and its derivatives.
    for order, function in enumerate((phi.value, phi.slope, phi.curvature)):
        wanted = [
            float(derivative(lambda x: c * (ORACLES[name](a * x + b) + d), x, order))
            for x in points.tolist()
        ]
        np.testing.assert_allclose(function(points), wanted, rtol=1e-13, atol=1e-14)


@given(
    st.sampled_from(sorted(SLOPE_JUMPS)),
    st.floats(0.01, 100.0),
    st.booleans(),
    st.floats(-30.0, 30.0),
    st.floats(-5.0, 5.0).filter(lambda s: abs(s) > 1e-3),
)
@example("hard_swish", 0.01, False, 3.0, 1.0)  # near zero, x is finer than 3 + 0.01 x
def test_transform_maps_kinks_with_their_jumps(
    name: str, scale: float, mirrored: bool, shift: float, output_scale: float
) -> None:
    phi, input_scale = activation(name), -scale if mirrored else scale
    hat = transform(phi, input_scale, shift, output_scale, 0.5)
    order = slice(None, None, -1) if mirrored else slice(None)
    assert [input_scale * k + shift for k in hat.kinks] == pytest.approx(
        phi.kinks[order], rel=1e-12, abs=1e-12
    )
    wanted = [output_scale * scale * jump for jump in SLOPE_JUMPS[name][order]]
    assert hat.slope_jumps == pytest.approx(wanted, rel=1e-10, abs=0.0)


def test_transform_maps_the_period() -> None:
    hat = transform(activation("sin"), input_scale=-4.0)
    assert hat.period == math.pi / 2
    np.testing.assert_allclose(hat(POINTS + math.pi / 2), hat(POINTS), atol=1e-11)
    assert transform(activation("tanh"), 2.0).period is None


def test_transform_changes_the_name_since_the_function_is_another() -> None:
    assert transform(activation("tanh"), 2.0).name == "transformed tanh"


@pytest.mark.parametrize(
    "constants",
    [(0.0, 0, 1, 0), (1, math.nan, 1, 0), (1, 0, math.inf, 0), (1, 0, 1e308, 0), (1e-50, 0, 1, 0)],
)
def test_transform_refuses_constants_that_leave_no_activation(
    constants: tuple[float, float, float, float],
) -> None:
    with pytest.raises(ValueError, match=r"needs finite constants .* got"):
        transform(activation("tanh"), *constants)
