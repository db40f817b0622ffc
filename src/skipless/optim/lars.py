r"""LARS: SGD whose every weight tensor moves by a fixed part of its own length (You et al., 2017).

This is the definition of Optax, with which the paper trained (appendix D). For a parameter $w$ with
gradient $g$, weight decay $\lambda$, trust coefficient $\kappa$ and momentum $\mu$:

$$u = g + \lambda w, \qquad
  r = \frac{\kappa\,\|w\|}{\|u\| + \epsilon} \quad (1 \text{ if } \|w\| \|u\| = 0), \qquad
  v \leftarrow \mu v + \mathrm{lr}\, r\, u, \qquad
  w \leftarrow w - v$$

The learning rate multiplies what enters the momentum; in `torch.optim.SGD` it multiplies what
leaves it. So after the rate drops, older and larger steps take a while to decay.
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_* are what torch's own optimisers are made of, but have no public names.

from math import inf
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from .groups import GroupwiseOptimizer, by_dtype_and_device, with_gradients
from .settings import require_bool, require_number


class LARS(GroupwiseOptimizer):
    """LARS as Optax defines it.

    Every setting may differ between groups. `trust_coefficient=None` trains a group by SGD with
    momentum, as is often done for biases and normalisation layers. LARS's usual learning rates,
    about 1, are too large for biases in networks without normalisation.

    A first step has length `lr * trust_coefficient` times that of the parameter:

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 100.0])
    >>> LARS([w], lr=1.0, trust_coefficient=0.1).step()
    >>> w.tolist()
    [3.0, 3.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float | None = 0.001,
        eps: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        settings = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": eps,
        }
        for name, value in settings.items():
            if name != "trust_coefficient" or value is not None:
                require_number(name, value, below=1.0 if name == "momentum" else inf)
        require_bool("nesterov", nesterov)
        super().__init__(params, {**settings, "nesterov": nesterov})

    def _step_group(self, group: dict[str, Any]) -> None:
        for params in by_dtype_and_device(with_gradients(group, "LARS")[0]):
            self._step_together(params, group)

    def _step_together(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one device and dtype, in a few operations for all of them."""
        grads = [cast(Tensor, p.grad) for p in params]
        updates = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        if (trust_coefficient := group["trust_coefficient"]) is not None:
            ratios = _trust_ratios(params, updates, trust_coefficient, group["eps"])
            torch._foreach_mul_(updates, ratios)
        torch._foreach_mul_(updates, group["lr"])
        if momentum := group["momentum"]:
            for p in params:
                if "trace" not in self.state[p]:
                    self.state[p]["trace"] = torch.zeros_like(p)
            traces = [self.state[p]["trace"] for p in params]
            torch._foreach_mul_(traces, momentum)
            torch._foreach_add_(traces, updates)
            if group["nesterov"]:
                torch._foreach_add_(updates, traces, alpha=momentum)
            else:
                updates = traces
        torch._foreach_sub_(params, updates)


def _trust_ratios(
    params: list[Tensor], updates: list[Tensor], trust_coefficient: float, eps: float
) -> list[Tensor]:
    """One number per parameter, left on its device to avoid synchronising."""
    exact = torch.promote_types(params[0].dtype, torch.float32)
    lengths = torch.stack(torch._foreach_norm(params, dtype=exact))
    steps = torch.stack(torch._foreach_norm(updates, dtype=exact))
    ratios = trust_coefficient * lengths / (steps + eps)
    # A parameter of length 0 would never move, and a step of length 0 has no direction.
    ratios = torch.where((lengths == 0) | (steps == 0), 1.0, ratios)
    return list(ratios.unbind())
