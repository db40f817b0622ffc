"""The network shaped by TAT with dks: every line that its user writes.

The C map of the network is written by hand, from the network; activations, sums, weights and biases
are changed in its classes. BatchNorm is left where it is, unused: a user would delete those lines.
"""

# pyright: reportMissingImports=false

import math

import network
from dks.pytorch.activation_transform import get_transformed_activations
from dks.pytorch.data_preprocessing import per_location_normalization
from dks.pytorch.parameter_sampling_functions import scaled_uniform_orthogonal_
from torch import nn

WEIGHT = 0.8


def subnet_max(x, r):
    branch = r(r(x))
    for stage, count in enumerate((6, 6, 6)):
        for number in range(count):
            shortcut = r(x) if stage and number == 0 else x
            x = WEIGHT**2 * shortcut + (1 - WEIGHT**2) * r(r(x))
    return max(r(x), branch)


phi = get_transformed_activations(
    ["leaky_relu"],
    method="TAT",
    tat_params={"c_val_0_target": 0.9},
    subnet_max_func=subnet_max,
)["leaky_relu"]


def forward_of_block(self, x):
    out = phi(x)
    shortcut = x if self.project is None else self.project(out)
    out = self.conv2(phi(self.conv1(out)))
    return WEIGHT * shortcut + math.sqrt(1 - WEIGHT**2) * out


def forward(self, x):
    return self.head(phi(self.blocks(self.stem(x))).mean(dim=(2, 3)))


network.Block.forward, network.ResNet.forward = forward_of_block, forward
images = per_location_normalization(network.images().movedim(1, -1)).movedim(-1, 1)
model = network.ResNet()
for module in model.modules():
    if isinstance(module, nn.Conv2d | nn.Linear):
        scaled_uniform_orthogonal_(module.weight)
        module.bias = nn.Parameter(module.weight.new_zeros(len(module.weight)))
