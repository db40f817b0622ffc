"""A converted model in a file: rebuilt in a new process, or refused in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import skipless as sk

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))

FACTORY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width: int = 5, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.GELU())
        self.second, self.act = nn.Linear(width, width), nn.GELU()
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x + self.act(self.second(x))
        return self.head(x)
"""
_names: dict[str, Any] = {"__name__": __name__}
exec(FACTORY, _names)
Net: Callable[..., nn.Module] = _names["Net"]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    made = sk.torch.convert(Net(), X, sk.DKS(1.2), activation="gelu", shortcut_weight=0.6)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


@pytest.fixture(scope="module")
def file(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    sk.torch.save(model, path)
    return path


def edited(file: Path, folder: Path, **changes: object) -> Path:
    """A copy of `file` that says something else of its conversion."""
    with safe_open(file, "pt") as old:
        text = json.loads(old.metadata()["skipless"]) | changes
        state = {name: old.get_tensor(name) for name in old.keys()}  # noqa: SIM118
    save_file(state, folder / "edited.safetensors", {"skipless": json.dumps(text)})
    return folder / "edited.safetensors"


def test_a_new_process_computes_the_same(model: nn.Module, file: Path, tmp_path: Path) -> None:
    script = f"""{FACTORY}
import skipless as sk
x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
model = sk.torch.load({str(file)!r}, Net)
assert not model.training
torch.save((model(x).detach(), dict(model.state_dict())), {str(tmp_path / "found.pt")!r})
"""
    source = str(Path(sk.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment)
    outputs, state = torch.load(tmp_path / "found.pt", weights_only=True)
    assert torch.equal(outputs, model(X))
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor), name


def test_a_cast_model_with_tied_weights_keeps_both(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
        net[2].weight = net[0].weight
        return net

    model = sk.torch.convert(tied(), X, sk.EOC()).bfloat16()
    sk.torch.save(model, tmp_path / "tied.safetensors")
    again = sk.torch.load(tmp_path / "tied.safetensors", tied)
    assert again.get_parameter("0.weight") is again.get_parameter("2.weight")
    assert again.get_parameter("0.weight").dtype == torch.bfloat16
    assert torch.equal(again(X.bfloat16()), model(X.bfloat16()))


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (lambda: Net(classes=7), r"head.weight is \(3, 5\) in the file, \(7, 5\) in the model"),
        (lambda: nn.Sequential(*(nn.Linear(4, 4), nn.GELU()) * 2), "is in the model alone"),
        (lambda: nn.Sequential(nn.Linear(4, 2)), "no model of original_factory's: DKS needs"),
        (lambda: nn.Sequential(nn.Linear(5, 2), nn.GELU()), "torch.export failed"),
    ],
)
def test_another_original_is_refused(file: Path, factory, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        sk.torch.load(file, factory)
    assert len(str(caught.value).splitlines()) == 1


def test_equal_shapes_with_another_graph_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="their graphs differ"):
        sk.torch.load(edited(file, tmp_path, shortcut_weight=0.5), Net)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "its format is 2, and this version reads 1"),
        ({"method": "os.system"}, "os.system"),
        ({"targets": {"eta": [[1]]}}, "damaged"),
        ({"shape": [2**40, 2**40]}, "an example cannot have the shape"),
        ({"shape": []}, "an example cannot have the shape"),
        ({"dtype": "load"}, "there is no type 'load'"),
        ({"dtype": "__class__"}, "there is no type"),
        ({"clamp": "yes"}, "clamp cannot be 'yes'"),
        ({"nodes": 3}, "nodes cannot be 3"),
        ({"unheard": 3}, "has no 'unheard'"),
    ],
)
def test_what_a_file_cannot_say_is_refused_in_one_line(
    file: Path, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        sk.torch.load(edited(file, tmp_path, **changes), Net)
    assert len(str(caught.value).splitlines()) == 1


def test_damaged_files_are_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for text in (b"", content[:-1], content[:100], b"\xff" * 64, b"\x00" * 4096):
        damaged.write_bytes(text)
        with pytest.raises(ValueError, match="is damaged, or no file of") as caught:
            sk.torch.load(damaged, Net)
        assert len(str(caught.value).splitlines()) == 1
    save_file({"a": torch.zeros(2)}, damaged)
    with pytest.raises(ValueError, match="it says nothing of a conversion"):
        sk.torch.load(damaged, Net)
    save_file({"a": torch.zeros(2)}, damaged, {"skipless": "[" * 100_000})
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        sk.torch.load(damaged, Net)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        sk.torch.load(tmp_path / "pipe", Net)


def test_what_cannot_be_described_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Expected a model that convert returned, got Linear"):
        sk.torch.save(nn.Linear(2, 2), tmp_path / "x")
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model = sk.torch.convert(net, X, sk.EOC(), activation="relu", function=torch.relu)
    with pytest.raises(ValueError, match="activation of your own"):
        sk.torch.save(model, tmp_path / "x")
    assert not list(tmp_path.iterdir())
