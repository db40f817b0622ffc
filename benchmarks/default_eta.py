"""What TAT() should aim for in networks that cannot reach eta = 0.9.

    python benchmarks/default_eta.py [resnet | unet | dqn]

Three shallow networks are converted with eta at a share of what plain ReLU reaches, and trained
from scratch; a share of 1 is plain ReLU.

| name   | network                                             | task                              |
|--------|-----------------------------------------------------|-----------------------------------|
| resnet | ResNet-18 an eighth as wide, its shortcuts kept     | Fashion-MNIST, accuracy           |
| unet   | U-Net of three scales                               | masks of noisy images, accuracy   |
| dqn    | Q-network of two convolutions and two dense layers  | Catch, mean return while learning |

The best of three learning rates counts, by the mean over three seeds. Needs the files of
Fashion-MNIST; one thread, about an hour for all three. Mean and standard error by share:

| share  | 1          | 0.95       | 0.9        | 0.8        | 0.6        | 0.4        |
|--------|------------|------------|------------|------------|------------|------------|
| resnet | 81.5 ± 0.3 | 82.8 ± 0.5 | 83.8 ± 0.2 | 84.6 ± 0.2 | 84.4 ± 0.5 | 83.9 ± 0.3 |
| unet   | 90.6 ± 0.2 | 90.8 ± 0.2 | 90.8 ± 0.1 | 90.6 ± 0.2 | 90.9 ± 0.1 | 91.1 ± 0.1 |

The Q-network has 0.89 to 0.90 ± 0.01 for all shares from 0.6 to 1.
"""

from __future__ import annotations

import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import skipless as sk
from skipless.core.maps import arc_gap
from skipless.core.network import max_c_value
from skipless.tables import table
from skipless.torch import normalize_per_sample
from skipless.train.data import load_data

SEEDS = (0, 1, 2)
SHARES = (1.0, 0.95, 0.9, 0.8, 0.6, 0.4)
RATES = {"resnet": (0.03, 0.1, 0.3), "unet": (0.03, 0.1, 0.3), "dqn": (3e-4, 1e-3, 3e-3)}


