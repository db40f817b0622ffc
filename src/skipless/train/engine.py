"""The training loop: steps, metrics, evaluations and checkpoints; learning from a teacher.

A run is a function of its settings and of the step: the order of the data, crops, flips and the
learning rate follow from the step, and the checkpoint has everything else. So a run that was
stopped, or killed, resumes exactly.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from skipless.files import require_inside, typed
from skipless.record import METRICS

from .batches import Batches
from .checkpoint import FOLDER, Checkpoint, Checkpoints, random_state, restore_random_state
from .data import Data
from .journal import EVENTS, RunLog
from .process import Interruption, Process, distribute, no_sync
from .settings import Schedule, Settings

_DEFAULT_WARMUP = 5  # epochs, as in the paper (appendix D)
_MOST = 1e30  # of an optimiser's settings
_LEAST_NORM = 1e-3  # of a unit's weights, so that biases of 0 can leave it (Brock et al., 2021)


class DivergedError(ArithmeticError):
    """Training diverged: the loss or a weight is not finite."""

    exit_code = 1  # of the command line: an outcome, where 2 is for bad input


@runtime_checkable
class CurvatureOptimizer(Protocol):
    """An optimiser that measures curvature in forward passes, such as K-FAC."""

    def curvature(self, outputs: Tensor, targets: Tensor) -> None:
        """Measure the curvature in the pass that gave `outputs`, if it is due."""

    def synchronize(self) -> None:
        """Make it equal on all processes, before one of them saves it."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained network to learn from (Hinton, Vinyals & Dean, 2015), put into evaluation mode."""

    network: nn.Module  # its parameters no longer require gradients
    weight: float = 0.9  # of the loss on its predictions; the loss on labels has the rest
    temperature: float = 4.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"teacher_weight must be in [0, 1], got {self.weight}")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"teacher_temperature must be finite and > 0, got {self.temperature}")
        self.network.eval().requires_grad_(False)


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    r"""Divergence of predictions from the teacher's, both softened by a temperature $T$.

    $$T^2\,\mathrm{KL}\bigl(\mathrm{softmax}(v / T)\,\|\,\mathrm{softmax}(z / T)\bigr)$$

    for logits $z$ and the teacher's, $v$, as a mean over samples. $T^2$ keeps gradients as large as
    those of hard labels at any $T$. For large $T$ it is half the mean square of $z - v$, less its
    mean over classes:

    >>> z, v = torch.tensor([[[1.0, 2.0, 6.0]], [[2.0, 0.0, 4.0]]], dtype=torch.float64)
    >>> difference = (z - v) - (z - v).mean()
    >>> half = difference.square().mean() / 2
    >>> torch.allclose(soft_label_loss(z, v, 1000.0), half, rtol=0.01)
    True
    """
    student, teacher = (F.log_softmax(x / temperature, dim=1) for x in (logits, teacher_logits))
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class RunStatus:
    """How far a run got; if it is not `finished`, it was stopped, and everything is saved."""

    step: int
    total: int
    finished: bool


