"""Chains of linear layers, of any depth."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from .layers import ActivationFactory, pre_activation
from .plans import Interface, MLPPlan
from .shaping import Shaping


class MLP(nn.Module):
    """Flattens its input; then `depth` layers, each followed by an activation; then the logits."""

    shaping: Shaping | None = None

    def __init__(self, plan: MLPPlan, interface: Interface, activation: ActivationFactory) -> None:
        super().__init__()
        layers, inputs = [], interface.inputs
        for _ in range(plan.depth):
            linear = nn.Linear(inputs, plan.width, bias=plan.norm == "none")
            after = pre_activation(plan.width, plan.norm, activation, images=False)
            layers.append(nn.Sequential(OrderedDict([("linear", linear), *after])))
            inputs = plan.width
        self.layers = nn.Sequential(*layers)
        self.dropout = nn.Dropout(interface.dropout)
        self.fc = nn.Linear(inputs, interface.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.layers(x.flatten(1))))
