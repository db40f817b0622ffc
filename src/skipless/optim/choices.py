"""Optimisers by name, with L2 regularisation on the weights only.

| name    | optimiser                             | momentum | `l2` is                            |
|---------|---------------------------------------|----------|------------------------------------|
| `sgd`   | `torch.optim.SGD`                     | 0.9      | added to the gradient              |
| `lars`  | `LARS`, as Optax defines it           | 0.9      | added to the gradient              |
| `adamw` | `torch.optim.AdamW`                   | 0.9      | decoupled: weights times 1 - lr·l2 |
| `muon`  | `MuonAdamW`                           | 0.95     | decoupled                          |
| `soap`  | `pytorch_optimizer.SOAP`              | 0.95     | decoupled                          |
| `kfac`  | `KFAC`                                | 0.9      | in gradient and curvature          |

The momentum is the optimiser's usual one; of AdamW and SOAP it is the first of the betas. Learning
rates are of the order of 0.1 for SGD (0.003 where nothing is normalised), 1 for LARS and 0.001 for
the others; by their product with these, a decoupled `l2` has to be larger than one in the gradient
to do as much.

SOAP does nothing in its first step, from which it takes its first bases. Convolutions are
preconditioned along each of their four dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn, optim
from torch.optim.optimizer import Optimizer

from .groups import weights_and_others
from .kfac import KFAC
from .lars import LARS
from .muon import MuonAdamW
from .settings import KFACSettings, require_number


@dataclass(frozen=True)
class Settings:
    """What every optimiser is asked for; None is what is usual for it."""

    lr: float
    momentum: float | None = None
    l2: float = 0.0
    nesterov: bool | None = None
    kfac: KFACSettings = KFACSettings()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        require_number("lr", self.lr)
        require_number("l2", self.l2)
        require_number("momentum", self.momentum or 0.0, below=1.0)
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs a momentum > 0, got 0")


def create_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    momentum: float | None = None,
    l2: float = 0.0,
    nesterov: bool | None = None,
    kfac: KFACSettings = KFACSettings(),  # noqa: B008 - frozen
) -> Optimizer:
    """The optimiser of that name over the trainable parameters of `model`.

    They are in two groups, which have a `name`: "weights", those of two or more dimensions, and
    "others", biases, slopes of activations and all parameters of normalisation layers. `l2` is for
    the weights only. For SGD and LARS it is torch's `weight_decay`, the gradient of l2 / 2 · ‖w‖²,
    and for K-FAC also a part of the damping; for AdamW, Muon and SOAP it is decoupled weight decay.
    Muon's orthogonal steps and SOAP's bases are for weights only, LARS's trust ratio is for all.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> optimizer = create_optimizer("lars", model, lr=1.0, l2=1e-4)
    >>> [(g["name"], len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups]
    [('weights', 1, 0.0001), ('others', 3, 0.0)]
    """
    if name not in _BUILDERS:
        raise ValueError(
            f"The optimiser {name!r} was asked for; there are {', '.join(optimizer_names())}."
        )
    return _BUILDERS[name](model, Settings(lr, momentum, l2, nesterov, kfac))


def optimizer_names() -> tuple[str, ...]:
    """The names that `create_optimizer` knows."""
    return tuple(_BUILDERS)


def _groups(model: nn.Module, l2: float) -> list[dict[str, Any]]:
    """The trainable parameters of `model`, with `l2` on the weights."""
    return [
        {"name": name, "params": params, "weight_decay": l2 if name == "weights" else 0.0}
        for name, params in weights_and_others(model).items()
    ]


def _sgd(model: nn.Module, settings: Settings) -> Optimizer:
    return optim.SGD(
        _groups(model, settings.l2),
        lr=settings.lr,
        momentum=_or_usual(settings.momentum, 0.9),
        nesterov=settings.nesterov or False,
        fused=_can_fuse(model),
    )


def _lars(model: nn.Module, settings: Settings) -> Optimizer:
    # Many leave biases without a trust ratio. Where no normalisation undoes what they do, they
    # diverge at the learning rates that the weights need; so all have one, as in Optax.
    return LARS(
        _groups(model, settings.l2),
        lr=settings.lr,
        momentum=_or_usual(settings.momentum, 0.9),
        nesterov=settings.nesterov or False,
    )


def _adamw(model: nn.Module, settings: Settings) -> Optimizer:
    _refuse_nesterov("adamw", settings)
    betas = (_or_usual(settings.momentum, 0.9), 0.999)
    return optim.AdamW(
        _groups(model, settings.l2), lr=settings.lr, betas=betas, fused=_can_fuse(model)
    )


def _muon(model: nn.Module, settings: Settings) -> Optimizer:
    groups = _groups(model, settings.l2)
    for group in groups:
        # By custom the first and the last layer go to AdamW too. But a model does not say which
        # these are; in a 50-layer network without shortcuts, the last one made no clear difference.
        group["orthogonalize"] = group["name"] == "weights"
    return MuonAdamW(
        groups,
        lr=settings.lr,
        momentum=_or_usual(settings.momentum, 0.95),
        nesterov=settings.nesterov is not False,
    )


def _soap(model: nn.Module, settings: Settings) -> Optimizer:
    _refuse_nesterov("soap", settings)
    try:
        from pytorch_optimizer import SOAP
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"soap needs {missing.name}, which is not installed: pip install 'skipless[train]'"
        ) from None
    # Its merge_dims stays off: it joins outputs with inputs, and fails on small convolutions.
    betas = (_or_usual(settings.momentum, 0.95), 0.95)
    return SOAP(_groups(model, settings.l2), lr=settings.lr, betas=betas)


def _kfac(model: nn.Module, settings: Settings) -> Optimizer:
    _refuse_nesterov("kfac", settings)
    momentum = _or_usual(settings.momentum, 0.9)
    return KFAC(model, settings.lr, momentum, l2=settings.l2, settings=settings.kfac)


def _can_fuse(model: nn.Module) -> bool:
    """Whether one kernel may do a whole step: a quarter of the time on CPUs, less on GPUs too.

    It reads memory as it lies, so parameters laid out in other ways, such as channels_last, are
    left to the loops.
    """
    return all(
        p.is_contiguous() and p.is_floating_point() and p.device.type in ("cpu", "cuda")
        for p in model.parameters()
        if p.requires_grad
    )


def _or_usual(value: float | None, usual: float) -> float:
    return usual if value is None else value


def _refuse_nesterov(name: str, settings: Settings) -> None:
    if settings.nesterov:
        raise ValueError(
            f"Nesterov momentum was asked for, which {name} does not have. Leave it out, or use "
            "sgd, lars or muon."
        )


_BUILDERS: dict[str, Callable[[nn.Module, Settings], Optimizer]] = {
    "sgd": _sgd,
    "lars": _lars,
    "adamw": _adamw,
    "muon": _muon,
    "kfac": _kfac,
    "soap": _soap,
}
