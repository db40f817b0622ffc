"""Where a run comes from: versions, commit and machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata

import torch

from skipless.record import Json

_PACKAGES = ("skipless", "torch", "numpy", "scipy", "pytorch-optimizer", "pillow")


def provenance() -> dict[str, Json]:
    """What `run.json` tells of the circumstances."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [*gpus],
        },
        "command": [*sys.argv],
    }


def _versions() -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    """What git answers for the current folder, or None where there is no git or no repository."""
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
