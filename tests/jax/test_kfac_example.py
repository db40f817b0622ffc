"""The example in JAX with kfac-jax, in the environment that it asks for."""

import os
import re
import subprocess
from pathlib import Path

from kfac_jax_environment import PYTHON, REQUIREMENTS, ROOT, in_its_environment

EXAMPLE = REQUIREMENTS.with_name("train.py")


def pins(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", file.read_text(), re.MULTILINE))


def test_its_environment_has_the_last_jax_that_kfac_jax_runs_on_and_else_our_versions() -> None:
    own, ours = pins(REQUIREMENTS), pins(ROOT / "constraints.txt")
    assert own["kfac-jax"] == "0.0.8"
    assert own["jax"] == own["jaxlib"]
    assert own["jax"].startswith("0.8.")
    assert {"numpy", "scipy", "click", "scikit-learn"} <= own.keys()
    shared = own.keys() & ours.keys() - {"jax"}
    assert {name: own[name] for name in shared} == {name: ours[name] for name in shared}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    command = [str(PYTHON), str(EXAMPLE), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@in_its_environment
def test_both_optimisers_start_from_the_same_loss_and_lower_it() -> None:
    done = run("--steps", "12", "--depth", "4", "--width", "24", "--sgd-rate", "0.005")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "step     kfac      sgd" in lines
    rows = [line.split() for line in lines[lines.index("step     kfac      sgd") + 1 :]]
    assert [int(row[0]) for row in rows] == list(range(12))
    first, *_, last = [[float(loss) for loss in row[1:]] for row in rows]
    assert first[0] == first[1]  # the same weights and the same batch
    assert all(loss < 0.9 * first[0] for loss in last)  # batches differ by about 0.1
