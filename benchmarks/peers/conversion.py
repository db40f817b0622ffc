"""The same conversion with dks and with skipless: do the two agree? Prints JSON.

Both scripts are run as they stand. Then the weights that skipless drew are put into the network
that was converted with dks, and outputs are compared. Last, each library draws the weights of one
layer, which is to keep q values.
"""

# pyright: reportMissingImports=false

import json
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import skipless as sk

HERE = Path(__file__).parent


def widened(draw_: Callable[[Tensor], object]) -> float:
    """The q value behind a convolution that widens, of inputs of q value 1."""
    layer = nn.Conv2d(16, 64, 3, padding=1, bias=False)
    draw_(layer.weight)
    inputs = sk.torch.normalize_per_location(torch.randn(4, 16, 8, 8), homogeneous=None)
    with torch.no_grad():
        return float(layer(inputs).square().mean())


def main() -> None:
    torch.manual_seed(0)
    # What torch says of an indexing in dks.
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(HERE))
    ours = runpy.run_path(str(HERE / "with_skipless.py"))
    theirs = runpy.run_path(str(HERE / "with_dks.py"))
    found, phi, one = ours["model"].skipless_report.solution, theirs["phi"], torch.ones(1).double()
    scale, slope = phi(one).item(), (-phi(-one) / phi(one)).item()
    theirs["model"].load_state_dict(ours["model"].state_dict(), strict=False)
    with torch.no_grad():
        outputs = [own["model"](ours["images"]) for own in (theirs, ours)]
    told = {
        "slope": [slope, found.negative_slope],
        "scale": [scale, found.output_scale],
        "outputs": float((outputs[0] - outputs[1]).abs().max() / outputs[1].abs().max()),
        "q": [widened(theirs["scaled_uniform_orthogonal_"]), widened(sk.torch.delta_)],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
