"""skipless deploy: from a run, a name or a factory to a file, and a report that can be trusted."""

import json
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import fx, nn

import onnx
from skipless.cli import main
from skipless.record import Record

PLAIN = {"Conv", "LeakyRelu", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm"}


def deploy(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["deploy", *arguments])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    options = ["--model", "mlp:3", "--method", "eoc", "--width", "24", "--epochs", "3"]
    assert main(["train", *options, "--lr", "0.1", "--average", "0.9", "-o", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def of_run(run: Path, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("deployed")
    assert main(["deploy", str(run), "--seconds", "0", "-o", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory) -> Path:
    """A Wide ResNet of 16 channels on images of 16 x 16, of which every stage halves the sides."""
    output = tmp_path_factory.mktemp("deployed")
    options = ["--method", "tat", "--eta", "0.6", "--width", "1", "--input", "3,16,16"]
    assert main(["deploy", "wide_resnet10", *options, "--seconds", "0", "-o", str(output)]) == 0
    return output


def report(output: Path) -> dict:
    return json.loads((output / "report.json").read_text(encoding="utf-8"))


def test_a_vanilla_network_becomes_nothing_but_plain_operators(vanilla: Path) -> None:
    model = onnx.load(vanilla / "model.onnx")
    assert {node.op_type for node in model.graph.node} <= PLAIN
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert report(vanilla)["remaining"] == []


def test_its_peak_memory_and_that_of_the_batch_norm_network_are_those_by_hand(
    vanilla: Path,
) -> None:
    # 16 channels of 16 x 16: a layer reads and writes one such map each. With shortcuts, the
    # block's input waits besides: three maps. In later stages all maps are smaller.
    one_map = 16 * 16 * 16 * 4
    figures = report(vanilla)["figures"]
    for kind, maps in (("original", 2), ("folded", 2), ("against", 3)):
        assert figures[kind]["peak_memory"] == maps * one_map, kind
        assert figures[kind]["measured_peak_memory"] == maps * one_map, kind
        # The baseline has three blocks, each with a sum at its end.
        assert figures[kind]["joins"] == (3 if kind == "against" else 0), kind


def test_a_description_names_options_of_value_zero() -> None:
    from skipless.runs.candidates import load_candidate

    given = {"width": 1.0, "shortcut_weight": 0.0, "method": "eoc", "clamp": False}
    found = load_candidate("wide_resnet10", given, (3, 16, 16))
    words = "wide_resnet10 (width 1, shortcut weight 0, method eoc), random weights"
    assert found.description == words


def test_its_multiply_adds_and_parameters_are_those_by_hand(vanilla: Path) -> None:
    from skipless.models import create_model

    # Locations, inputs of an output, outputs; the projections are the shortcuts' own.
    stem, fc = (256, 27, 16), (1, 64, 10)
    blocks = [(256, 144, 16)] * 2, [(64, 144, 32), (64, 288, 32)], [(16, 288, 64), (16, 576, 64)]
    projections = [(64, 16, 32), (16, 32, 64)]
    layers = [stem, fc, *(layer for block in blocks for layer in block)]
    figures = report(vanilla)["figures"]
    products = sum(math.prod(layer) for layer in layers)
    for kind in ("original", "folded"):
        assert figures[kind]["multiply_adds"] == products
    more = sum(math.prod(layer) for layer in projections)
    assert figures["against"]["multiply_adds"] == products + more
    weights = sum((inputs + 1) * outputs for _, inputs, outputs in layers)  # with biases
    assert figures["folded"]["parameters"] == figures["original"]["parameters"] == weights
    # Each BatchNorm in the middle of a block leaves a bias instead of a scale and a shift.
    other = create_model("wide_resnet10", num_classes=10, width=1, img_size=16, norm="batch")
    own = sum(p.numel() for p in other.parameters())
    assert figures["against"]["parameters"] == own - (16 + 32 + 64)


def test_the_difference_is_the_largest_between_the_file_and_the_network(vanilla: Path) -> None:
    from skipless.onnx.run import open_session, run_session
    from skipless.runs.candidates import load_candidate

    options = {"method": "tat", "eta": 0.6, "width": 1.0}
    made = load_candidate("wide_resnet10", options, (3, 16, 16))
    batch = made.examples(1)
    with torch.no_grad():
        wanted = made.model.eval()(batch).numpy()
    off = np.abs(run_session(open_session(vanilla / "model.onnx"), batch.numpy()) - wanted)
    assert report(vanilla)["largest_output"] == pytest.approx(np.abs(wanted).max(), rel=1e-6)
    assert report(vanilla)["difference"] == pytest.approx(off.max(), rel=1e-3)


def test_the_report_has_every_figure_and_both_pages(vanilla: Path) -> None:
    figures = report(vanilla)["figures"]
    for kind in ("original", "folded", "against"):
        assert figures[kind]["multiply_adds"] > 0
        assert figures[kind]["latency"]["1"] > 0.0
    assert len({own["latency"]["1"] for own in figures.values()}) == 3  # each has its own
    assert figures["folded"]["disk"] == (vanilla / "model.onnx").stat().st_size
    # The stem, 6 in blocks, and 2 projections, which the vanilla network does not have.
    assert figures["folded"]["operators"]["Conv"] == 7
    assert figures["against"]["operators"]["Conv"] == 9
    for name in ("report.md", "report.html"):
        page = (vanilla / name).read_text(encoding="utf-8")
        assert "33.3% less" in page
        assert "INT8 is left out: no data given; use --data" in page
    assert not (vanilla / "model.int8.onnx").exists()


def test_the_file_of_a_run_has_the_accuracy_of_the_run(run: Path, of_run: Path) -> None:
    _, accuracies = Record.read(run).series("validation", "top1")
    found = report(of_run)["accuracy"]
    assert accuracies[-1] > 0.6
    assert found["folded"]["top1"] == pytest.approx(accuracies[-1], abs=1e-9)
    assert found["folded"]["samples"] == 360


def test_the_int8_file_is_a_quantised_one_whose_accuracy_is_reported(of_run: Path) -> None:
    from skipless.torch import normalize_per_sample
    from skipless.train.data import load_data

    path = of_run / "model.int8.onnx"
    weights = {tensor.data_type for tensor in onnx.load(path).graph.initializer if tensor.dims}
    assert onnx.TensorProto.UINT8 in weights
    assert onnx.TensorProto.FLOAT not in {
        t.data_type for t in onnx.load(path).graph.initializer if len(t.dims) > 1
    }
    data = load_data("digits").validation
    images, labels = data.load(range(len(data)), None)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: normalize_per_sample(images).numpy()}
    right = np.asarray(session.run(None, feed)[0]).argmax(1) == labels.numpy()
    found = report(of_run)["accuracy"]
    assert found["int8"]["top1"] == pytest.approx(right.mean())
    assert found["int8"]["top1"] > found["folded"]["top1"] - 0.05


@pytest.mark.parametrize(
    ("place", "average", "step", "file"),
    [
        ("", False, 33, "model"),
        ("", True, 33, "average"),
        ("run.json", False, 33, "model"),
        ("checkpoints", False, 33, "model"),
        ("checkpoints", True, 33, "average"),
        ("checkpoints/step-00000011", False, 11, "model"),
        ("checkpoints/step-00000011/state.pt", False, 11, "model"),
        ("checkpoints/step-00000011/model.safetensors", False, 11, "model"),
        ("checkpoints/step-00000011/average.safetensors", False, 11, "average"),
        ("checkpoints/step-00000011/average.safetensors", True, 11, "average"),
    ],
)
def test_runs_checkpoints_and_files_of_weights_can_be_named(
    run: Path, place: str, average: bool, step: int, file: str
) -> None:
    from safetensors.torch import load_file

    from skipless.runs.candidates import load_candidate

    found = load_candidate(str(run / place), {}, average=average)
    wanted = load_file(run / "checkpoints" / f"step-{step:08d}" / f"{file}.safetensors")
    assert found.model.state_dict().keys() == wanted.keys()
    for name, tensor in found.model.state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0.0, atol=0.0)
    assert ("averaged weights" in found.description) == (file == "average")
    assert found.description.endswith(f"step {step}")


def test_a_run_whose_data_is_missing_needs_only_the_shape_of_a_sample(run: Path) -> None:
    from skipless.runs.candidates import Missing, load_candidate

    gone = {"data_folder": "nowhere"}  # which digits do not take
    with pytest.raises(ValueError, match="to do without data, such as --input 3,32,32"):
        load_candidate(str(run), gone)
    without = load_candidate(str(run), gone, (1, 8, 8))
    assert isinstance(without.data, Missing)
    assert "the run's data cannot be loaded" in str(without.data)
    assert without.model(without.examples(2)).shape == (2, 10)


def own() -> nn.Module:
    """With a BatchNorm that no layer can take in."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2)
    )


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2.0 * x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class Undecided(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) if input.sum() > 0.0 else input


def recurrent() -> nn.Module:
    return Recurrent()


def one_sample() -> tuple[nn.Module, torch.Tensor]:
    return nn.Conv2d(3, 4, 3), torch.zeros(3, 8, 8)


def pair() -> nn.Module:
    return Pair()


def undecided() -> nn.Module:
    return nn.Sequential(Undecided(8, 8))


def double() -> nn.Module:
    return nn.Linear(8, 2).double()


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(8, 2))  # pyright: ignore[reportReturnType]


def scores() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


class Unlike(nn.Module):
    """Computes one thing in evaluation mode, and another when it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (1.0 if isinstance(x, fx.Proxy) else 2.0)


def unlike() -> nn.Module:
    return Unlike()


def test_a_file_that_fails_verification_does_not_replace_a_good_one(
    capsys, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "own_networks", sys.modules[__name__])
    options = ("--input", "8", "--seconds", "0", "-o", str(tmp_path))
    (tmp_path / "model.onnx").write_bytes(b"a good one")
    code, _, err = deploy(capsys, "own_networks:unlike", *options)
    assert code == 2
    assert "model.onnx differs from Unlike by" in err
    assert (tmp_path / "model.onnx").read_bytes() == b"a good one"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_report_says_how_an_image_becomes_what_the_network_reads(of_run: Path) -> None:
    from skipless.train.arrays import ArraySplit
    from skipless.train.data import load_data

    split = load_data("digits").train
    assert isinstance(split, ArraySplit)
    shown = report(of_run)["preparation"]
    assert f"minus the mean {float(split.mean):.6g}, divided by {float(split.std):.6g}" in shown
    assert shown.endswith("then each image divided by its root mean square")
    assert "root mean square" in (of_run / "report.md").read_text(encoding="utf-8")


def test_a_factory_is_deployed_without_a_baseline_and_prints_json(
    capsys, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "own_networks", sys.modules[__name__])
    options = ("--input", "3,8,8", "--seconds", "0", "--batch-size", "2", "-o", str(tmp_path))
    code, out, err = deploy(capsys, "own_networks:own", *options, "--json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert printed == report(tmp_path)
    assert "against" not in printed["figures"]
    assert "--against" in printed["missing"]["against"]
    assert printed["remaining"] == ["2 stays a BatchNorm: no layer comes right before it"]
    # Two samples: the maps of the convolution, and what it reads.
    assert printed["figures"]["folded"]["peak_memory"] == 2 * 4 * (3 * 64 + 4 * 36)


def test_the_report_names_the_operation_whose_shape_is_unknown(
    capsys, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "own_networks", sys.modules[__name__])
    options = ("--input", "5,8", "--seconds", "0", "-o", str(tmp_path))
    code, out, err = deploy(capsys, "own_networks:recurrent", *options)
    assert (code, err) == (0, "")
    found = report(tmp_path)["figures"]["folded"]
    # PyTorch computes what it reshapes to, which ONNX does not follow.
    assert set(found["unknown"]) == {"peak_memory"}
    assert found["unknown"]["peak_memory"].startswith("Reshape node_")
    assert (found["peak_memory"], found["measured_peak_memory"]) == (None, None)
    # Of each of 5 steps: 4 gates of 6 units, which read 8 numbers and 6 states; then 2 outputs.
    assert found["multiply_adds"] == 5 * 4 * 6 * (8 + 6) + 6 * 2
    assert found["operators"]["LSTM"] == 1
    assert found["latency"]["1"] > 0.0
    assert f"unknown: {found['unknown']['peak_memory']}" in out
    assert "The computed peak of activation memory matches" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{weights}", "--average"), "which is not averaged. Drop one"),
        (("own_networks:one_sample",), "(3, 8, 8) it raises RuntimeError"),
        (("own_networks:undecided", "--input", "8"), "torch.fx failed on "),
        (("own_networks:scripted", "--input", "8"), "torch.fx failed on "),
        (
            ("own_networks:scores", "--data", "digits"),
            "one output for each of the 10 classes of digits, got the shape (3,)",
        ),
    ],
)
def test_a_mistake_of_a_network_ends_with_one_line_on_stderr_and_code_two(
    arguments, message, run: Path, capsys, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "own_networks", sys.modules[__name__])
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    weights = run / "checkpoints" / "step-00000011" / "model.safetensors"
    code, out, err = deploy(capsys, *(a.format(weights=weights) for a in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("skipless: ")
    assert err.count("\n") == 1
    assert message in err


def test_without_onnxruntime_the_extra_is_named(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = deploy(capsys, "mlp:20", "-o", str(tmp_path / "new"))
    assert code == 2
    assert "needs onnxruntime" in err
    assert "[deploy]'" in err
    assert not (tmp_path / "new").exists()
