"""What the paper prints, where the tests need it, each with its place."""

import math

# Section 4.1: "In practice we use η = 0.9 or 0.95".
ETAS = (0.9, 0.95)

# Appendix B.5: ResNet-L has (L - 2) / 3 residual blocks, four of them transition blocks, each the
# first of a stage. The sizes of the stages are those of He et al. (2016), table 1.
RESNET_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}

# Appendix D, of ImageNet: "For K-FAC, we used a fixed damping value of 0.001, and a norm constraint
# value of 0.001". Appendix E.2, of CIFAR-10: "we set the damping value to 0.01 and norm constraint
# value to 0.0001".
KFAC_SETTINGS = {
    "imagenet": {"damping": 0.001, "norm_constraint": 0.001},
    "cifar10": {"damping": 0.01, "norm_constraint": 0.0001},
}

# Appendix D: "we set the momentum constant to 0.9"; "We also updated the Fisher matrix
# approximation every iteration, and computed the Fisher inverse every 50 iterations"; the initial
# learning rates of the grid search, at batches of 1,024.
MOMENTUM = 0.9
# examples/resnet50_imagenet/pipeline.py of kfac-jax, which the authors wrote and used.
KFAC_JAX_RESNET50_NORM = 0.01
KFAC_PERIODS = {"curvature_period": 1, "inverse_period": 50}
KFAC_RATES = (0.003, 0.001, 0.0003, 0.0001, 0.00003)


# Appendix D and sections 5 and 5.4: what is searched over.
RATES = {
    "sgd": (1.0, 0.3, 0.1, 0.03, 0.01),
    "kfac": KFAC_RATES,
    "lars": (10.0, 3.0, 1.0, 0.3, 0.1),
}
L2 = (0.00005, 0.00002, 0.0)
DROPOUTS = (0.2, 0.0)
TAUS = (0.2, 0.3, 0.5)
ZETAS = (1.5, 10.0, 100.0)

# All tables and figures with their labels in the source, in the order of their numbers.
FLOATS = [
    ("figure", "fig:fig1"),
    ("figure", "fig:cvalue"),
    ("table", "table:comparison"),
    ("table", "table:shortcut"),
    ("table", "table:normalization"),
    ("table", "table:overall"),
    ("table", "table:eoc-aeoc"),
    ("table", "table:prelu"),
    ("table", "table:DKS"),
    ("table", "table:bs-scaling"),
    ("figure", "fig:optimizer"),
    ("figure", "fig:kernel-error"),
    ("figure", "fig:cifar"),
    ("figure", "fig:K-FAC_speed"),
    ("figure", "fig:fig1_train"),
    ("table", "table:width"),
    ("table", "table:prelu-app"),
    ("table", "table:init"),
]


def stated_shortcut_weight(alpha: float) -> float:
    """Of proposition 1, as in its statement; its proof has 2α in place of α."""
    return math.sqrt(alpha / (1.0 + alpha**2))


def slower_flow(t: float) -> float:
    """Proof of proposition 3: the solution of ẋ = (2√2/3) (1 - x)^(3/2) from 0, at time t."""
    return 1.0 - (3.0 / (math.sqrt(2.0) * t + 3.0)) ** 2
