"""Does what a newcomer does: clones, installs and pastes every block of six pages, in order.

    python tests/front_door.py                     # installs with pip, a few minutes
    python tests/front_door.py --seed .venv        # takes installed packages from there
    python tests/front_door.py docs/jax.md         # other pages

Each page has its own clone of the last commit and a new environment, in an empty folder. A page is
one session of bash: every command and every block of Python, which has an interpreter of its own,
must succeed. README makes the environment; a page that does not gets an empty one, activated. With
--seed, what an install line needs, and nothing else, is linked from an existing environment just
before pip runs, which then has only skipless itself to install.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pages import ROOT, Block, read_blocks

FRONT_DOOR = (
    "README.md", "docs/start.md", "docs/pytorch.md", "docs/kfac.md", "docs/training.md",
    "docs/deploy.md",
)  # fmt: skip
MAKES_ENVIRONMENT = "python3 -m venv .venv\n. .venv/bin/activate\n"
TESTS_THEMSELVES = ("make test", "make check", "make front-door")  # would run this again


def script(blocks: list[Block], folder: Path, seed: Path | None) -> str:
    """The page as one bash script that stops at the first failure and names its block."""
    lines = ["set -eo pipefail", "trap 'echo \"FAILED: $block\" >&2' ERR", f"cd {folder}/skipless"]
    if seed is not None:
        link = shlex.join([f"{seed}/bin/python", str(ROOT / "tests" / "link_packages.py")])
        lines += [f'pip() {{ {link} "$VIRTUAL_ENV" "$@"; command pip "$@"; }}']
    if not any(MAKES_ENVIRONMENT in block.text for block in blocks):
        lines += MAKES_ENVIRONMENT.splitlines()
    for number, block in enumerate(blocks):
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


def walk(page: str, folder: Path, seed: Path | None) -> bool:
    """Run the blocks of a page in a new clone; print the end of the output if one fails."""
    clone = folder / "skipless"
    copy = ["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)]
    subprocess.run(copy, check=True)
    shown = [b for b in read_blocks(clone / page) if b.language in ("sh", "python")]
    blocks = [block for block in shown if block.reason is None]
    (folder / "page.sh").write_text(script(blocks, folder, seed), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if seed is not None:  # compiled packages fit one Python only; threads wait on a busy machine
        environment["PATH"] = f"{sys.base_prefix}/bin:{environment['PATH']}"
        environment.setdefault("OMP_NUM_THREADS", "1")
    began, busy = time.monotonic(), cpu_seconds()
    with (folder / "output").open("w", encoding="utf-8") as output:
        failed = subprocess.run(
            ["bash", str(folder / "page.sh")],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    seconds, busy = time.monotonic() - began, cpu_seconds() - busy
    if failed:
        lines = (folder / "output").read_text(encoding="utf-8", errors="replace").splitlines()
        print(*lines[-30:], sep="\n", file=sys.stderr)
    size = subprocess.check_output(["du", "-sh", str(clone / ".venv")], text=True).split()[0]
    left = f" ({len(shown) - len(blocks)} not run)" * (len(shown) > len(blocks))
    words = f"{len(blocks)} blocks{left}, {seconds:.0f} s ({busy:.0f} s of CPU), environment {size}"
    print(f"{'FAILED' if failed else 'passed'}: {page}, {words}", flush=True)
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every block of the pages as pasted.")
    parser.add_argument("pages", nargs="*", default=FRONT_DOOR, metavar="PAGE")
    parser.add_argument("--seed", type=Path, help="environment to link installed packages from")
    given = parser.parse_args()
    seed = given.seed and given.seed.absolute()
    passed = []
    for page in given.pages:
        with tempfile.TemporaryDirectory() as folder:
            passed.append(walk(page, Path(folder), seed))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
