"""Parts of a model converted in place of others: the rest stays, bit by bit."""

import math

import pytest
import torch
from torch import nn

from skipless import TAT
from skipless.core.maps import leaky_relu_c_map
from skipless.torch import ConversionReport, UnsupportedModelError, convert, initialize_


def stage(layers: int) -> nn.Sequential:
    each = (lambda: nn.Linear(16, 16), lambda: nn.BatchNorm1d(16), nn.ReLU)
    return nn.Sequential(*(make() for _ in range(layers) for make in each))


class Detector(nn.Module):
    """A pretrained stem, a backbone in stages, and a head that takes boxes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.backbone = nn.ModuleDict({f"layer{i}": stage(n) for i, n in ((1, 8), (2, 7))})
        self.head = nn.Linear(16 + 4, 3)

    def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.softmax(self.stem(x), 1)
        if x.sum() < 0.0:  # which torch.export cannot record
            x = -x
        for layer in self.backbone.values():
            x = layer(x)
        return {"scores": self.head(torch.cat([x, boxes], 1))}

    def best(self) -> str:
        return "mine"


ARGUMENTS = (torch.randn(4, 8), torch.randn(4, 4))


@pytest.mark.parametrize("example", [ARGUMENTS, dict(zip(("x", "boxes"), ARGUMENTS, strict=True))])
def test_parts_are_converted_and_the_rest_stays_bit_by_bit(example: object) -> None:
    torch.manual_seed(0)
    model = Detector().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    converted = convert(model, example, TAT(eta=0.9), parts=["backbone.layer*"])  # pyright: ignore
    assert isinstance(converted, Detector)
    assert converted.best() == "mine"
    after = converted.state_dict()
    rest = [name for name in before if not name.startswith("backbone")]
    assert rest
    assert all(torch.equal(before[name], after[name]) for name in rest)
    assert all(torch.equal(before[k], value) for k, value in model.state_dict().items())
    assert not any(isinstance(m, nn.BatchNorm1d | nn.ReLU) for m in converted.modules())
    assert converted(*ARGUMENTS)["scores"].shape == (4, 3)
    assert converted.training
    initialize_(converted)
    assert all(torch.equal(before[k], converted.state_dict()[k]) for k in rest)


def test_the_target_holds_for_all_parts_together() -> None:
    converted = convert(Detector(), ARGUMENTS, TAT(eta=0.9), parts=["backbone.layer*"])  # pyright: ignore
    report = converted.skipless_report
    assert list(report.parts) == ["backbone.layer1", "backbone.layer2"]  # pyright: ignore
    slope, c = report.solution.negative_slope, 0.0
    for _ in range(15):
        c = leaky_relu_c_map(c, slope or 0.0)
    assert math.isclose(c, 0.9, abs_tol=1e-9)
    text = str(report)
    assert text.index("== backbone.layer1") < text.index("== backbone.layer2")
    part = converted.get_submodule("backbone.layer1")
    assert isinstance(part.skipless_report, ConversionReport)


def test_wrong_parts_are_named() -> None:
    model = Detector()

    def parts(*patterns: str) -> None:
        convert(model, ARGUMENTS, parts=list(patterns))  # pyright: ignore

    with pytest.raises(
        ValueError,
        match=r"no module of Detector has a name like 'backbon.layers\*'.*'backbone.layer1'",
    ):
        parts("backbon.layers*")
    with pytest.raises(TypeError, match="parts must be a list of names"):
        convert(model, ARGUMENTS, parts="backbone")  # pyright: ignore
    with pytest.raises(ValueError, match="names no module"):
        parts()
    with pytest.raises(UnsupportedModelError, match="backbone does not run on the example"):
        parts("backbone")
    model.extra = nn.Linear(16, 3)
    with pytest.raises(UnsupportedModelError, match="extra does not run on the example"):
        parts("backbone.layer1", "extra")
    first = model.backbone["layer1"][0]  # pyright: ignore
    model.tied = nn.Linear(16, 16)
    model.tied.weight = first.weight
    with pytest.raises(UnsupportedModelError, match="shares parameters with the rest"):
        parts("backbone.layer*")


def test_a_part_is_called_with_one_tensor() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Detector()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, x[:, :4])["scores"]

    with pytest.raises(UnsupportedModelError, match=r"inner is called with \(Tensor, Tensor\)"):
        convert(Outer(), ARGUMENTS[0], parts=["inner"])
