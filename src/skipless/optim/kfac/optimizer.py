r"""K-FAC: steps along the natural gradient, by a curvature that is cheap to invert.

As kfac-jax defines it, with which the paper trained. With the gradient $g$ of the loss and of the
L2 penalty, and the Fisher matrix $F$ in Kronecker factors, damped by $\lambda$ and the penalty:

$$u = F^{-1} g, \qquad
  \nu = \min\Bigl(1, \sqrt{\kappa / (\mathrm{lr}^2 \langle u, g\rangle)}\Bigr), \qquad
  v \leftarrow \mu v - \mathrm{lr}\, \nu\, u, \qquad w \leftarrow w + v$$

Martens and Grosse (2015); Grosse and Martens (2016) for convolutions; Ba, Grosse and Martens (2017)
for the norm constraint $\kappa$.

In which steps the curvature is measured, and in which it is inverted.

The state of PyTorch's random numbers, to draw the same ones twice.

How much damping, and how long steps: the settings of the paper's K-FAC runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import isfinite
from types import EllipsisType
from typing import Any, Unpack, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from skipless.optim.groups import weights_and_others
from skipless.optim.settings import KFACOptions, KFACSettings, require_number

from .checks import check_model, check_outputs, check_place, clear_errors
from .estimate import Estimate
from .processes import average_
from .scores import terms
from .steps import Linearisation, Step, adapted_damping, full_gradients, penalty


@dataclass(frozen=True)
class Timing:
    """Steps are numbered from 0; the first `burn_in` of them only measure."""

    burn_in: int
    curvature_period: int
    inverse_period: int
    spread: bool

    def curvature_due(self, step: int) -> bool:
        """Whether the curvature is measured in that step."""
        return step < self.burn_in or (step - self.burn_in) % self.curvature_period == 0

    def part(self, step: int) -> int | EllipsisType | None:
        """Which part of the inverses is computed in that step: ..., if it is all of them.

        >>> timing = Timing(burn_in=1, curvature_period=1, inverse_period=3, spread=True)
        >>> [timing.part(step) for step in range(6)]
        [None, Ellipsis, 1, 2, 0, 1]
        """
        past = step - self.burn_in
        if past < 0:
            return None
        if self.spread:
            return past % self.inverse_period if past else ...
        return None if past % self.inverse_period else ...


RandomState = tuple[Tensor, tuple[torch.device, Tensor] | None]


def random_state(device: torch.device) -> RandomState:
    """That of the CPU, and of the GPU that `device` may be."""
    own = (device, torch.cuda.get_rng_state(device)) if device.type == "cuda" else None
    return torch.get_rng_state(), own


def set_random_state(state: RandomState) -> None:
    """Draw from there on."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        device, own = state[1]
        torch.cuda.set_rng_state(own, device)


# pyright: reportPrivateImportUsage=false
# torch._foreach_* are what torch's own optimisers are made of, but have no public names.


# Like the settings in groups, these are what they were when a state was saved.
_KEPT = ("steps", "damping", "norm_constraint", "curvature_ema", "damping_period")


