"""The example in JAX with kfac-jax, in the environment that it asks for.

make jax-example
SKIPLESS_KFAC_JAX_PYTHON=.venv-jax-example/bin/python python -m pytest tests/jax
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "jax_kfac"
PYTHON = os.environ.get("SKIPLESS_KFAC_JAX_PYTHON")
needs = f"pip install -r {(EXAMPLE / 'requirements.txt').relative_to(ROOT)}"
in_its_environment = pytest.mark.skipif(
    PYTHON is None,
    reason="SKIPLESS_KFAC_JAX_PYTHON names no Python with kfac-jax: make a venv, and in it "
    + needs,
)


def pins(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", file.read_text(), re.MULTILINE))


def test_its_environment_has_the_last_jax_that_kfac_jax_runs_on_and_else_our_versions() -> None:
    own, ours = pins(EXAMPLE / "requirements.txt"), pins(ROOT / "constraints.txt")
    assert own["kfac-jax"] == "0.0.8"
    assert own["jax"] == own["jaxlib"]
    assert own["jax"].startswith("0.8.")
    assert {"numpy", "scipy", "click", "scikit-learn"} <= own.keys()
    shared = own.keys() & ours.keys() - {"jax"}
    assert {name: own[name] for name in shared} == {name: ours[name] for name in shared}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    command = [str(PYTHON), str(EXAMPLE / "train.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@in_its_environment
def test_both_optimisers_start_from_the_same_loss_and_lower_it() -> None:
    missing = "import importlib.util as u; print(*(n for n in %r if not u.find_spec(n)))"
    asked = [str(PYTHON), "-c", missing % (("kfac_jax", "sklearn", "click"),)]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    if found:
        pytest.skip(f"{PYTHON} has no {', '.join(found)}: {needs}")

    done = run("--steps", "3", "--depth", "6", "--width", "40")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "step     kfac      sgd" in lines
    rows = [line.split() for line in lines[lines.index("step     kfac      sgd") + 1 :]]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    first, *_, last = [[float(loss) for loss in row[1:]] for row in rows]
    assert first[0] == first[1]  # the same weights and the same batch
    assert last[0] < first[0]
    assert last[1] < first[1]


@in_its_environment
def test_a_mistake_is_told_in_one_line() -> None:
    done = run("--steps", "0")
    assert done.returncode == 2
    assert done.stderr.endswith("argument --steps: '0' is not a whole number above zero\n")
