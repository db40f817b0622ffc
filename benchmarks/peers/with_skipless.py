"""The network shaped by TAT with skipless: every line that its user writes."""

import network

import skipless as sk

images = sk.torch.normalize_per_location(network.images())
model = sk.torch.convert(network.ResNet(), images, sk.TAT(eta=0.9), shortcut_weight=0.8)
