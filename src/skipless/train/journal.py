"""What a run reports: `metrics.jsonl`, TensorBoard events, a progress bar, and its provenance."""

import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from skipless.record import Json, MetricsFile, number, require_run_folder

EVENTS = "tensorboard"

_PACKAGES = ("skipless", "torch", "numpy", "scipy", "pytorch-optimizer", "pillow")
_BAR = {
    "loss": "loss {:.3f}",
    "accuracy": "accuracy {:.1%}",
    "images_per_second": "{:.0f} images/s",
}


class RunLog(AbstractContextManager["RunLog"]):
    """Writes metrics.jsonl, TensorBoard's events and, with `progress` on a terminal, a bar.

    Events are written at once, in this thread. PyTorch's and TensorBoard's writers hand them to a
    thread; on a full disk it dies with a traceback, and later writes block forever. Errors name the
    `newest` checkpoint.
    """

    def __init__(
        self, folder: Path, step: int, total: int, newest: Callable[[], str], progress: bool
    ) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tqdm import tqdm

        self._newest_checkpoint = newest
        self._metrics, events = MetricsFile(folder), folder / EVENTS
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        with self._explain_os_errors():
            rows = self._metrics.rewind(step)
            events.mkdir(parents=True, exist_ok=True)
            self._events = (events / name).open("xb")
            self._records = RecordWriter(self._events)
            self._write_event(0, file_version="brain.Event:2")
            # TensorBoard forgets events of earlier files from this step on.
            self._write_event(step + 1, session_log={"status": "START"})
        self._found = {(str(row["kind"]), int(number(row, "step"))) for row in rows}
        self._newest: dict[str, int] = {}  # written since, by kind: all would fill the memory
        off = not (progress and sys.stderr.isatty())
        self._bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True, disable=off)
        if not off:  # the clock on the wall, which tqdm looks at, may jump
            self._bar._time = time.monotonic  # pyright: ignore[reportAttributeAccessIssue]
            self._bar.start_t = self._bar.last_print_t = time.monotonic()
        self._bar_texts: dict[str, str] = {}

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        with self._explain_os_errors():
            self._events.close()

    def has(self, kind: str, step: int) -> bool:
        """Whether there was a row of this kind for this step before, or is as the newest one."""
        return (kind, step) in self._found or self._newest.get(kind) == step

    def advance(self, step: int) -> None:
        """Move the bar to `step`."""
        self._bar.update(step - self._bar.n)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers measured after `step`."""
        self._newest[kind] = step
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with self._explain_os_errors():
            self._metrics.append(kind, step, plain)
            for name, value in values.items():
                content = {"tag": f"{kind}/{name}", "simple_value": value}
                self._write_event(step, summary={"value": [content]})
        if kind == "train":
            self._bar_texts |= {name: text.format(values[name]) for name, text in _BAR.items()}
        elif "top1" in values:
            self._bar_texts[kind] = f"{kind} {values['top1']:.1%}"
        self._bar.set_postfix_str(", ".join(self._bar_texts.values()), refresh=False)

    def flush(self) -> None:
        """Make all that was written as durable as a checkpoint."""
        with self._explain_os_errors():
            self._metrics.flush()
            self._events.flush()
            os.fsync(self._events.fileno())

    def _write_event(self, step: int, **content: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore

        event = Event(wall_time=time.time(), step=step, **content)
        self._records.write(event.SerializeToString())

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        """If the disk is full, say what is safe and what to do."""
        try:
            yield
        except OSError as error:
            require_run_folder(self._metrics.path.parent)
            raise OSError(
                f"Cannot write metrics to {self._metrics.path.parent}: {error.strerror or error}. "
                f"The newest checkpoint is {self._newest_checkpoint()}. Free some space, then "
                "rerun with --resume."
            ) from error


def provenance() -> dict[str, Json]:
    """Versions, commit, machine and command, for `run.json`."""
    versions: dict[str, Json] = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(
            _git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules")
        ),
        "skipless_commit": _own_commit(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": f"{_cpu()}, {torch.backends.cpu.get_cpu_capability()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "command": [*sys.argv],
    }


def _own_commit() -> str | None:
    """The commit that this package was run from; None if it is not from a repository of its own."""
    folder = Path(__file__).parent
    at = ("-C", str(folder))
    if _git(*at, "ls-files", "--error-unmatch", str(Path(__file__))) is None:
        return None
    changed = _git(*at, "status", "--porcelain", "--ignore-submodules", str(folder.parent))
    return f"{_git(*at, 'rev-parse', 'HEAD')}{' and changes' if changed else ''}"


def _cpu() -> str:
    """The processor's model, on which rounding may depend."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        return next(n.partition(":")[2].strip() for n in lines if n.startswith("model name"))
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """The output of git in the current folder; None without git or a repository.

    A repository's own settings can name programs for git to run: to watch files, to filter them, to
    fetch objects that it lacks. Here all of these are off.
    """
    off = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
    filters = _run_git(off, "config", "--null", "--name-only", "--get-regexp", r"^filter\.") or ""
    off |= {f"{name.rpartition('.')[0]}.required": "false" for name in filters.split("\0") if name}
    off |= {name: "" for name in filters.split("\0") if name and not name.endswith(".required")}
    return _run_git(off, *arguments)


def _run_git(settings: Mapping[str, str], *arguments: str) -> str | None:
    own = {"GIT_CONFIG_COUNT": str(len(settings)), "GIT_ALLOW_PROTOCOL": "none"}
    for place, (name, value) in enumerate(settings.items()):
        own |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, env=os.environ | own
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # its output may not be text
        return None
    return done.stdout.strip() if done.returncode == 0 else None
