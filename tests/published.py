"""What the paper prints, where the tests need it, each with its place."""

import math

# Section 4.1: "In practice we use η = 0.9 or 0.95".
ETAS = (0.9, 0.95)

# Appendix B.5: ResNet-L has (L - 2) / 3 residual blocks, four of them transition blocks, each the
# first of a stage. The sizes of the stages are those of He et al. (2016), table 1.
RESNET_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def stated_shortcut_weight(alpha: float) -> float:
    """Of proposition 1, as in its statement; its proof has 2α in place of α."""
    return math.sqrt(alpha / (1.0 + alpha**2))


def slower_flow(t: float) -> float:
    """Proof of proposition 3: the solution of ẋ = (2√2/3) (1 - x)^(3/2) from 0, at time t."""
    return 1.0 - (3.0 / (math.sqrt(2.0) * t + 3.0)) ** 2
