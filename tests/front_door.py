"""Does what a newcomer does: clones, installs and pastes every block of six pages, in order.

    python tests/front_door.py                     # installs with pip, a few minutes
    python tests/front_door.py --seed .venv        # takes installed packages from there
    python tests/front_door.py docs/jax.md         # other pages

A page is one session of bash in a clone of the last commit: every command and every block of
Python, which has an interpreter of its own, must succeed. It begins with the lines that install
what it needs, in a new environment; pages that begin with the same lines share one, in a clone
that is as new for each. With --seed, what an install line needs, and nothing else, is linked from
an existing environment just before pip runs, which then has only skipless itself to install.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pages import ROOT, Block, read_blocks

FRONT_DOOR = (
    "README.md", "docs/start.md", "docs/pytorch.md", "docs/kfac.md", "docs/training.md",
    "docs/deploy.md",
)  # fmt: skip
MAKES_ENVIRONMENT = "python3 -m venv .venv\n. .venv/bin/activate\n"
NOT_A_NEWCOMERS = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
TESTS_THEMSELVES = ("make test", "make check", "make front-door")  # would run this again


def install_lines(blocks: Sequence[Block]) -> str:
    return blocks[0].text.removeprefix(MAKES_ENVIRONMENT)


def script(blocks: Sequence[Block], folder: Path, seed: Path | None, installed: bool) -> str:
    """The page as one bash script that stops at the first failure and names its block."""
    lines = ["set -eo pipefail", "trap 'echo \"FAILED: $block\" >&2' ERR", f"cd {folder}/skipless"]
    if seed is not None:
        link = shlex.join([f"{seed}/bin/python", str(ROOT / "tests" / "link_packages.py")])
        lines += [f'pip() {{ {link} "$VIRTUAL_ENV" "$@"; command pip "$@"; }}']
    if installed:
        lines += [". .venv/bin/activate"]
    elif not blocks[0].text.startswith(MAKES_ENVIRONMENT):
        lines += MAKES_ENVIRONMENT.splitlines()
    for number, block in enumerate(blocks[installed:]):
        lines += [f"block={block}", 'echo "$SECONDS s: $block"']
        if block.language == "sh":
            text = block.text.splitlines()
            lines += [line for line in text if not line.startswith(TESTS_THEMSELVES)]
        else:
            pasted = folder / f"{number}.py"
            pasted.write_text(block.text, encoding="utf-8")
            lines.append(f"python - <{pasted}")
    return "\n".join([*lines, ""])


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def walk(page: str, folder: Path, seed: Path | None, environments: dict[str, Path]) -> bool:
    """Run the blocks of a page in a new clone; print the end of the output if one fails.

    Environments hold their own path, so all clones have the same.
    """
    clone = folder / "skipless"
    copy = ["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)]
    subprocess.run(copy, check=True)
    shown = [b for b in read_blocks(clone / page) if b.language in ("sh", "python")]
    blocks = [block for block in shown if block.reason is None]
    if kept := environments.get(install_lines(blocks)):
        kept.rename(clone / ".venv")
    (folder / "page.sh").write_text(script(blocks, folder, seed, bool(kept)), encoding="utf-8")
    variables = {k: v for k, v in os.environ.items() if k not in NOT_A_NEWCOMERS}
    if seed is not None:  # compiled packages fit one Python only; threads wait on a busy machine
        variables["PATH"] = f"{sys.base_prefix}/bin:{variables['PATH']}"
        variables.setdefault("OMP_NUM_THREADS", "1")
    began, busy = time.monotonic(), cpu_seconds()
    with (folder / "output").open("w", encoding="utf-8") as output:
        failed = subprocess.run(
            ["bash", str(folder / "page.sh")],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    seconds, busy = time.monotonic() - began, cpu_seconds() - busy
    if failed:
        lines = (folder / "output").read_text(encoding="utf-8", errors="replace").splitlines()
        print(*lines[-30:], sep="\n", file=sys.stderr)
    left = f" ({len(shown) - len(blocks)} not run)" * (len(shown) > len(blocks))
    words = f"{len(blocks)} blocks{left}, {seconds:.0f} s ({busy:.0f} s of CPU)"
    if seed is None and not kept:
        size = subprocess.check_output(["du", "-sh", str(clone / ".venv")], text=True).split()[0]
        words += f", environment {size}"
    print(f"{'FAILED' if failed else 'passed'}: {page}, {words}", flush=True)
    if not failed:
        environments[install_lines(blocks)] = (clone / ".venv").rename(folder / Path(page).stem)
    shutil.rmtree(clone)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every block of the pages as pasted.")
    parser.add_argument("pages", nargs="*", default=FRONT_DOOR, metavar="PAGE")
    parser.add_argument("--seed", type=Path, help="environment to link installed packages from")
    given = parser.parse_args()
    seed, environments = given.seed and given.seed.absolute(), {}
    with tempfile.TemporaryDirectory() as folder:
        passed = [walk(page, Path(folder), seed, environments) for page in given.pages]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
