"""Where kfac-jax runs: it needs a JAX older than ours, so it has an environment of its own.

`make test` makes it, and goes on without it where that fails; `SKIPLESS_KFAC_JAX_PYTHON` names the
Python of another one.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "examples" / "jax_kfac" / "requirements.txt"
MADE = ROOT / ".venv-jax-example"

named = os.environ.get("SKIPLESS_KFAC_JAX_PYTHON")
PYTHON = named or (str(MADE / "bin" / "python") if (MADE / ".ready").exists() else None)

in_its_environment = pytest.mark.skipif(
    PYTHON is None,
    reason=f"there is no {MADE.name}, and SKIPLESS_KFAC_JAX_PYTHON names no other Python with "
    f"{REQUIREMENTS.relative_to(ROOT)}: make {MADE.name}/.ready",
)
