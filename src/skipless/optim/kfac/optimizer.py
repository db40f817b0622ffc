r"""K-FAC: steps along the natural gradient, with a curvature that is cheap to invert.

As kfac-jax defines it, with which the paper trained. With the gradient $g$ of the loss and of the
L2 penalty, and the Fisher matrix $F$ in Kronecker factors, damped by $\lambda$ and the penalty:

$$u = F^{-1} g, \qquad
  \nu = \min\Bigl(1, \sqrt{\kappa / (\mathrm{lr}^2 \langle u, g\rangle)}\Bigr), \qquad
  v \leftarrow \mu v - \mathrm{lr}\, \nu\, u, \qquad w \leftarrow w + v$$

Martens and Grosse (2015); Grosse and Martens (2016) for convolutions; Ba, Grosse and Martens (2017)
for the norm constraint $\kappa$.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite
from typing import Any, Unpack, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from skipless.optim.groups import weights_and_others
from skipless.optim.settings import KFACOptions, KFACSettings, require_number

from .blocks import CurvatureBlock
from .checks import check_model, check_outputs, check_place, explain_errors
from .estimate import CurvatureEstimate
from .inverse import Values
from .processes import means
from .scores import loss_count
from .steps import Linearisation, ProposedStep, adapt_damping, full_gradients, penalty

# Like the settings in groups, these come from a saved state.
_SAVED = ("steps", "damping", "norm_constraint", "curvature_ema", "damping_period")

_AGE = 2  # early inverses are at most half as old as the moves
_STALE = 2.5  # how much shorter, squared, an inversion makes steps where momentum is harmful

RandomState = list[tuple[torch.Generator, Tensor]]  # of each generator that a model may use


class KFAC(Optimizer):
    """K-FAC with the true Fisher matrix, as an optimiser for any training loop.

    It adds one line to a usual loop, between the forward and the backward pass:

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> optimizer = KFAC(model, lr=0.1)
    >>> for inputs, labels in [(torch.randn(16, 4), torch.randint(3, (16,)))]:
    ...     optimizer.zero_grad()
    ...     logits = model(inputs)
    ...     optimizer.curvature(logits)  # draws labels from the logits: the true Fisher matrix
    ...     nn.functional.cross_entropy(logits, labels).backward()
    ...     optimizer.step()

    `curvature` does nothing in steps that do not need it, and `step` raises an error if it was
    forgotten. With gradient accumulation, call it for each part.

    Args:
        model: The network, before or after it is wrapped in DistributedDataParallel. Linear, Conv1d
            to 3d and Embedding layers get Kronecker factors, all else the diagonal.
        lr: The learning rate, or None: each step then finds the best learning rate and momentum
            in the quadratic model of the loss, with no norm constraint.
        momentum: Momentum of the steps.
        l2: Penalty on weights, half of it times their squares; not on biases and normalisation.
        settings: All of the following as one object; those given as keywords replace its own.
        preset: `damping` and `norm_constraint` of the paper's runs: "imagenet" (default), or
            "cifar10" for small data and small batches; "batchnorm" for networks with BatchNorm,
            with a learning rate of about 0.1.
        damping: Added to the curvature, together with `l2`.
        norm_constraint: The largest squared length of a step before momentum, in the metric of the
            curvature; None does not limit it.
        curvature_ema: How much of the running means of the factors an update keeps.
        curvature_period: Steps from one update of the factors to the next.
        inverse_period: Steps from one inversion of the factors to the next.
        early_inverses: Invert more often at first, while the factors change fast.
        restarts: Set velocities to zero, with a warning, where an inversion shows that the steps
            were far too long; not checked with `spread_inverses`.
        burn_in: First steps, which measure the factors and train nothing.
        loss: The training loss: cross_entropy, binary_cross_entropy (with logits) or mse.
        fisher: "sampled" draws one label per example, "exact" takes the mean over all labels, with
            a backward pass for each, "empirical" takes the labels of the data.
        input_stride: Only every n-th example enters the factors of inputs, which for convolutions
            are most of the cost.
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
        if not isinstance(settings, KFACSettings):
            raise TypeError(f"settings must be KFACSettings(...), got {settings!r}")
        settings = replace(settings, preset=options.pop("preset", settings.preset))
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
        self.steps: int = 0
        self._estimate = CurvatureEstimate(model, own)
        self._linearisations: list[Linearisation] = []
        self._is_repeating = False
        self.chosen: tuple[float, float] | None = None  # rate and momentum of the quadratic model
        self._start_step()

    def curvature(
        self, outputs: Tensor, targets: Tensor | None = None, *, divisor: int | None = None
    ) -> None:
        """Measures the curvature in the forward pass that gave `outputs`, if it is due.

        Call it in every step, before `backward`.

        Args:
            outputs: What the loss takes, logits or predictions, with examples first, and for
                cross-entropy classes second, as in PyTorch: logits of shape (examples, words,
                classes) are `logits.flatten(0, 1)` here.
            targets: The labels of the data, for the empirical Fisher matrix only.
            divisor: What your loss divides the sum over all labels by, if that is not their number,
                as with reduction="mean": for a loss that is summed over outputs, `len(outputs)`.
        """
        if self._is_repeating:
            return
        estimate = self._estimate
        loss = estimate.settings.loss
        check_outputs(outputs, targets, divisor, loss, estimate.settings.fisher)
        check_place(estimate.blocks.all)
        # In full precision, even if the forward pass was not.
        with explain_errors(), torch.autocast(outputs.device.type, enabled=False):
            if self._is_curvature_due:
                estimate.measure(outputs, targets, divisor, self.steps)
            if self._is_model_due:
                losses = divisor or loss_count(outputs, loss)
                linear = Linearisation(outputs, self._parameters, loss, losses)
                self._linearisations.append(linear)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Performs one step and returns the closure's loss.

        A closure clears gradients, computes the loss, calls `curvature` and `backward`.
        """
        if self.damping_period and closure is None:
            raise ValueError("damping_period needs to recompute losses: pass a closure to step()")
        random = self._random_state() if self.damping_period else []
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update_curvature()
        if self._moves >= 0:
            self._move(loss, closure, random)
        self.steps += 1
        self._start_step()
        return loss

    def synchronize(self) -> None:
        """Makes the curvature equal on all processes, as it must be before one of them saves it.

        Between inversions each process has its own. All processes must call this together.
        """
        self._estimate.blocks.synchronize(self._estimate.blocks.all)

    def state_dict(self) -> dict[str, Any]:
        """The state to save; with several processes, call `synchronize` first."""
        own = {name: getattr(self, name) for name in _SAVED}
        return {**super().state_dict(), "kfac": own | self._estimate.state()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a saved state."""
        if not isinstance(state_dict, dict) or "layers" not in state_dict.get("kfac", ()):
            raise ValueError(
                "This state is of another optimiser. Load a state from KFAC.state_dict()."
            )
        own = state_dict["kfac"]
        self._estimate.check(own)
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "kfac"})
        self._estimate.load(own)
        for name in _SAVED:
            setattr(self, name, own[name])
        self._start_step()

    @property
    def diagonal_names(self) -> list[str]:
        """The parameters for which only the diagonal of the curvature is used."""
        return [self._estimate.names[p] for p in self._estimate.diagonal.parameters]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group while the optimiser is created; later there is no layer for it."""
        if hasattr(self, "_estimate"):
            raise ValueError(
                "K-FAC cannot add parameters: it knows only the layers of its model. Create a new "
                "one for the whole model."
            )
        super().add_param_group(param_group)

    def __reduce__(self) -> Any:
        # A copy, or what is loaded from a file, records its own copy of the model.
        return _rebuild, (self._model, self._arguments, self.state_dict())

    @property
    def _moves(self) -> int:
        """How many steps have moved the parameters; below zero while steps only measure."""
        return self.steps - self._estimate.settings.burn_in

    @property
    def _is_curvature_due(self) -> bool:
        return self._moves < 0 or self._moves % self._estimate.settings.curvature_period == 0

    @property
    def _is_model_due(self) -> bool:
        """Whether this step follows the quadratic model."""
        return self.param_groups[0]["lr"] is None and self._moves >= 0

    def _blocks_due(self) -> list[CurvatureBlock]:
        """The blocks that are inverted in this step; the first time, all of them."""
        settings, blocks = self._estimate.settings, self._estimate.blocks
        period, least = settings.inverse_period, 2 * settings.curvature_period
        while settings.early_inverses and period >= least and _AGE * period > self._moves:
            period //= 2
        number = self._moves % period
        if settings.spread_inverses and self._moves > 0:
            return blocks.in_bin(number, period)
        return blocks.all if number == 0 else []

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _start_step(self) -> None:
        """Prepares for the forward passes of the next step."""
        self._estimate.reset()
        self._linearisations = []
        self._estimate.recorder.recording = self._is_curvature_due

    def _update_curvature(self) -> None:
        is_missing = self._is_curvature_due and not self._estimate.measured.passes
        if is_missing or (self._is_model_due and not self._linearisations):
            raise RuntimeError(
                "step() has no curvature. Call optimizer.curvature(outputs) between the forward "
                "pass and backward()."
            )
        if self._is_curvature_due:
            self._estimate.update(1.0 if self._moves < 0 else self.curvature_ema)  # 1: plain means

    def _refresh(self, gradients: Values) -> dict[nn.Parameter, Tensor]:
        """Inverts what is due; returns the directions, which restart velocities if far shorter."""
        estimate, due = self._estimate, self._blocks_due()
        damping = self.damping + max(group["l2"] for group in self.param_groups)
        settings, before = estimate.settings, {}
        is_whole = len(due) == len(estimate.blocks.all) > 0 and settings.inverse_period > 1
        if settings.restarts and is_whole and self._moves > 0 and not self._is_model_due:
            before = estimate.directions(gradients, damping)
        estimate.refresh(due, damping)
        after = estimate.directions(gradients, damping)
        if before:
            limit = inf if self.norm_constraint is None else self.norm_constraint
            steps = [ProposedStep(self.param_groups, gradients, own, {}) for own in (before, after)]
            old, new = (min(step.length, limit) for step in steps)
            if old > _STALE * new:
                for parameter in after:
                    self.state[parameter]["momentum_buffer"].zero_()
                estimate.warnings.warn(
                    "The inverse curvature was out of date: the new one makes steps far shorter, "
                    "and momentum of the old ones would raise the loss, so it restarts from zero. "
                    "Lower inverse_period."
                )
        return after

    def _move(
        self, loss: float | None, closure: Callable[[], float] | None, random: RandomState
    ) -> None:
        """Changes the parameters and, if it is due, adapts the damping to the effect."""
        gradients = full_gradients(self.param_groups)
        directions = self._refresh(gradients)
        warnings = self._estimate.warnings
        if self._is_curvature_due:
            unmeasured = [p for p in gradients if p not in directions]
            warnings.warn_untrained(self._model, unmeasured)
        velocities = {p: self.state[p]["momentum_buffer"] for p in directions}
        step = ProposedStep(self.param_groups, gradients, directions, velocities)
        if not all(map(isfinite, step.slopes)):
            warnings.warn(
                "A gradient is not finite, so its step is skipped. Check the loss, lower the "
                "learning rate, or clip gradients."
            )
            return
        period = self.damping_period or 0
        adapts = period > 0 and (self._moves + 1) % period == 0
        before = _as_float(loss) + penalty(self.param_groups) if adapts else 0.0
        if self._is_model_due:
            with explain_errors():
                *chosen, predicted = step.set_by_model(self._linearisations, self.damping)
            self.chosen = (chosen[0], chosen[1])
        else:
            step.set_by_rates(self.norm_constraint)
            predicted = step.predicted_change(self._estimate) if adapts else 0.0
        for parameter, velocity in velocities.items():
            parameter.add_(velocity)
        if adapts and closure is not None:
            after = self._repeat(closure, random) + penalty(self.param_groups)
            (change,) = means([after - before], self._estimate.device)
            self.damping = adapt_damping(self.damping, change, predicted, period)

    def _random_state(self) -> RandomState:
        """PyTorch's random state on the CPU, and on the GPU if the model is on one."""
        generators, device = [torch.default_generator], self._estimate.device
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index])
        return [(generator, generator.get_state()) for generator in generators]

    def _repeat(self, closure: Callable[[], float], random: RandomState) -> float:
        """The loss after a step, with the same random numbers as before it."""
        now = self._random_state()
        self._is_repeating, self._estimate.recorder.recording = True, False
        try:
            for generator, state in random:
                generator.set_state(state)
            with torch.enable_grad():
                return _as_float(closure())
        finally:
            for generator, state in now:
                generator.set_state(state)
            self._is_repeating = False


def _rebuild(model: nn.Module, arguments: dict[str, Any], state: dict[str, Any]) -> KFAC:
    optimizer = KFAC(model, **arguments)
    optimizer.load_state_dict(state)
    return optimizer


def _as_float(loss: Any) -> float:
    return float(loss.detach() if isinstance(loss, Tensor) else loss)
