"""The paper's networks and optimisers, as options of a run at full scale."""

from __future__ import annotations

from .scales import Options

OPTIMIZERS = {"K-FAC": "kfac", "SGD": "sgd", "LARS": "lars"}

RELU: Options = {"method": "eoc"}  # (σ_w, σ_b) = (√2, 0)
TRELU: Options = {"method": "tat"}
# Section 5.4 has (σ_w, σ_b) = (1.302, 0.02), which is not on the edge of chaos: there, σ_b = 0.02
# goes with σ_w = 1.067, and σ_w = 1.304 with σ_b = 0.2, which must have been meant.
EOC_TANH: Options = {"method": "eoc", "activation": "tanh", "sigma_b": 0.2}
TAT_TANH: Options = {"method": "tat", "activation": "tanh"}
TAT_SOFTPLUS: Options = {"method": "tat", "activation": "softplus"}
DKS_LRELU: Options = {"method": "dks", "activation": "leaky_relu"}
DKS_SOFTPLUS: Options = {"method": "dks", "activation": "softplus"}
DKS_TANH: Options = {"method": "dks", "activation": "tanh"}
# Appendix E.8: all of a kernel is drawn.
GAUSSIAN: Options = {"distribution": "gaussian", "delta": False}


def prelu(slope: float) -> Options:
    """PReLU, with slopes that are trained from `slope` on."""
    return {"activation": "prelu", "negative_slope": slope}


def standard(depth: int) -> Options:
    """A ResNet with BatchNorm and ReLU."""
    return {"model": f"resnet{depth}", "norm": "batch"}


def rescaled(depth: int, shortcut_weight: float) -> Options:
    """A ResNet without normalisation layers, with the sums of eq. 6.

    With w = 0.9, no leaky ReLU has the η of table 2; the nearest is taken (docs/paper.md, errata).
    """
    clamp = {"clamp": True} if shortcut_weight > 0.8 else {}
    return {"model": f"resnet{depth}", "shortcut_weight": shortcut_weight, **clamp}


def vanilla(depth: int) -> Options:
    """A ResNet without normalisation layers and shortcuts."""
    return rescaled(depth, 0.0)


def wide_vanilla(depth: int) -> Options:
    """A Wide ResNet without normalisation layers and shortcuts."""
    return {"model": f"wide_resnet{depth}", "shortcut_weight": 0.0}


def optimised(optimizer: str) -> Options:
    """The optimiser that a row of a table names."""
    return {"optimizer": OPTIMIZERS[optimizer]}
