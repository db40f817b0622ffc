"""zeros: those that SciPy's brentq finds, in far fewer calls than halving takes."""

import numpy as np
import pytest
from scipy.optimize import brentq

from skipless.core.zeros import zeros

FUNCTIONS = [
    lambda x: np.cos(x) - x,
    lambda x: np.expm1(20.0 * (x - 0.9)),
    lambda x: np.arctan(1e4 * (x - 0.123)),
    lambda x: (x - 0.25) ** 3,
    lambda x: 0.7 - x,
]


class Counted:
    """All functions, each one's calls counted."""

    def __init__(self) -> None:
        self.calls = np.zeros(len(FUNCTIONS), int)

    def __call__(self, rows: np.ndarray, x: np.ndarray) -> np.ndarray:
        self.calls[rows] += 1
        return np.array([FUNCTIONS[row](value) for row, value in zip(rows, x, strict=True)])


@pytest.mark.parametrize("ends", [(-1.0, 1.5), (1.5, -1.0)])
def test_zeros_are_those_of_brentq_and_no_function_is_called_longer_than_it_needs(ends) -> None:
    f = Counted()
    found = zeros(f, np.array([ends] * len(FUNCTIONS)), within=1e-13, steps=60)
    wanted = [brentq(g, -1.0, 1.5, xtol=1e-15, rtol=1e-15) for g in FUNCTIONS]
    slack = np.full(len(FUNCTIONS), 1e-12)
    slack[3] = 1e-4  # where the cube is within 1e-13
    assert np.all(np.abs(found - wanted) < slack)
    # Halving a bracket of 2.5 down to 1e-12 takes 42 calls, and one to 1e-4 takes 15.
    assert f.calls[4] == 3 + 1  # of a line: the ends, the middle, and the zero
    assert np.max(f.calls) < 30


def test_a_jump_is_found_by_halving() -> None:
    found = zeros(lambda _, x: np.sign(x - 0.3), np.array([[0.0, 1.0]]), within=0.0, steps=40)
    assert abs(found[0] - 0.3) < 2.0**-39


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("last_number", [0.6, 0.45])
def test_values_that_are_no_numbers_are_kept_away_from(ends, last_number: float) -> None:
    f = lambda _, x: np.where(x < last_number, np.sin(x - 0.4), np.nan)
    assert zeros(f, np.array([ends]), within=1e-12, steps=60)[0] == pytest.approx(0.4)
