"""K-FAC in a loop of one's own, and SGD: 50 layers without shortcuts and normalisation.

    python examples/kfac_loop.py [SEED]

10 epochs of scikit-learn's digits in batches of 128. SGD has the best of the rates 0.01, 0.03 and
0.1 and gradients clipped at norm 1, K-FAC the best of 0.003, 0.01 and 0.03. About 20 s on one core,
of which K-FAC takes two thirds. Training loss at the end for seeds 0, 1 and 2:

    SGD      0.0850, 0.0764, 0.0348
    K-FAC    0.0035, 0.0053, 0.0060
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import skipless as sk


def mlp(depth: int = 50, width: int = 64) -> nn.Module:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main(seed: int = 0) -> None:
    images, y = (torch.tensor(a) for a in load_digits(return_X_y=True))
    x = sk.torch.normalize_per_sample(images.float())
    for name in ("SGD", "K-FAC"):
        torch.manual_seed(seed)
        model = sk.convert(mlp(), x[:2])
        if name == "SGD":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
        else:
            optimizer = sk.optim.KFAC(model, lr=0.003, preset="cifar10")
        batches = [batch for _ in range(10) for batch in torch.randperm(len(x)).split(128)]
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
        for batch in batches:
            optimizer.zero_grad()
            outputs = model(x[batch])
            if isinstance(optimizer, sk.optim.KFAC):
                optimizer.curvature(outputs)  # the one extra line
            F.cross_entropy(outputs, y[batch]).backward()
            if name == "SGD":  # K-FAC limits its steps itself
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            print(f"{name}: training loss {F.cross_entropy(model(x), y):.4f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
