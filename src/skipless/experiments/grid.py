"""Many small runs at once, each in a process of its own with one thread."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from tqdm import tqdm

from skipless.record import METRICS, RUN, Record
from skipless.train.process import cores, end_with_parent

from .configuration import Configuration
from .once import came_to_its_end


def trained(
    configurations: Mapping[str, Configuration], folder: Path, processes: int | None = None
) -> dict[str, Record]:
    """The records of all runs by name, each left in `folder` under its name.

    One that diverges ends there, without a last evaluation. A bar shows how far all of them are.
    """
    # Spawned, because threads of PyTorch do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes or cores(), mp_context=context, initializer=end_with_parent
    ) as pool:
        running = {
            name: pool.submit(came_to_its_end, configuration, folder / name)
            for name, configuration in configurations.items()
        }
        try:
            _watch(running, folder)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {name: Record.read(folder / name) for name in configurations}


def _watch(running: Mapping[str, Future[bool]], folder: Path) -> None:
    """Wait for all runs, showing what each of those under way tells of itself."""
    with tqdm(
        total=len(running), unit="run", dynamic_ncols=True, disable=not sys.stderr.isatty()
    ) as bar:
        while True:
            done = [name for name, future in running.items() if future.done()]
            for name in done:
                running[name].result()
            bar.update(len(done) - bar.n)
            if not bar.disable:
                bar.set_postfix_str(_told(folder, (n for n in running if n not in done)))
            if len(done) == len(running):
                return
            time.sleep(0.3)


def _told(folder: Path, names: Iterable[str]) -> str:
    begun = (name for name in names if (folder / name / RUN).exists())
    return "; ".join(f"{name} {last_told(folder / name)}".rstrip() for name in begun)


def last_told(run: Path) -> str:
    """The last evaluation of the run in a folder, if there was one."""
    if not (run / METRICS).exists():
        return ""
    epochs, accuracies = (Record.read(run).series("validation", n)[1] for n in ("epoch", "top1"))
    return f"epoch {epochs[-1]:g}: {accuracies[-1]:.0%}" if epochs else ""
