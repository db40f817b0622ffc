"""The training loop: steps, lines in the journal, evaluations and checkpoints, until the end.

What a run does depends on its settings and on the step alone: the order of the data, crops, flips
and the learning rate are functions of the step, and everything else is in the checkpoint. So a run
that was stopped, or killed, goes on as if nothing had happened.

How well a network does on data that it was not trained on.

What was measured in the steps since the last line of the journal.

Optimisers that measure curvature in forward passes, such as K-FAC.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .batches import Batches
from .checkpoint import Checkpoint, Checkpoints, random_state, restore_random_state
from .data import Data
from .journal import RunLog
from .process import Interruption, Process, distribute, no_sync
from .settings import Schedule, Settings
from .teacher import Teacher


def evaluate(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    process: Process,
    forward: Callable[[nn.Module, Tensor], Tensor],
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Loss, top-1 and top-5 accuracy over the batches of all processes; None if it was stopped.

    The loss is the plain cross-entropy, whatever the network was trained with.
    """
    sums = torch.zeros(4, dtype=torch.float64)  # of losses, top-1 and top-5 hits, and samples
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for images, labels in batches:
                if stopping():
                    break
                labels = labels.to(process.device, non_blocking=True)
                sums += _sums(forward(network, images).float(), labels)
    finally:
        network.train(training)
    if process.any_rank([stopping()])[0]:
        return None
    loss, top1, top5, count = process.sum(sums).tolist()
    return {"loss": loss / count, "top1": top1 / count, "top5": top5 / count}


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    counts = [loss.item(), best[:, 0].sum().item(), best.sum().item(), len(labels)]
    return torch.tensor(counts, dtype=torch.float64)


