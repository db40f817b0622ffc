"""built: a plan as a module, whose weights are still to be drawn."""

from __future__ import annotations

import torch
from torch import nn

from .layers import ActivationFactory
from .mlp import MLP
from .plans import Interface, MLPPlan, Plan, ResNetPlan
from .resnet import ResNet


def built(plan: Plan, interface: Interface, activation: ActivationFactory) -> ResNet | MLP:
    """The network of `plan` on torch's default device, with memory for its weights, but no values.

    So nothing is drawn twice, and torch's random numbers are left for what is drawn in the end.
    """
    device = torch.get_default_device()
    with torch.device("meta"):
        match plan:
            case ResNetPlan():
                network = ResNet(plan, interface, activation)
            case MLPPlan():
                network = MLP(plan, interface, activation)
    network.to_empty(device=device)
    for module in network.modules():
        if isinstance(module, nn.PReLU):  # which is not drawn
            module.reset_parameters()
    return network
