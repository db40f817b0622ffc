"""How often `check` disagrees with sound networks, and how often it finds a fault.

    python benchmarks/check.py [RUNS] [NETWORK]...

Each run draws the weights five times. Faults, one at a random place: the slope of an activation is
0.1 too large (of smooth ones, the input scale 1.2 times), an activation or a layer is 1.3 times too
loud. In the last column the weights that the model has are checked, a single draw. About 20 minutes
on one core for ten runs. The result (PyTorch 2.13, CPU):

| network | weights | false alarms | slope | loud | layer | weights |
|---|---|---:|---:|---:|---:|---:|
| mlp 16 x 20 | orthogonal | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| mlp 16 x 20 | gaussian | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| residual 32 | orthogonal | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| residual 32 | gaussian | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| separable 16 | orthogonal | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| separable 16 | gaussian | 0/10 | 10/10 | 10/10 | 10/10 | 9/10 |
| dense 24 | orthogonal | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| dense 24 | gaussian | 0/10 | 10/10 | 10/10 | 10/10 | 10/10 |
| mlp 1024 x 4 | orthogonal | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 1024 x 4 | gaussian | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| residual 16, SiLU | orthogonal | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| residual 16, SiLU | gaussian | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 128 x 20, tanh | orthogonal | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 128 x 20, tanh | gaussian | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 32 x 50 | orthogonal | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 32 x 50 | gaussian | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 64 x 50, SiLU | orthogonal | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 64 x 50, SiLU | gaussian | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 256 x 50 | orthogonal | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
| mlp 256 x 50 | gaussian | 0/8 | 8/8 | 8/8 | 8/8 | 8/8 |
"""

import copy
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import skipless as sk
from skipless.core.bands import Distribution
from skipless.core.solution import Method
from skipless.torch import ShapedActivation

SEEDS = 5
Network = tuple[Callable[[], nn.Module], Tensor, Method, str]


def mlp(width: int, depth: int) -> nn.Module:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Residual(nn.Module):
    """Pre-activation blocks of two convolutions."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        conv = lambda: nn.Conv2d(width, width, 3, padding=1)
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 10)
        parts = lambda: (nn.ReLU(), conv(), nn.ReLU(), conv())
        self.blocks = nn.ModuleList(nn.Sequential(*parts()) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(F.relu(x).mean((2, 3)))


class Dense(nn.Module):
    """Layers that read all earlier ones."""

    def __init__(self, width: int, layers: int, growth: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        sizes = [width + i * growth for i in range(layers + 1)]
        self.layers = nn.ModuleList(nn.Linear(size, growth) for size in sizes[:-1])
        self.last = nn.Linear(sizes[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.cat([x, layer(F.relu(x))], 1)
        return self.last(F.relu(x))


def separable(width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(width, width, 3, padding=1, groups=width), nn.ReLU()]
        layers += [nn.Conv2d(width, width, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


IMAGE = torch.zeros(2, 3, 6, 6)
TAT, DKS, LEAKY = sk.TAT(), sk.DKS(zeta=1.5), "leaky_relu"
NETWORKS: dict[str, Network] = {
    "mlp 16 x 20": (lambda: mlp(16, 20), torch.zeros(2, 16), sk.TAT(eta=0.8), LEAKY),
    "mlp 32 x 50": (lambda: mlp(32, 50), torch.zeros(2, 32), TAT, LEAKY),
    "mlp 64 x 50, SiLU": (lambda: mlp(64, 50), torch.zeros(2, 64), sk.TAT(tau=0.3), "silu"),
    "mlp 128 x 20, tanh": (lambda: mlp(128, 20), torch.zeros(2, 128), DKS, "tanh"),
    "mlp 256 x 50": (lambda: mlp(256, 50), torch.zeros(2, 256), TAT, LEAKY),
    "mlp 1024 x 4": (lambda: mlp(1024, 4), torch.zeros(2, 1024), TAT, LEAKY),
    "residual 32": (lambda: Residual(32, 6), IMAGE, TAT, LEAKY),
    "residual 16, SiLU": (lambda: Residual(16, 4), IMAGE, DKS, "silu"),
    "separable 16": (lambda: separable(16), IMAGE, TAT, LEAKY),
    "dense 24": (lambda: Dense(24, 8), torch.zeros(2, 24), TAT, LEAKY),
}


class LoudLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, 1.3 * self.weight, self.bias)


class LoudConv2d(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, 1.3 * self.weight, self.bias)


_LOUD: dict[type, type] = {nn.Linear: LoudLinear, nn.Conv2d: LoudConv2d}


def plant(model: nn.Module, solution: sk.Solution, fault: str, rng: random.Random) -> nn.Module:
    """A copy of `model` with a `fault` somewhere."""
    model = copy.deepcopy(model)
    kinds = (nn.Linear, nn.Conv2d) if fault in ("layer", "weights") else (ShapedActivation,)
    modules: list[tuple[str, Any]] = [
        (name, m) for name, m in model.named_modules() if isinstance(m, kinds)
    ]
    name, module = rng.choice([(n, m) for n, m in modules if getattr(m, "groups", 1) == 1])
    if fault == "weights":
        with torch.no_grad():
            module.weight.mul_(1.3)
    elif fault == "layer":
        module.__class__ = _LOUD[type(module)]
    elif fault == "loud":
        wrong = replace(solution, output_scale=1.3 * (solution.output_scale or 1.0))
        model.set_submodule(name, ShapedActivation.from_solution(wrong))
    else:
        bent = {"input_scale": 1.2 * (solution.input_scale or 1.0)}
        if solution.negative_slope is not None:
            bent = {"negative_slope": solution.negative_slope + 0.1}
        model.set_submodule(name, ShapedActivation.from_solution(replace(solution, **bent)))
    return model


FAULTS = ("slope", "loud", "layer", "weights")


def count(network: Network, distribution: Distribution, runs: int) -> tuple[int, list[int]]:
    """The runs in which a sound network disagrees, and in which each fault does."""
    build, example, method, activation = network
    torch.manual_seed(0)
    model = sk.torch.convert(build(), example, method, activation=activation)
    solution, rng = model.skipless_report.solution, random.Random(0)

    def disagrees(model: nn.Module, seeds: range | None) -> bool:
        found = sk.torch.check(model, example, solution, seeds=seeds, distribution=distribution)
        return not found.agrees

    alarms, found = 0, [0] * len(FAULTS)
    for run in range(runs):
        seeds = range(run * SEEDS, (run + 1) * SEEDS)
        alarms += disagrees(model, seeds)
        for place, fault in enumerate(FAULTS):
            generator = torch.Generator().manual_seed(run)
            sk.torch.initialize_(model, distribution=distribution, generator=generator)
            wrong = plant(model, solution, fault, rng)
            found[place] += disagrees(wrong, None if fault == "weights" else seeds)
    return alarms, found


def main() -> None:
    torch.set_num_threads(1)
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"| network | weights | false alarms | {' | '.join(FAULTS)} |")
    print("|---|---|---:|" + "---:|" * len(FAULTS))
    for name in sys.argv[2:] or NETWORKS:
        for distribution in get_args(Distribution):
            alarms, found = count(NETWORKS[name], distribution, runs)
            cells = " | ".join(f"{number}/{runs}" for number in [alarms, *found])
            print(f"| {name} | {distribution} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