class KFAC(Optimizer):
    """K-FAC with the true Fisher matrix, as an optimiser for any loop.

    One line is added to a usual loop, between the forward pass and the backward one:

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> optimizer = KFAC(model, lr=0.1)
    >>> for inputs, labels in [(torch.randn(16, 4), torch.randint(3, (16,)))]:
    ...     optimizer.zero_grad()
    ...     logits = model(inputs)
    ...     optimizer.curvature(logits)  # draws labels from the logits: the true Fisher matrix
    ...     nn.functional.cross_entropy(logits, labels).backward()
    ...     optimizer.step()

    It does nothing in steps that do not need it, and `step` raises an error where it was forgotten.
    With gradient accumulation, call it for each part.

    Args:
        model: The network, before or after it is wrapped in DistributedDataParallel. Linear, Conv1d
            to 3d and Embedding layers get Kronecker factors, all else the diagonal.
        lr: The learning rate, or None: each step then finds the best learning rate and momentum
            in the quadratic model of the loss, with no norm constraint.
        momentum: Momentum of the steps.
        l2: Penalty on weights, half of it times their squares; not on biases and normalisation.
        settings: All of the following as one object; those given as keywords replace its own.
        preset: `damping` and `norm_constraint` of the paper's runs: "imagenet" is the default,
            "cifar10" is for small data and small batches.
        damping: Added to the curvature, together with `l2`.
        norm_constraint: The largest squared length of a step before momentum, in the metric of the
            curvature; None does not limit it.
        curvature_ema: How much of the running means of the factors an update keeps.
        curvature_period: Steps from one update of the factors to the next.
        inverse_period: Steps from one inversion of the factors to the next.
        burn_in: First steps, which measure the factors and train nothing.
        loss: The training loss, which determines how labels are drawn: cross_entropy,
            binary_cross_entropy (with logits) or mse.
        fisher: "sampled" draws one label per example, "exact" takes the mean over all labels, with
            a backward pass for each, "empirical" takes the labels of the data.
        input_stride: Take every n-th example of a batch for the factors of inputs: for convolutions
            these are most of the cost, and a batch has more patches than it takes.
        spread_inverses: Invert a part of the factors in each step, so that no step takes longer.
        eigenbasis: Measure the curvature along the axes of the factors (EKFAC).
        damping_period: Steps from one change of the damping to the next, by the rule of Levenberg
            and Marquardt (5 in the original); `step` then needs a closure. None keeps it constant.
        seed: Seed of the sampled labels.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | None,
        momentum: float = 0.9,
        *,
        l2: float = 0.0,
        settings: KFACSettings = KFACSettings(preset="imagenet"),  # noqa: B008 - frozen
        **options: Unpack[KFACOptions],
    ) -> None:
        check_model(model)
        if "preset" in options:
            settings = replace(settings, preset=options.pop("preset"))
        own = replace(settings.resolve(), **options)
        if lr is not None:
            require_number("lr", lr)
        require_number("momentum", momentum, below=1.0)
        require_number("l2", l2)
        assert own.damping is not None  # as there is no preset any more
        if own.damping + l2 == 0.0:
            raise ValueError(
                "damping + l2 must be > 0, got 0: the curvature of a batch is zero in some "
                "directions. Raise the damping."
            )
        self._model = model
        self._arguments = {"lr": lr, "momentum": momentum, "l2": l2, "settings": own}
        groups = [
            {"name": name, "params": parameters, "l2": l2 if name == "weights" else 0.0}
            for name, parameters in weights_and_others(model).items()
        ]
        super().__init__(groups, {"lr": lr, "momentum": momentum})
        for parameter in self._parameters:
            self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.damping, self.norm_constraint = own.damping, own.norm_constraint
        self.curvature_ema, self.damping_period = own.curvature_ema, own.damping_period
        self.steps = 0
        self._timing = Timing(
            own.burn_in, own.curvature_period, own.inverse_period, own.spread_inverses
        )
        self._estimate = Estimate(model, own)
        self._linearisations: list[Linearisation] = []
        self._repeating = False
        self.chosen: tuple[float, float] | None = None  # rate and momentum of the quadratic model
        self._listen()

    def curvature(
        self, outputs: Tensor, targets: Tensor | None = None, *, divisor: int | None = None
    ) -> None:
        """Measure the curvature in the forward pass that gave `outputs`, if it is time to.

        Call it in every step, before `backward`: `outputs` are what the loss takes, logits or
        predictions, with examples first, and for cross-entropy classes second, as PyTorch has them:
        logits of shape (examples, words, classes) are `logits.flatten(0, 1)` here. `targets` are
        for the empirical Fisher matrix only.
        `divisor` is what your loss divides the sum over all labels by, if that is not their number,
        as with reduction="mean": for a loss that is summed over outputs, `len(outputs)`.
        """
        if self._repeating:
            return
        check_outputs(outputs, targets, divisor, self._estimate.loss, self._estimate.fisher)
        check_place(self._estimate.blocks.all)
        # In full precision, also where the forward pass was not.
        with clear_errors(), torch.autocast(outputs.device.type, enabled=False):
            self._measure(outputs, targets, divisor)

    def _measure(self, outputs: Tensor, targets: Tensor | None, divisor: int | None) -> None:
        if self._curvature_due:
            self._estimate.take(outputs, targets, divisor, self.steps)
        if self._model_due:
            losses = divisor or terms(outputs, self._estimate.loss)
            linear = Linearisation(outputs, self._parameters, self._estimate.loss, losses)
            self._linearisations.append(linear)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Change every parameter that has a gradient; what comes back is what `closure` returns.

        A closure is what it is for all of torch's optimisers: it clears gradients, computes the
        loss, calls `curvature` and `backward`, and returns the loss.
        """
        if self.damping_period and closure is None:
            raise ValueError(
                "K-FAC was asked to adapt its damping, for which it has to compute losses again. "
                "Give step() a closure."
            )
        chance = random_state(self._parameters[0].device) if self.damping_period else None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_in_curvature()
        if self.steps >= self._timing.burn_in:
            self._move(loss, closure, chance)
        self.steps += 1
        self._listen()
        return loss

    def synchronize(self) -> None:
        """Make the curvature equal on all processes, as it has to be before one of them saves it.

        Between inversions each process has its own. All have to call this together.
        """
        self._estimate.blocks.synchronize(self._estimate.blocks.all)

    def state_dict(self) -> dict[str, Any]:
        """The state of all steps so far; under several processes, `synchronize` before."""
        own = {name: getattr(self, name) for name in _KEPT}
        own |= {"timing": asdict(self._timing), **self._estimate.state()}
        return {**super().state_dict(), "kfac": own}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that was saved."""
        if not isinstance(state_dict, dict) or "layers" not in state_dict.get("kfac", ()):
            raise ValueError(
                "A state of K-FAC was to be loaded, but this one is of another optimiser. Load "
                "what KFAC.state_dict() gave."
            )
        own = state_dict["kfac"]
        self._estimate.check(own)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "kfac"})
        self._estimate.load(own)
        for name in _KEPT:
            setattr(self, name, own[name])
        self._timing = Timing(**own["timing"])
        self._listen()

    @property
    def diagonal_names(self) -> list[str]:
        """The parameters of whose curvature only the diagonal is taken."""
        return [self._estimate.names[p] for p in self._estimate.diagonal.parameters]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimiser is made; later there is no layer for it."""
        if hasattr(self, "_estimate"):
            raise ValueError(
                "More parameters were to be added to K-FAC, which knows the layers of the model "
                "that it was made for. Make another one for the whole model."
            )
        super().add_param_group(param_group)

    def __reduce__(self) -> Any:
        # A copy, or what is loaded from a file, listens to a copy of the model.
        return _rebuild, (self._model, self._arguments, self.state_dict())

    @property
    def _curvature_due(self) -> bool:
        return self._timing.curvature_due(self.steps)

    @property
    def _model_due(self) -> bool:
        """Whether a step is taken by the quadratic model."""
        return self.param_groups[0]["lr"] is None and self.steps >= self._timing.burn_in

    @property
    def _whole_damping(self) -> float:
        return self.damping + max(group["l2"] for group in self.param_groups)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _listen(self) -> None:
        """Get ready for the forward passes of the next step."""
        self._estimate.forget()
        self._linearisations = []
        self._estimate.listener.listening = self._curvature_due

    def _take_in_curvature(self) -> None:
        missing = self._curvature_due and not self._estimate.has_taken
        if missing or (self._model_due and not self._linearisations):
            raise RuntimeError(
                "K-FAC was to make a step without having seen the curvature. Call "
                "optimizer.curvature(outputs) after each forward pass, before backward()."
            )
        if self._curvature_due:
            # Burn-in takes plain means.
            kept = 1.0 if self.steps < self._timing.burn_in else self.curvature_ema
            self._estimate.update(kept)
        if self.steps >= self._timing.burn_in:
            part = self._timing.part(self.steps)
            due = self._estimate.blocks.due(part, self._timing.inverse_period)
            self._estimate.refresh(due, self._whole_damping)

    def _move(
        self, loss: float | None, closure: Callable[[], float] | None, chance: RandomState | None
    ) -> None:
        """Change the parameters, and, if it is time to, look at what that did to the loss."""
        gradients = full_gradients(self.param_groups)
        directions = self._estimate.directions(gradients, self._whole_damping)
        if self._curvature_due:
            self._estimate.notes.unknown([p for p in gradients if p not in directions])
            self._estimate.notes.strangers(self._model)
        velocities = {p: self.state[p]["momentum_buffer"] for p in directions}
        step = Step(self.param_groups, gradients, directions, velocities)
        if not all(map(isfinite, step.slopes)):
            self._estimate.notes.once(
                "A gradient is not finite, and its step is left out. Look at the loss, lower the "
                "learning rate, or clip gradients."
            )
            return
        past = self.steps - self._timing.burn_in + 1
        watched = self.damping_period is not None and past % self.damping_period == 0
        before = _number(loss) + penalty(self.param_groups) if watched else 0.0
        if self._model_due:
            with clear_errors():
                *chosen, promised = step.set_by_model(self._linearisations, self.damping)
            self.chosen = (chosen[0], chosen[1])
        else:
            step.set_by_rates(self.norm_constraint)
            promised = step.promised(self._estimate) if watched else 0.0
        for parameter, velocity in velocities.items():
            parameter.add_(velocity)
        if watched and self.damping_period and closure is not None:
            after = self._repeated(closure, chance) + penalty(self.param_groups)
            change = torch.tensor(
                [after - before], dtype=torch.float64, device=self._parameters[0].device
            )
            average_([change])
            self.damping = adapted_damping(
                self.damping, change.item(), promised, self.damping_period
            )

    def _repeated(self, closure: Callable[[], float], chance: RandomState | None) -> float:
        """The loss after a step, with the same random numbers as before it."""
        after = random_state(self._parameters[0].device)
        self._repeating, self._estimate.listener.listening = True, False
        try:
            set_random_state(chance or after)
            with torch.enable_grad():
                return _number(closure())
        finally:
            set_random_state(after)
            self._repeating = False


def _rebuild(model: nn.Module, arguments: dict[str, Any], state: dict[str, Any]) -> KFAC:
    optimizer = KFAC(model, **arguments)
    optimizer.load_state_dict(state)
    return optimizer


def _number(loss: Any) -> float:
    return float(loss.detach() if isinstance(loss, Tensor) else loss)
