"""Seconds and residuals of solving with dks and with skipless, as JSON.

Both get the same chains and targets. What they find is put into the conditions that define it, by
quadrature in 60 digits (tests/oracles.py), which neither library has a part in.
"""

# pyright: reportMissingImports=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportInvalidTypeForm=false

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from dks.base import activation_transform
from mpmath import mp, mpf

from skipless import DKS, TAT, Graph, solve

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from oracles import DIGITS, ORACLES, Oracle, derivatives, gaussian_means, x_marks

CASES = (
    ("TAT", "leaky_relu"),
    ("TAT", "tanh"),
    ("TAT", "softplus"),
    ("DKS", "leaky_relu"),
    ("DKS", "softplus"),
    ("DKS", "tanh"),
    ("DKS", "elu"),
)
DEPTHS = (20, 100)
ETA, TAU, ZETA = 0.9, 0.3, 1.5  # the defaults of both
ROUNDS, PATIENCE = 5, 5.0  # times of a case, and the seconds after which it is timed no more
WARM = 5  # solves of ours for each of theirs

Parameters = Mapping[str, float | None]


# dks returns a closure over the numbers that it found, so they are read off on their way into it.
used: list[Parameters] = []
wrapped = activation_transform._transform_activation


def remembering(phi: Callable[..., object], parameters: Parameters) -> object:
    used.append(parameters)
    return wrapped(phi, parameters)


def by_dks(method: str, phi: str, depth: int) -> Parameters:
    def subnet_max(x: float, r: Callable[[float], float]) -> float:
        for _ in range(depth):
            x = r(x)
        return x

    activation_transform.get_transformed_activations(
        [phi], method=method, subnet_max_func=subnet_max
    )
    return used[-1]


def by_skipless(method: str, phi: str, depth: int) -> Parameters:
    own = TAT(eta=ETA, tau=TAU) if method == "TAT" else DKS(zeta=ZETA)
    return solve(Graph.chain(depth), own, phi).parameters


def residual(method: str, phi: str, depth: int, found: Parameters) -> float:
    """The largest deviation from the conditions, of Q(1), Q′(1), C(0), C′(1), C″(1) or C_f(0)."""
    with mp.workdps(DIGITS):
        scale, shift = mpf(found.get("input_scale") or 1.0), mpf(found.get("input_shift") or 0.0)
        factor, offset = mpf(found["output_scale"]), mpf(found.get("output_shift") or 0.0)
        slope = found.get("negative_slope")
        base: Oracle = ORACLES[phi] if slope is None else lambda x: x if x > 0 else mpf(slope) * x

        def integrand(z: mpf) -> tuple[mpf, ...]:
            value, first, second = derivatives(base, scale * z + shift)
            value, first = factor * (value + offset), factor * scale * first
            second = factor * scale**2 * second
            return value, value**2, value * first * z, first**2, second**2

        mean, q, q_slope, slopes, curvatures = gaussian_means(integrand, x_marks(phi, scale, shift))
        wrong = {"Q(1)": q - 1}
        if method == "TAT" and phi == "leaky_relu":
            wrong["C_f(0)"] = composed(mpf(slope), depth) - mpf(ETA)
        elif method == "TAT":
            wrong |= {"Q'(1)": q_slope - 1, "C'(1)": slopes / q - 1}
            wrong["C''(1)"] = curvatures / q - mpf(TAU) / depth
        else:
            target = mpf(ZETA) ** (mpf(1) / depth)
            wrong |= {"Q'(1)": q_slope - 1, "C(0)": mean**2 / q, "C'(1)": slopes / q - target}
        return float(max(abs(deviation) for deviation in wrong.values()))


def composed(slope: mpf, depth: int) -> mpf:
    """C_f(0) of a chain of leaky ReLUs, by equation 9."""
    c, weight = mpf(0), (1 - slope) ** 2 / (mp.pi * (1 + slope**2))
    for _ in range(depth):
        c += weight * (mp.sqrt(1 - c * c) - c * mp.acos(c))
    return c


def timed(work: Callable[[], Parameters]) -> tuple[float, Parameters]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def compared(method: str, phi: str, depth: int) -> dict[str, object]:
    theirs, ours = (partial(by, method, phi, depth) for by in (by_dks, by_skipless))
    first, own = timed(ours)
    times: tuple[list[float], list[float]] = ([], [])
    peer: Parameters = {}
    while len(times[0]) < ROUNDS and sum(times[0]) < PATIENCE:
        spent, peer = timed(theirs)
        times[0].append(spent)
        times[1].extend(timed(ours)[0] for _ in range(WARM))
    return {
        "method": method,
        "activation": phi,
        "depth": depth,
        "first": first,
        "seconds": [statistics.median(both) for both in times],
        "residuals": [residual(method, phi, depth, found) for found in (peer, own)],
    }


def main() -> None:
    # Overflows inside of dks.
    warnings.simplefilter("ignore")
    activation_transform._transform_activation = remembering
    print(json.dumps([compared(*case, depth) for case in CASES for depth in DEPTHS]))


if __name__ == "__main__":
    main()
