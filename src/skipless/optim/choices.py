"""Optimisers by name, with L2 regularisation on the weights only.

| name    | optimiser                             | momentum | `l2` is                            |
|---------|---------------------------------------|----------|------------------------------------|
| `sgd`   | `torch.optim.SGD`                     | 0.9      | added to the gradient              |
| `lars`  | `LARS`, as Optax defines it           | 0.9      | added to the gradient              |
| `adamw` | `torch.optim.AdamW`                   | 0.9      | decoupled: weights times 1 - lr·l2 |
| `muon`  | `MuonAdamW`                           | 0.95     | decoupled                          |
| `soap`  | `pytorch_optimizer.SOAP`              | 0.95     | decoupled                          |
| `kfac`  | `KFAC`                                | 0.9      | in gradient and curvature          |

The momentum is the default; for AdamW and SOAP it is the first of the betas. Learning rates are of
the order of 0.1 for SGD (without normalisation 0.03 if gradients are clipped at norm 1, otherwise
0.003), 1 for LARS and 0.001 for the others.
Decoupled weight decay is multiplied by the learning rate, so it takes a larger `l2` to have the
same effect. SOAP's first step only initialises its eigenbases; it preconditions convolutions along
each of their four dimensions.
"""

from typing import Any

from torch import nn, optim
from torch.optim.optimizer import Optimizer

from skipless._install import not_installed

from .groups import weights_and_others
from .kfac import KFAC
from .lars import LARS
from .muon import MuonAdamW
from .settings import KFACSettings, require_bool, require_number

_MOMENTA = {"sgd": 0.9, "lars": 0.9, "adamw": 0.9, "muon": 0.95, "kfac": 0.9, "soap": 0.95}
_WITH_NESTEROV = ("sgd", "lars", "muon")


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

    The parameters are in two groups, which have a `name`: "weights", those of two or more
    dimensions, and "others", biases, slopes of activations and all parameters of normalisation
    layers. Muon's orthogonal steps and SOAP's bases are for weights only, LARS's trust ratio is for
    all parameters.

    Args:
        name: One of `optimizer_names()`.
        model: The network.
        lr: The learning rate.
        momentum: None is the optimiser's default.
        l2: For the weights only; the table says what it is. For K-FAC it is part of the damping.
        nesterov: Nesterov momentum, for sgd, lars and muon; None is the optimiser's default.
        kfac: Settings that only K-FAC has.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> optimizer = create_optimizer("lars", model, lr=1.0, l2=1e-4)
    >>> [(g["name"], len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups]
    [('weights', 1, 0.0001), ('others', 3, 0.0)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be the network itself, got {type(model).__name__}")
    if not isinstance(kfac, KFACSettings):
        raise TypeError(f"kfac must be KFACSettings(...), got {kfac!r}")
    momentum = resolve_momentum(name, lr, momentum, l2, nesterov)
    if name == "kfac":
        return KFAC(model, lr, momentum, l2=l2, settings=kfac)
    return _build(name, model, lr, momentum, l2, nesterov)


def resolve_momentum(
    name: str, lr: float, momentum: float | None, l2: float, nesterov: bool | None
) -> float:
    """The momentum of the optimiser `name`; raises if it cannot have these options."""
    if name not in _MOMENTA:
        raise ValueError(f"optimizer must be one of {', '.join(_MOMENTA)}, got {name!r}")
    momentum = _MOMENTA[name] if momentum is None else momentum
    require_number("lr", lr)
    require_number("l2", l2)
    require_number("momentum", momentum, below=1.0)
    if nesterov is not None:
        require_bool("nesterov", nesterov)
    if nesterov and name not in _WITH_NESTEROV:
        raise ValueError(
            f"{name} does not support nesterov; use it with {', '.join(_WITH_NESTEROV)}"
        )
    if nesterov and momentum == 0.0:
        raise ValueError("nesterov needs a momentum > 0, got 0")
    return momentum


def optimizer_names() -> tuple[str, ...]:
    """The names that `create_optimizer` accepts."""
    return tuple(_MOMENTA)


def _build(
    name: str, model: nn.Module, lr: float, momentum: float, l2: float, nesterov: bool | None
) -> Optimizer:
    groups: list[dict[str, Any]] = [
        {"name": group, "params": params, "weight_decay": l2 if group == "weights" else 0.0}
        for group, params in weights_and_others(model).items()
    ]
    match name:
        case "sgd":
            fused = _can_fuse(model)
            return optim.SGD(groups, lr, momentum, nesterov=bool(nesterov), fused=fused)
        case "lars":
            # Many leave biases without a trust ratio. Where no normalisation undoes what they do,
            # they diverge at the learning rates that the weights need; so all have one, as in
            # Optax.
            return LARS(groups, lr, momentum, nesterov=bool(nesterov))
        case "adamw":
            return optim.AdamW(groups, lr, betas=(momentum, 0.999), fused=_can_fuse(model))
        case "muon":
            # Usually the first and the last layer go to AdamW too, but a model does not say which
            # these are; in a 50-layer network without shortcuts, the last one made no clear
            # difference.
            for group in groups:
                group["orthogonalize"] = group["name"] == "weights"
            return MuonAdamW(groups, lr, momentum, nesterov=nesterov is not False)
        case _:
            try:
                from pytorch_optimizer import SOAP
            except ModuleNotFoundError as missing:
                raise ImportError(not_installed("soap", missing.name, "train")) from None
            # merge_dims stays off: it joins outputs with inputs, and fails on small convolutions.
            return SOAP(groups, lr=lr, betas=(momentum, 0.95))


def _can_fuse(model: nn.Module) -> bool:
    """Whether one kernel can do a whole step: a quarter of the time on CPUs, less on GPUs too.

    It reads memory in order, so other layouts, such as channels_last, need torch's loops.
    """
    return all(
        p.is_contiguous() and p.is_floating_point() and p.device.type in ("cpu", "cuda")
        for p in model.parameters()
        if p.requires_grad
    )