class Window:
    """Losses and hits of steps, left on their device until someone asks."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []
        self._images = 0
        self._seconds = 0.0
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._losses)

    def resume_clock(self) -> None:
        """Count time from now on; evaluations and checkpoints stop the clock."""
        self._since = time.perf_counter()

    def stop_clock(self) -> float:
        """Seconds since the clock ran, which are added to those of the window."""
        passed = 0.0 if self._since is None else time.perf_counter() - self._since
        self._seconds, self._since = self._seconds + passed, None
        return passed

    def add(self, loss: Tensor, hits: Tensor, images: int) -> None:
        """One step: its loss, and how many of its images were labelled right."""
        self._losses.append(loss)
        self._hits.append(hits)
        self._images += images

    def bad_step(self) -> tuple[int, float] | None:
        """How many steps before the last one the first loss was not finite, and that loss."""
        for index, loss in enumerate(self._values(self._losses)):
            if not math.isfinite(loss):
                return len(self) - 1 - index, loss
        return None

    def last_is_bad(self) -> bool:
        """Whether the last loss is not finite; on a GPU, this waits for it."""
        return not math.isfinite(self._losses[-1].item())

    def summary(self, process: Process) -> dict[str, float]:
        """Mean loss, accuracy and images a second over all processes; the window is empty then."""
        own = [sum(self._values(self._losses)), sum(self._values(self._hits)), self._images]
        losses, hits, images = process.sum(torch.tensor(own, dtype=torch.float64)).tolist()
        steps, seconds = len(self), self._seconds
        self._losses, self._hits, self._images, self._seconds = [], [], 0, 0.0
        return {
            "loss": losses / (steps * process.world),
            "accuracy": hits / images,
            "images_per_second": images / seconds if seconds else 0.0,
        }

    def state(self) -> dict[str, Any]:
        """The window in plain types."""
        return {
            "losses": self._values(self._losses),
            "hits": self._values(self._hits),
            "images": self._images,
            "seconds": self._seconds,
        }

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """Take over a window that `state` told."""
        self._losses = list(torch.tensor(state["losses"], dtype=torch.float32, device=device))
        self._hits = list(torch.tensor(state["hits"], dtype=torch.int64, device=device))
        self._images, self._seconds = state["images"], state["seconds"]

    @staticmethod
    def _values(tensors: list[Tensor]) -> list[float]:
        return torch.stack(tensors).tolist() if tensors else []


@runtime_checkable
class CurvatureOptimizer(Protocol):
    """What the engine has to do for them."""

    def curvature(self, outputs: Tensor, targets: Tensor) -> None:
        """Measure the curvature in the pass that gave `outputs`, if it is time to."""
        ...

    def synchronize(self) -> None:
        """Make it equal on all processes, before one of them saves it."""
        ...


_USUAL_WARMUP = 5  # epochs, as in the paper (appendix D)


class DivergedError(ArithmeticError):
    """The loss, or a weight, is no number any more."""

    exit_code = 1  # of the command line: an outcome, where 2 is for bad input


@dataclass(frozen=True)
class RunStatus:
    """Where a run came to: `finished`, or stopped on the way, with everything saved."""

    step: int
    total: int
    finished: bool


class Engine:
    """A model, its optimiser and data, ready to be trained.

    The model is on its device, in the memory format of the settings, before the optimiser is made.
    With a `teacher`, it also learns from what that says of each batch, as it is augmented.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        data: Data,
        settings: Settings,
        process: Process = Process(),  # noqa: B008 - frozen
        normalize: Callable[[Tensor], Tensor] | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        self.settings, self.process = settings, process
        self.model, self.optimizer = model, optimizer
        self.curvature_optimizer = optimizer if isinstance(optimizer, CurvatureOptimizer) else None
        self.training, self.validation = _dealt(data, settings, process, normalize)
        self.total = settings.steps or settings.epochs * self.training.steps
        self.schedule = Schedule(
            settings.schedule, self.total, self._warmup(), settings.mark_fractions
        )
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.network, self.teacher = distribute(model, process), teacher
        if settings.compile:
            if self.curvature_optimizer is not None:
                raise ValueError(
                    f"compile was asked for with {type(optimizer).__name__}, which listens to the "
                    "layers of the network, and a compiled one has none. Leave it out."
                )
            self.network.compile()
            if teacher is not None:
                teacher.network.compile()
        self.average: AveragedModel | None = None
        if settings.average is not None:
            decay = get_ema_multi_avg_fn(settings.average)
            self.average = AveragedModel(model, multi_avg_fn=decay)
        self.step = 0
        self.seconds = 0.0
        self.window = Window()

    def _warmup(self) -> int:
        if self.settings.warmup is None:
            return min(_USUAL_WARMUP * self.training.steps, self.total // 10)
        return round(self.settings.warmup * self.training.steps)

    def run(self, folder: Path, *, resume: bool = False, progress: bool = True) -> RunStatus:
        """Train until the end, or until a signal asks to stop, leaving records in `folder`.

        With `resume`, go on from the newest checkpoint there, if there is one.
        """
        checkpoints = Checkpoints(folder, self.settings.keep)
        torch.manual_seed(self.settings.seed + 1_000_003 * self.process.rank)  # for dropout
        self._start(checkpoints, resume)
        with (
            Interruption(patient=self.process.world > 1) as interruption,
            RunLog(
                folder,
                self.step,
                self.total,
                last=checkpoints.describe_newest,
                quiet=not self.process.is_main,
                progress=progress,
            ) as log,
        ):
            return self._loop(checkpoints, log, interruption)

    def _start(self, checkpoints: Checkpoints, resume: bool) -> None:
        """Take over the newest checkpoint, or make sure that there is none."""
        if not resume and self.process.any_rank([bool(checkpoints.paths())])[0]:
            raise FileExistsError(
                f"A run was to start in {checkpoints.folder.parent}, which has checkpoints of "
                "another one. Resume that, or take another folder."
            )
        with warnings.catch_warnings():
            if not self.process.is_main:  # one of us is enough to tell of damage
                warnings.simplefilter("ignore")
            found = checkpoints.load_newest() if resume else None
        if found is not None:
            self._restore(found)
        if len(set(self.process.all_gather(self.step))) > 1:
            raise OSError(
                f"The processes find different checkpoints in {checkpoints.folder}. It must be on "
                "a disk that all of them share."
            )

    def _loop(self, checkpoints: Checkpoints, log: RunLog, interruption: Interruption) -> RunStatus:
        batches = self._batches()
        stop = False
        saved = self.process.any_rank([bool(checkpoints.paths())])[0]  # what we start from
        while (evaluated := self._evaluate(log, interruption)) and not stop:
            if self.step == self.total:
                break
            self.window.resume_clock()
            self._train_step(list(islice(batches, self.settings.accumulate)))
            bad = self._looks_bad()
            self.seconds += self.window.stop_clock()
            stop, bad = self.process.any_rank([interruption.requested, bad])
            if bad:
                raise self._diverged(checkpoints)
            if self._log_due():
                self._log(log)
            log.advance(self.step)
            if saved := self._checkpoint_due():
                self._save(checkpoints, log)
        if not saved:
            self._save(checkpoints, log)
        return RunStatus(self.step, self.total, evaluated and self.step == self.total)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The parts of all steps that are left."""
        epoch, first = divmod(self.step, self.training.steps)
        while True:
            yield from self.training.epoch(epoch, first)
            epoch, first = epoch + 1, 0

    def _train_step(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        factor = self.schedule.factor(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        losses, hits, images = [], [], 0
        for number, (inputs, labels) in enumerate(parts, start=1):
            labels = labels.to(self.process.device, non_blocking=True)
            # Gradients of all processes are averaged once, with those of the last part.
            with no_sync(self.network) if number < len(parts) else nullcontext():
                logits, loss = self._logits_and_loss(self._placed(inputs), labels)
                (loss / len(parts) if len(parts) > 1 else loss).backward()
            losses.append(loss.detach())
            hits.append((logits.detach().argmax(dim=1) == labels).sum())
            images += len(labels)
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        whole = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        self.window.add(whole, hits[0] if len(hits) == 1 else torch.stack(hits).sum(), images)

    def _logits_and_loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # The teacher first, while the network keeps nothing for its backward pass yet.
        taught = None if self.teacher is None else self.teacher.outputs(images, self._forward)
        logits = self._forward(self.network, images)
        if self.curvature_optimizer is not None:
            self.curvature_optimizer.curvature(logits, labels)
        smoothing = self.settings.label_smoothing
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        if self.teacher is not None and taught is not None:
            loss = self.teacher.loss(loss, logits.float(), taught)
        return logits, loss

    def _placed(self, images: Tensor) -> Tensor:
        layout = torch.channels_last if self.settings.channels_last else torch.preserve_format
        return images.to(self.process.device, non_blocking=True, memory_format=layout)

    def _forward(self, network: nn.Module, images: Tensor) -> Tensor:
        images = self._placed(images)
        if self.settings.precision == "float32":
            return network(images)
        with torch.autocast(self.process.device.type, torch.bfloat16):
            return network(images)

    def _looks_bad(self) -> bool:
        # Asking a GPU for each loss would stall it, so its losses are looked at together.
        if self.process.device.type == "cpu":
            return self.window.last_is_bad()
        return (self._log_due() or self._checkpoint_due()) and self.window.bad_step() is not None

    def _diverged(self, checkpoints: Checkpoints) -> DivergedError:
        back, loss = self.window.bad_step() or (0, math.nan)  # or it was another process's
        return self._error(f"The loss is {loss}", self.step - back, checkpoints)

    def _error(self, what: str, step: int, checkpoints: Checkpoints) -> DivergedError:
        rate = max(group["initial_lr"] for group in self.optimizer.param_groups)
        return DivergedError(
            f"{what} at step {step} of {self.total}, with learning rate "
            f"{rate * self.schedule.factor(step - 1):.4g}. The last good checkpoint: "
            f"{checkpoints.describe_newest()}. Lower the learning rate, lengthen the warm-up, or "
            "clip gradients."
        )

    def _log_due(self) -> bool:
        return self.step % self.settings.log_every == 0 or self.step == self.total

    def _log(self, log: RunLog) -> None:
        values = self.window.summary(self.process)
        rate = self.optimizer.param_groups[0]["lr"]
        epoch = self.step / self.training.steps
        log.write(
            "train",
            self.step,
            {"epoch": epoch, "learning_rate": rate, **values, "seconds": self.seconds},
        )

    def _evaluate(self, log: RunLog, interruption: Interruption) -> bool:
        """Evaluate if it is time to, and was not done before a stop; False if asked to stop."""
        period = self.settings.evaluate_every * self.training.steps
        if self.step != self.total and (self.step == 0 or self.step % period):
            return True
        self.process.broadcast(self.model.buffers())  # BatchNorm's statistics, as they are saved
        for kind, network in (("validation", self.model), ("average", self.average)):
            if network is None or self.process.any_rank([log.has(kind, self.step)])[0]:
                continue
            found = evaluate(
                network,
                self.validation.in_order(),
                self.process,
                self._forward,
                stopping=lambda: interruption.requested,
            )
            if found is None:
                return False
            epoch = self.step / self.training.steps
            log.write(kind, self.step, {"epoch": epoch, **found, "seconds": self.seconds})
        return True

    def _checkpoint_due(self) -> bool:
        period = self.settings.checkpoint_every or self.training.steps
        return self.step % period == 0 or self.step == self.total

    def _save(self, checkpoints: Checkpoints, log: RunLog) -> None:
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._error("A weight is not finite", self.step, checkpoints)
        if self.curvature_optimizer is not None:
            self.curvature_optimizer.synchronize()
        own = {"random": random_state(self.process.device), "window": self.window.state()}
        everyones = self.process.all_gather(own)
        if not self.process.is_main:
            return
        log.flush()
        state: dict[str, Any] = {
            "seconds": self.seconds,
            "optimizer": self.optimizer.state_dict(),
            "processes": everyones,
        }
        average = None
        if self.average is not None:
            average = self.average.module.state_dict()
            state["averaged"] = int(self.average.n_averaged)
        checkpoints.save(Checkpoint(self.step, self.model.state_dict(), state, average))

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self.model.load_state_dict(checkpoint.weights)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None and checkpoint.average is not None:
            self.average.module.load_state_dict(checkpoint.average)
            self.average.n_averaged.fill_(state["averaged"])
        self.step, self.seconds = checkpoint.step, state["seconds"]
        if len(state["processes"]) == self.process.world:
            own = state["processes"][self.process.rank]
            restore_random_state(own["random"], self.process.device)
            self.window.restore(own["window"], self.process.device)


def _dealt(
    data: Data,
    settings: Settings,
    process: Process,
    normalize: Callable[[Tensor], Tensor] | None,
) -> tuple[Batches, Batches]:
    """How the images for training, and those for validation, are dealt out to this process."""
    training, validation = (
        Batches(
            split,
            settings.batch_size,
            settings.seed,
            process.rank,
            process.world,
            settings.accumulate,
            settings.workers or 0,
            normalize,
            classes,
        )
        for split, classes in (
            (data.train, settings.classes_per_batch),
            (data.validation, None),
        )
    )
    if not training.steps:
        raise ValueError(
            f"Batches of {settings.batch_size} were asked for, but there are only "
            f"{len(data.train)} images for training. Make them smaller."
        )
    return training, validation
