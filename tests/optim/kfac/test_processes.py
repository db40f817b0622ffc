"""Two processes that share the batches and the work make the steps of one."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).with_name("two_processes.py")
CASES = [
    "plain",
    "wrapped first",
    "spread",
    "eigenbasis",
    "exact",
    "accumulated",
    "adaptive",
    "damping",
    "read",
    "reloaded",
    "reloaded eigenbasis",
]
BAD = ["one bad half", "one bad half, eigenbasis"]

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, list[Found]]:
    """The results of one process, and of each of two."""
    folder = tmp_path_factory.mktemp("found")
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), *map(str, process)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in ((0, 1), (0, 2), (1, 2))
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
            process.wait()
    alone, *both = (torch.load(folder / f"{name}.pt") for name in ("0-of-1", "0-of-2", "1-of-2"))
    return alone, both


@pytest.mark.parametrize("case", [*CASES, *BAD])
def test_two_processes_end_with_the_same_parameters(
    found: tuple[Found, list[Found]], case: str
) -> None:
    first, second = (own[case] for own in found[1])
    for one, other in zip(first["values"], second["values"], strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)
    assert first["dampings"] == second["dampings"]


@pytest.mark.parametrize("case", [*CASES, *BAD])
def test_two_processes_make_the_steps_of_one(found: tuple[Found, list[Found]], case: str) -> None:
    alone, (first, _) = found
    expected, own = alone[case], first[case]
    for one, other in zip(own["values"], expected["values"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert own["dampings"] == pytest.approx(expected["dampings"], rel=1e-9)


@pytest.mark.parametrize("case", ["adaptive", "damping"])
def test_the_damping_did_change(found: tuple[Found, list[Found]], case: str) -> None:
    assert len(set(found[0][case]["dampings"])) > 2


@pytest.mark.parametrize(
    ("restarted", "undisturbed"),
    [("reloaded", "plain"), ("reloaded eigenbasis", "eigenbasis")],
)
def test_a_restart_from_the_first_processs_state_makes_no_difference(
    found: tuple[Found, list[Found]], restarted: str, undisturbed: str
) -> None:
    for own in found[1]:
        pairs = zip(own[restarted]["values"], own[undisturbed]["values"], strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_curvature_leaves_gradients_alone(found: tuple[Found, list[Found]]) -> None:
    """Were the hooks of DistributedDataParallel to fire, it would fill them."""
    alone, both = found
    assert all(own[case]["untouched"] for own in (alone, *both) for case in CASES)


def test_each_factor_is_inverted_by_one_process_and_the_work_is_balanced(
    found: tuple[Found, list[Found]],
) -> None:
    alone, both = found
    shares = [own["inversions"] for own in both]
    assert Counter(shares[0]) + Counter(shares[1]) == Counter(alone["inversions"])
    # Convolution 9 x 4, then 17 x 8, 9 x 8 and 9 x 3: steps 2, 5, 8 and 11.
    assert Counter(alone["inversions"]) == {9: 12, 4: 4, 17: 4, 8: 8, 3: 4}
    costs = [sum(size**3 for size in share) for share in shares]
    largest = 17**3 * 4
    assert max(costs) == largest, "the largest factor is all that its process does"


def test_processes_that_use_different_layers_keep_the_same_weights(
    found: tuple[Found, list[Found]],
) -> None:
    one, other = (own["uneven"] for own in found[1])
    assert set(one) == {"called", "axes", "read"}
    for name, weights in one.items():
        assert weights.isfinite().all()
        torch.testing.assert_close(weights, other[name], rtol=0.0, atol=0.0)