class Block(nn.Module):
    """A post-activation block with BatchNorm, as in torchvision."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.down = nn.Sequential()
        if stride != 1 or inputs != width:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.down(x))


def resnet18(width: int = 8) -> nn.Sequential:
    stem = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    widths = [width, 2 * width, 4 * width, 8 * width]
    blocks: list[nn.Module] = []
    inputs = width
    for stage, outputs in enumerate(widths):
        blocks += [Block(inputs, outputs, 1 + (stage > 0)), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)
    )


def double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in (inputs, outputs):
        layers += [nn.Conv2d(i, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.in1, self.in2 = double(1, width), double(width, 2 * width)
        self.middle = double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out2, self.out1 = double(4 * width, 2 * width), double(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.in1(x)
        b = self.in2(F.max_pool2d(a, 2))
        y = self.middle(F.max_pool2d(b, 2))
        y = self.out2(torch.cat([self.up2(y), b], 1))
        return self.head(self.out1(torch.cat([self.up1(y), a], 1)))


def q_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 5 * 3, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, 3),
    )  # fmt: skip


def reachable(graph: sk.Graph) -> float:
    """The largest C_f(0), that of plain ReLU."""
    return max_c_value(graph, lambda c: min(1.0, c + arc_gap(c) / math.pi))


def convert(model: nn.Module, example: Tensor, share: float, seed: int) -> nn.Module:
    """`model` with eta at that share of what it reaches; a share of 1 is plain ReLU."""
    generator = torch.Generator().manual_seed(seed)
    most = reachable(sk.torch.convert(model, example, sk.TAT(eta=1e-3)).skipless_report.graph)
    eta = most * min(share, 1.0 - 1e-12)
    return sk.torch.convert(model, example, sk.TAT(eta=eta), generator=generator)


def minibatches(count: int, batch: int, epochs: int, seed: int) -> Iterator[tuple[float, Tensor]]:
    """The factor of the learning rate (warm-up, then a cosine) and the indices of each step."""
    generator = torch.Generator().manual_seed(seed)
    steps = count // batch
    order = torch.empty(0)
    for step in range(steps * epochs):
        if step % steps == 0:
            order = torch.randperm(count, generator=generator)
        done = step / (steps * epochs)
        factor = min(10.0 * done + 1e-3, 0.5 * (1.0 + math.cos(math.pi * done)))
        at = step % steps * batch
        yield factor, order[at : at + batch]


def fit(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Callable[..., Tensor], lr: float,
    seed: int, epochs: int, batch: int = 64,
) -> None:  # fmt: skip
    """Train by SGD with gradients clipped at norm 1."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for factor, chosen in minibatches(len(inputs), batch, epochs, seed):
        optimizer.param_groups[0]["lr"] = lr * factor
        optimizer.zero_grad()
        loss(model(inputs[chosen]), targets[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@cache
def images(size: int, train: int, test: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    data = load_data("fashion-mnist", image_size=size, train_size=train, validation_size=test)
    return *data.train.load(range(train), None), *data.validation.load(range(test), None)


def train_resnet(share: float, lr: float, seed: int) -> float:
    x, y, x_test, y_test = images(14, 5_000, 2_000)
    x, x_test = normalize_per_sample(x), normalize_per_sample(x_test)
    model = convert(resnet18(), x[:2], share, seed)
    fit(model, x, y, F.cross_entropy, lr, seed, epochs=4)
    with torch.no_grad():
        return 100.0 * (model(x_test).argmax(1) == y_test).float().mean().item()


def train_unet(share: float, lr: float, seed: int) -> float:
    x, _, x_test, _ = images(14, 1_000, 500)
    dark = x.amin().item()  # 16 x 16 pixels can be halved twice
    x, x_test = (F.pad(part, (1, 1, 1, 1), value=dark) for part in (x, x_test))
    noise = torch.Generator().manual_seed(0)
    masks = [(part > part.amin() + 0.3).float() for part in (x, x_test)]
    noisy = [part + 1.5 * torch.randn(part.shape, generator=noise) for part in (x, x_test)]
    x, x_test = (normalize_per_sample(part) for part in noisy)
    model = convert(UNet(), x[:2], share, seed)
    fit(model, x, masks[0], F.binary_cross_entropy_with_logits, lr, seed, epochs=3, batch=32)
    with torch.no_grad():
        return 100.0 * ((model(x_test) > 0.0) == masks[1].bool()).float().mean().item()


def catch(move: random.Random) -> Iterator[tuple[Tensor, float, bool]]:
    """Catch: a ball falls through ten rows of five columns, and a paddle moves below it.

    Yields the board, the reward and whether the episode ended; `send` takes the action.
    """
    while True:
        ball, paddle = move.randrange(5), 2
        for row in range(10):
            board = torch.full((1, 10, 5), -0.3)
            board[0, row, ball], board[0, 9, paddle] = 3.0, 3.0
            action = yield board, (float(2 * (ball == paddle) - 1) if row == 9 else 0.0), row == 9
            paddle = min(4, max(0, paddle + (action or 0) - 1))


def train_dqn(share: float, lr: float, seed: int, steps: int = 6_000) -> float:
    """The mean return over the second half of training, by double Q-learning."""
    chance = random.Random(seed)
    model = convert(q_network(), torch.randn(2, 1, 10, 5), share, seed)
    target = convert(q_network(), torch.randn(2, 1, 10, 5), share, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    memory: deque[tuple[Tensor, int, float, Tensor, bool]] = deque(maxlen=5_000)
    game = catch(chance)
    state, _, _ = next(game)
    returns: list[float] = []
    for step in range(steps):
        with torch.no_grad():
            greedy = int(model(state[None]).argmax())
        explore = max(0.05, 1.0 - step / 2_000)
        action = chance.randrange(3) if chance.random() < explore else greedy
        after, reward, done = game.send(action)  # type: ignore[attr-defined]
        memory.append((state, action, reward, after, done))
        state = after
        if done:
            returns.append(reward)
            state, _, _ = game.send(1)  # type: ignore[attr-defined]
        if step % 200 == 0:
            target.load_state_dict(model.state_dict())
        if step >= 200 and step % 2 == 0:
            batch = [memory[chance.randrange(len(memory))] for _ in range(32)]
            x, a, r, x_after, ended = (list(column) for column in zip(*batch, strict=True))
            rewards, last = torch.tensor(r), torch.tensor(ended, dtype=torch.float32)
            with torch.no_grad():
                best = model(torch.stack(x_after)).argmax(1, keepdim=True)
                value = target(torch.stack(x_after)).gather(1, best).squeeze(1)
                goal = rewards + 0.99 * (1.0 - last) * value
            chosen = model(torch.stack(x)).gather(1, torch.tensor(a)[:, None]).squeeze(1)
            optimizer.zero_grad()
            F.smooth_l1_loss(chosen, goal).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return float(np.mean(returns[len(returns) // 2 :]))


RUNS = {"resnet": train_resnet, "unet": train_unet, "dqn": train_dqn}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows: list[list[str]] = []
    for name in names or list(RUNS):
        for share in SHARES:
            found = {lr: [RUNS[name](share, lr, seed) for seed in SEEDS] for lr in RATES[name]}
            best = max(found, key=lambda lr: np.nan_to_num(np.mean(found[lr]), nan=-1e9))
            scores = np.array(found[best])
            error = scores.std(ddof=1) / math.sqrt(len(scores))
            rows.append([name, f"{share:g}", f"{best:g}", f"{scores.mean():.3f}", f"{error:.3f}"])
            print(*rows[-1], {lr: np.round(s, 3).tolist() for lr, s in found.items()}, flush=True)
    print(f"\n{table(['network', 'share', 'best rate', 'mean', 'standard error'], rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
