"""In JAX, activations are what `core` says, in every precision; shaped, they are their solution."""

import math
import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from activation_examples import KNOWN, POINTS, SHAPED, solved
from skipless import Activation, Solution
from skipless.core.activations import elu
from skipless.jax import Shaped, function, shaped

KINKS = np.array([-3.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0, 6.0, math.nan])
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half an ulp, relative
every_activation = pytest.mark.parametrize("index", range(len(KNOWN)), ids=[p.name for p in KNOWN])
every_solution = pytest.mark.parametrize("name", SHAPED)


def derivatives(f, x):
    """f by itself, f′ in reverse mode, and f″ forwards over that, at every element of `x`."""
    slope = jax.grad(lambda x: jnp.sum(f(x)))
    return (f(x), *jax.jvp(slope, (x,), (jnp.ones_like(x),)))


# One compiled function for all, and quickly compiled: what it costs to run does not matter.
QUICKLY = {"xla_backend_optimization_level": 0}


@cache
def in_float64():
    """Value, slope and curvature of all that is known, at `POINTS` and at `KINKS`."""
    functions = [function(phi) for phi in KNOWN]
    every = jax.jit(lambda x: [derivatives(f, x) for f in functions], compiler_options=QUICKLY)
    with jax.enable_x64(True):
        return jax.device_get(every(jnp.asarray([*POINTS, *KINKS])))


@cache
def in_half_precision():
    """Value and slope of all that is known, by type, compiled for scalars and then mapped."""
    functions = [function(phi) for phi in KNOWN]

    def every(x):
        return [[jax.value_and_grad(f)(part) for f in functions] for part in x]

    x = [jnp.asarray(POINTS[np.abs(POINTS) < 200.0], dtype) for dtype in ROUNDING]
    found = jax.jit(jax.vmap(every), compiler_options=QUICKLY)(x)
    return dict(zip(ROUNDING, zip(x, jax.device_get(found), strict=True), strict=True))


def close(found, wanted, tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(found, float), wanted, rtol=tolerance, atol=tolerance)


@every_activation
def test_value_slope_and_curvature_are_those_of_core(index: int) -> None:
    phi, found = KNOWN[index], in_float64()[index]
    value, slope, curvature = (part[: len(POINTS)] for part in found)
    assert value.dtype == slope.dtype == curvature.dtype == np.float64
    close(value, phi.value(POINTS), 1e-12)
    close(slope, phi.slope(POINTS), 1e-12)
    close(curvature, phi.curvature(POINTS), 1e-12)


@every_activation
def test_at_kinks_slopes_are_those_of_core_and_what_is_no_number_stays_none(index: int) -> None:
    phi, (value, slope, _) = KNOWN[index], in_float64()[index]
    assert set(phi.kinks) <= set(KINKS)
    close(slope[len(POINTS) : -1], phi.slope(KINKS[:-1]), 1e-12)
    assert np.isnan(value[-1])


@every_activation
@pytest.mark.parametrize("dtype", ROUNDING)
def test_half_precision_is_computed_in_float32_and_rounded_once(index: int, dtype: str) -> None:
    x, found = in_half_precision()[dtype]
    phi, (value, slope), points = KNOWN[index], found[index], np.asarray(x, float)
    assert value.dtype == slope.dtype == x.dtype
    wanted = phi.value(points)
    error = np.abs(np.asarray(value, float) - wanted)
    assert np.all(error <= 1.001 * ROUNDING[dtype] * np.abs(wanted) + 1e-6)
    close(slope, phi.slope(points), 2 * ROUNDING[dtype])


def test_equal_activations_are_compiled_once() -> None:
    traced = []

    def apply(f, x):
        traced.append(f)
        return f(x)

    compiled = jax.jit(apply, static_argnums=0)
    solution = solved("DKS celu")
    for _ in range(2):
        compiled(function(elu(0.3)), 1.0)
        compiled(shaped(solution), 1.0)
        compiled(pickle.loads(pickle.dumps(shaped(solution))), 1.0)
    assert len(traced) == 2
    assert function("Swish") == function("silu") != function("relu")
    assert function("leaky_relu", 0.5)(-2.0) == -1.0


@pytest.mark.parametrize("name", ["custom", "tanh", "elu(alpha=0.3)", "elu(size=0.3)"])
def test_an_activation_of_the_users_own_is_not_taken_for_another(name: str) -> None:
    own = Activation(np.sin, np.cos, lambda x: -np.sin(x), name=name)
    with pytest.raises(ValueError, match=r"only in numpy.*in JAX shaped\(solution, function"):
        function(own)


def test_an_activation_of_the_users_own_is_shaped_with_a_function_of_arrays() -> None:
    own = Activation(np.sin, np.cos, lambda x: -np.sin(x))
    solution = Solution("custom", input_scale=0.7, output_shift=0.2, custom=own)
    with pytest.raises(ValueError, match=r"in JAX shaped\(solution, function"):
        shaped(solution)
    close(shaped(solution, jnp.sin)(0.7), solution(0.7), 1e-6)


def test_a_shaped_activation_is_its_solution() -> None:
    points = POINTS[np.abs(POINTS) < 100.0]
    solutions = list(map(solved, SHAPED))
    functions = list(map(shaped, solutions))
    every = jax.jit(lambda x: [derivatives(f, x) for f in functions], compiler_options=QUICKLY)
    with jax.enable_x64(True):
        found = jax.device_get(every(jnp.asarray(points)))
    for solution, parts in zip(solutions, found, strict=True):
        exact = solution.shaped
        for part, f in zip(parts, (exact.value, exact.slope, exact.curvature), strict=True):
            close(part, f(points), 1e-12)


@every_solution
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_shaped_activation_rounds_once_in_half_precision(name: str, dtype: str) -> None:
    x = jax.random.normal(jax.random.key(0), (500,), dtype)
    found, wanted = shaped(solved(name))(x), solved(name)(np.asarray(x, float))
    assert found.dtype == x.dtype
    error = np.abs(np.asarray(found, float) - wanted)
    # The second term is the rounding of float32, which matters where φ̂ crosses zero.
    assert np.all(error <= ROUNDING[dtype] * np.abs(wanted) + 1e-5)


@pytest.mark.parametrize("name", ["input_scale", "input_shift", "output_scale", "output_shift"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_constants_must_be_finite(name: str, number: float) -> None:
    with pytest.raises(ValueError, match=rf"needs finite.*got {name} = {number:g}"):
        Shaped(jnp.tanh, **{name: number})


def test_an_input_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nonzero input_scale.* got input_scale = 0"):
        Shaped(jnp.tanh, 0.0)