class Engine:
    """A model, its optimiser and data, ready to be trained.

    The model is on its device, in the memory format of `settings`. `normalize` is applied to every
    batch of images; a `teacher`'s predictions on each augmented batch are learned too.
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
        shares = (settings.batch_size, settings.seed, process.rank, process.world)
        loading = (settings.accumulate, settings.workers or 0, normalize)
        self.training = Batches(data.train, *shares, *loading, settings.classes_per_batch)
        self.training.require_a_step()
        self.validation = replace(self.training, split=data.validation, classes_per_batch=None)
        per_epoch = self.training.steps
        self.total = settings.steps or settings.epochs * per_epoch
        if settings.warmup is None:
            warmup = min(_DEFAULT_WARMUP * per_epoch, self.total // 10)
        else:
            warmup = round(settings.warmup * per_epoch)
        self.schedule = Schedule(settings.schedule, self.total, warmup, settings.mark_fractions)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.network, self.teacher = distribute(model, process), teacher
        if settings.compile:
            self._compile()
        self.average: AveragedModel | None = None
        if settings.average is not None:
            decay = get_ema_multi_avg_fn(settings.average)
            self.average = AveragedModel(model, multi_avg_fn=decay)
        self.step, self.seconds, self.window = 0, 0.0, LogWindow()
        self.should_stop: Callable[[float, float], bool] = lambda epoch, top1: False

    def _compile(self) -> None:
        if self.curvature_optimizer is not None:
            raise ValueError(
                f"{type(self.optimizer).__name__} cannot be combined with compile: it hooks into "
                "the layers of the network, which a compiled one does not have."
            )
        self.network.compile()
        if self.teacher is not None:
            self.teacher.network.compile()

    def run(
        self,
        folder: Path,
        *,
        resume: bool = False,
        progress: bool = True,
        should_stop: Callable[[float, float], bool] = lambda epoch, top1: False,
    ) -> RunStatus:
        """Train to the end, or until a signal asks to stop; metrics and checkpoints go to `folder`.

        With `resume`, start from the newest checkpoint there, if there is one. `should_stop` gets
        epoch and top-1 accuracy of each evaluation in the main process, and may end the run too.
        """
        self.should_stop = should_stop
        for own in (FOLDER, EVENTS):
            require_inside(folder / own, folder)
        checkpoints = Checkpoints(folder, self.settings.keep)
        torch.manual_seed(self.settings.seed + 1_000_003 * self.process.rank)  # for dropout
        self._start(checkpoints, resume)
        parts = (folder, self.step, self.total, checkpoints.describe_newest, progress)
        with (
            Interruption(ignore_repeats=self.process.world > 1) as interruption,
            RunLog(*parts) if self.process.is_main else nullcontext() as log,
        ):
            if log is not None:
                self._note_missing_rows(log)
            return self._loop(checkpoints, log, interruption)

    def _note_missing_rows(self, log: RunLog) -> None:
        """Warn of rows that the run wrote before it resumed, and that are gone."""
        evaluation = self.settings.evaluate_every * self.training.steps
        due = [
            *(("train", s) for s in range(0, self.step + 1, self.settings.log_every)),
            *(("validation", s) for s in range(0, self.step, evaluation)),
        ]
        missing = sorted({step for kind, step in due if step and not log.has(kind, step)})
        if missing:
            warnings.warn(
                f"{METRICS} lacks {len(missing)} steps from {missing[0]} to {missing[-1]}, which "
                "the run measured before it resumes: reports will lack them",
                stacklevel=2,
            )

    def _start(self, checkpoints: Checkpoints, resume: bool) -> None:
        if not resume and self.process.any_rank([bool(checkpoints.paths())])[0]:
            raise FileExistsError(
                f"{checkpoints.folder.parent} has checkpoints of another run. Resume that run, or "
                "choose another folder."
            )
        with warnings.catch_warnings():
            if not self.process.is_main:  # one warning of damage is enough
                warnings.simplefilter("ignore")
            if resume:
                checkpoints.load_newest(self._restore)
        if len(set(self.process.all_gather(self.step))) > 1:
            raise OSError(
                f"The processes find different checkpoints in {checkpoints.folder}. It must be on "
                "a disk that all of them share."
            )
        if resume and self.process.is_main:  # it may have been killed while it saved
            checkpoints.remove_old(self.step)

    def _loop(
        self, checkpoints: Checkpoints, log: RunLog | None, interruption: Interruption
    ) -> RunStatus:
        batches = self._remaining_batches()
        stop = False
        saved = self.process.any_rank([bool(checkpoints.paths())])[0]  # where we start from
        while (evaluated := self._evaluate(log, interruption)) and not stop:
            if self.step == self.total:
                break
            began = time.perf_counter()
            self._train_step(list(islice(batches, self.settings.accumulate)))
            diverged = self._sees_divergence()
            passed = time.perf_counter() - began
            self.seconds += passed
            self.window.seconds += passed
            stop, diverged = self.process.any_rank([interruption.requested, diverged])
            if diverged:
                back, loss = self.window.first_bad_loss() or (0, math.nan)  # nan: another process's
                what = f"The loss is {loss}"
                raise self._divergence_error(what, self.step - back, checkpoints, log)
            if self._log_due():
                rate = {"learning_rate": self.optimizer.param_groups[0]["lr"]}
                self._write(log, "train", rate | self.window.summarize(self.process))
                self.window = LogWindow()
            if log is not None:
                log.advance(self.step)
            if saved := self._checkpoint_due():
                self._save(checkpoints, log)
        if not saved:
            self._save(checkpoints, log)
        return RunStatus(self.step, self.total, evaluated and self.step == self.total)

    def _remaining_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, first = divmod(self.step, self.training.steps)
        while True:
            yield from self.training.epoch(epoch, first)
            epoch, first = epoch + 1, 0

    def _train_step(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        factor = self.schedule.factor(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        losses, hits = [], []
        for number, (inputs, labels) in enumerate(parts, start=1):
            labels = labels.to(self.process.device, non_blocking=True)
            # Gradients of all processes are averaged once, with those of the last part.
            with no_sync(self.network) if number < len(parts) else nullcontext():
                logits, loss = self._logits_and_loss(self._to_device(inputs), labels)
                (loss / len(parts)).backward()
            losses.append(loss.detach())
            hits.append((logits.detach().argmax(dim=1) == labels).sum())
            self.window.images += len(labels)
        self._clip_gradients()
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        self.window.losses.append(torch.stack(losses).mean())
        self.window.hits.append(torch.stack(hits).sum())

    def _clip_gradients(self) -> None:
        match self.settings.clip:
            case float(norm):
                nn.utils.clip_grad_norm_(self.model.parameters(), norm)
            case str(adaptive):
                clip_by_unit_(self.model, float(adaptive.partition(":")[2]))

    def _logits_and_loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # The teacher first, while the network keeps nothing for its backward pass yet.
        taught, teacher = None, self.teacher
        if teacher is not None:
            with torch.no_grad():
                taught = self._forward(teacher.network, images).float()
        logits = self._forward(self.network, images)
        if self.curvature_optimizer is not None:
            self.curvature_optimizer.curvature(logits, labels)
        smoothing = self.settings.label_smoothing
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        if teacher is not None and taught is not None:
            soft = soft_label_loss(logits.float(), taught, teacher.temperature)
            loss = (1.0 - teacher.weight) * loss + teacher.weight * soft
        return logits, loss

    def _to_device(self, images: Tensor) -> Tensor:
        layout = torch.channels_last if self.settings.channels_last else torch.preserve_format
        return images.to(self.process.device, non_blocking=True, memory_format=layout)

    def _forward(self, network: nn.Module, images: Tensor) -> Tensor:
        images = self._to_device(images)
        if self.settings.precision == "float32":
            return network(images)
        with torch.autocast(self.process.device.type, torch.bfloat16):
            return network(images)

    def _sees_divergence(self) -> bool:
        # Reading each loss would stall a GPU, so its losses are read together.
        if self.process.device.type == "cpu":
            return self.window.last_is_bad()
        due = self._log_due() or self._checkpoint_due()
        return due and self.window.first_bad_loss() is not None

    def _divergence_error(
        self, what: str, step: int, checkpoints: Checkpoints, log: RunLog | None
    ) -> DivergedError:
        """The error, which is also noted in the log."""
        initial = max(group["initial_lr"] for group in self.optimizer.param_groups)
        rate = initial * self.schedule.factor(step - 1)
        finite = [loss for loss in _to_floats(self.window.losses) if math.isfinite(loss)]
        last = {"loss": finite[-1]} if finite else {}
        self._write(log, "diverged", {"learning_rate": rate, **last}, step)
        return DivergedError(
            f"{what} at step {step} of {self.total}, with learning rate {rate:.4g}. The last good "
            f"checkpoint is {checkpoints.describe_newest()}. Lower the learning rate, lengthen the "
            "warm-up, or clip gradients."
        )

    def _log_due(self) -> bool:
        return self.step % self.settings.log_every == 0 or self.step == self.total

    def _checkpoint_due(self) -> bool:
        period = self.settings.checkpoint_every or self.training.steps
        return self.step % period == 0 or self.step == self.total

    def _write(
        self, log: RunLog | None, kind: str, values: dict[str, float], step: int | None = None
    ) -> None:
        if log is not None:
            step = step or self.step
            epoch = step / self.training.steps
            log.write(kind, step, {"epoch": epoch, **values, "seconds": self.seconds})

    def _evaluate(self, log: RunLog | None, interruption: Interruption) -> bool:
        """Evaluate if it is due and was not done before a stop; False if a signal stopped it."""
        period = self.settings.evaluate_every * self.training.steps
        if self.step != self.total and (self.step == 0 or self.step % period):
            return True
        self.process.broadcast(self.model.buffers())  # BatchNorm's statistics, as they are saved
        for kind, network in (("validation", self.model), ("average", self.average)):
            done = log is not None and log.has(kind, self.step)
            if network is None or self.process.any_rank([done])[0]:
                continue
            batches, stopping = self.validation.in_order(), lambda: interruption.requested
            found = evaluate(network, batches, self.process, self._forward, stopping)
            if found is None:
                return False
            self._write(log, kind, found)
            if log is not None and kind == "validation":
                epoch = self.step / self.training.steps
                interruption.requested |= self.should_stop(epoch, found["top1"])
        return True

    def _save(self, checkpoints: Checkpoints, log: RunLog | None) -> None:
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise self._divergence_error("A weight is not finite", self.step, checkpoints, log)
        if self.curvature_optimizer is not None:
            self.curvature_optimizer.synchronize()
        own = {"random": random_state(self.process.device), "window": self.window.state()}
        processes = self.process.all_gather(own)
        if log is None:
            return
        log.flush()
        optimizer, average = self.optimizer.state_dict(), None
        state = {"seconds": self.seconds, "optimizer": optimizer, "processes": processes}
        if self.average is not None:
            average = self.average.module.state_dict()
            state["averaged"] = int(self.average.n_averaged)
        model, settings = self.model.state_dict(), self.settings.as_mapping()
        checkpoints.save(Checkpoint(self.step, model, state, average, settings))

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        if (self.average is None) != (checkpoint.average is None):
            raise ValueError("a moving average is in only one of checkpoint and run")
        if checkpoint.step and self.process.world > 1:
            self._order_gradients()
        self.model.load_state_dict(checkpoint.weights)
        _load_optimizer(self.optimizer, state["optimizer"])
        if self.average is not None and checkpoint.average is not None:
            self.average.module.load_state_dict(checkpoint.average)
            self.average.n_averaged.fill_(state["averaged"])
        self.step, self.seconds = checkpoint.step, float(state["seconds"])
        if len(state["processes"]) == self.process.world:
            own = state["processes"][self.process.rank]
            restore_random_state(own["random"], self.process.device)
            self.window = LogWindow.restored(own["window"], self.process.device)

    def _order_gradients(self) -> None:
        """Let DDP sum gradients in the order in which it sums them after the first step.

        Its buckets are in the order of the parameters at first, and then in that in which gradients
        arrive. The sum over three or more processes is rounded according to a number's place in
        them. Buffers and random states, which this pass changes, are about to be restored.
        """
        images, _ = next(self.training.in_order())
        self._forward(self.network, self._to_device(images)).sum().backward()
        self.optimizer.zero_grad(set_to_none=True)


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore the optimiser; raise where it would fail later, at its next step."""
    for own, given in zip(optimizer.param_groups, state["param_groups"], strict=True):
        for name in own.keys() & given.keys() - {"params"}:
            kinds = {float if type(of[name]) is int else type(of[name]) for of in (own, given)}
            value = given[name]
            if len(kinds) > 1 or (isinstance(value, float) and not abs(value) < _MOST):
                raise ValueError(f"the optimiser's {name} is {value!r:.50}, not {own[name]!r}")
    names = [own.keys() for own in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for own, group in zip(names, optimizer.param_groups, strict=True):
        if missing := own - group.keys():
            raise ValueError(f"the optimiser has no {min(missing)}")
        moved = {p: optimizer.state[p] for p in group["params"] if p in optimizer.state}
        kinds = [{name: type(v) for name, v in own.items()} for own in moved.values()]
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError("the optimiser's parameters have states of different kinds")
        for parameter, own in moved.items():
            for name, value in own.items():
                if isinstance(value, Tensor) and value.dim() and value.numel() != parameter.numel():
                    raise ValueError(f"the optimiser's {name} has the shape {tuple(value.shape)}")


def clip_by_unit_(model: nn.Module, ratio: float) -> None:
    r"""Adaptive gradient clipping (Brock et al., 2021): bounds each unit's relative change.

    $$g_i \leftarrow g_i \min\bigl(1, \lambda \max(\|w_i\|, 10^{-3}) / \|g_i\|\bigr)$$

    where $\lambda$ is the `ratio` and $w_i$ the weights of unit i, a row of a matrix or a filter. A
    vector of biases counts as one unit. As in the paper, the last linear layer is left alone.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    last = {id(p) for module in linear[-1:] for p in module.parameters()}
    for p in model.parameters():
        if p.grad is not None and id(p) not in last:
            unit = tuple(range(1, p.dim())) or None
            norms = [
                torch.linalg.vector_norm(t, dim=unit, keepdim=True) for t in (p.detach(), p.grad)
            ]
            longest = ratio * norms[0].clamp(min=_LEAST_NORM)
            p.grad.mul_((longest / norms[1]).clamp(max=1.0))


def evaluate(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    process: Process,
    forward: Callable[[nn.Module, Tensor], Tensor],
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Plain cross-entropy, top-1 and top-5 accuracy over all processes; None if it was stopped."""
    sums = torch.zeros(4, dtype=torch.float64)  # of losses, top-1 hits, top-5 hits, samples
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for images, labels in batches:
                if stopping():
                    break
                labels = labels.to(process.device, non_blocking=True)
                logits = forward(network, images).float()
                hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
                loss = F.cross_entropy(logits, labels, reduction="sum").item()
                own = [loss, hits[:, 0].sum().item(), hits.sum().item(), len(labels)]
                sums += torch.tensor(own, dtype=torch.float64)
    finally:
        network.train(training)
    if process.any_rank([stopping()])[0]:
        return None
    loss, top1, top5, count = process.sum(sums).tolist()
    return {"loss": loss / count, "top1": top1 / count, "top5": top5 / count}


@dataclass
class LogWindow:
    """Losses and hits since the last line of the log, left on their device until they are read."""

    losses: list[Tensor] = field(default_factory=list)  # of each step
    hits: list[Tensor] = field(default_factory=list)  # images labelled correctly in each step
    images: int = 0
    seconds: float = 0.0  # without evaluations and checkpoints

    def first_bad_loss(self) -> tuple[int, float] | None:
        """How many steps before the last the first loss was not finite, and that loss."""
        for index, loss in enumerate(_to_floats(self.losses)):
            if not math.isfinite(loss):
                return len(self.losses) - 1 - index, loss
        return None

    def last_is_bad(self) -> bool:
        """Whether the last loss is not finite; on a GPU, this waits for it."""
        return not math.isfinite(self.losses[-1].item())

    def summarize(self, process: Process) -> dict[str, float]:
        """Mean loss, accuracy and images a second over all processes."""
        own = [sum(_to_floats(self.losses)), sum(_to_floats(self.hits)), self.images]
        losses, hits, images = process.sum(torch.tensor(own, dtype=torch.float64)).tolist()
        return {
            "loss": losses / (len(self.losses) * process.world),
            "accuracy": hits / images,
            "images_per_second": images / self.seconds if self.seconds else 0.0,
        }

    def state(self) -> dict[str, Any]:
        """The window in plain types, for `restored`."""
        losses, hits = _to_floats(self.losses), _to_floats(self.hits)
        return asdict(_PlainWindow(losses, hits, self.images, self.seconds))

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device) -> LogWindow:
        plain = typed(_PlainWindow, state)
        losses = torch.tensor(plain.losses, dtype=torch.float32, device=device)
        hits = torch.tensor(plain.hits, dtype=torch.int64, device=device)
        return cls(list(losses), list(hits), plain.images, plain.seconds)


@dataclass(frozen=True)
class _PlainWindow:
    losses: list[float]
    hits: list[float]
    images: int
    seconds: float


def _to_floats(tensors: list[Tensor]) -> list[float]:
    return torch.stack(tensors).tolist() if tensors else []
