"""A ResNet made fit for differentially private training, which BatchNorm is not.

python examples/private_training.py

Opacus clips the gradient of every sample by itself. BatchNorm mixes the samples of a batch, so that
no gradient belongs to one of them, and Opacus refuses it. A converted network has no such layer.
Needs `pip install -c constraints.txt -e '.[private,train]'`.
"""

import sys
import warnings

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from opacus.validators.errors import UnsupportedModuleError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skipless as sk
from skipless.train.data import load_data

DELTA = 1e-4  # less than one over the number of images


def digits() -> TensorDataset:
    train = load_data("digits").train
    images, labels = train.load(range(len(train)), None)
    return TensorDataset(sk.torch.normalize_per_sample(images), labels)


def private(
    model: nn.Module, data: TensorDataset, engine: PrivacyEngine, lr: float
) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """The model, its optimiser and its data, as Opacus hands them back."""
    return engine.make_private(  # pyright: ignore[reportReturnType]
        module=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr),
        data_loader=DataLoader(data, batch_size=128),
        noise_multiplier=0.7,
        max_grad_norm=1.0,
    )


def mean_loss(model: nn.Module, data: TensorDataset) -> float:
    with torch.no_grad():
        images, labels = data.tensors
        return F.cross_entropy(model(images), labels).item()


def main(epochs: int = 5, depth: int = 16) -> None:
    # Of Opacus: that its random numbers are not those for production, and that images ask for no
    # gradient.
    warnings.filterwarnings("ignore", message="Secure RNG turned off|Full backward hook is firing")
    torch.manual_seed(0)
    data, engine = digits(), PrivacyEngine()
    resnet = sk.models.create_model(
        f"wide_resnet{depth}", num_classes=10, in_chans=1, img_size=8, width=1.0
    )
    try:
        private(resnet, data, engine, lr=0.003)
    except UnsupportedModuleError as error:
        reason = str(error).split('("')[-1]  # of the first layer that Opacus complains of
        print(f"With BatchNorm: {reason.split('.')[0]}.")

    model = sk.torch.convert(resnet, data.tensors[0][:2], sk.TAT(eta=0.8), shortcut_weight=0.0)
    print(f"Converted: loss {mean_loss(model, data):.3f}")
    model, optimiser, batches = private(model, data, engine, lr=0.003)
    for epoch in range(1, epochs + 1):
        for images, labels in batches:
            optimiser.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()
        spent = engine.get_epsilon(DELTA)
        print(f"epoch {epoch}: loss {mean_loss(model, data):.3f}, ε = {spent:.2f} at δ = {DELTA:g}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
