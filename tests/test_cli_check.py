"""`skipless check`: tables, JSON and figure; 0 or 1. Mistakes are in test_mistakes.py."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from skipless import TAT, Graph, solve
from skipless.cli import main
from skipless.core.surprise import Surprise

FACTORIES = """
import torch
from torch import nn

def net(width=60):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                         nn.Conv2d(width, width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(9))

def made(width=60):
    model, example = net(width), torch.zeros(2, 3, 6, 6)
    model(example)
    return model, example

def plain():
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(50, 50), nn.ReLU())))

def bordered():  # a border of zeros: half of the locations have q = 0
    return nn.Sequential(nn.Conv1d(9, 60, 3), nn.ReLU(), nn.Conv1d(60, 60, 1, padding=3), nn.ReLU())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


SMALL = ("mlp:5", "--eta", "0.5", "--width", "80", "--seeds", "6")


def test_a_chain_agrees_and_the_table_and_the_figure_say_so(capsys, folder) -> None:
    code, out, err = run(capsys, *SMALL)
    assert (code, err) == (0, "")
    assert "width 80: 8 pairs, 6 draws of the weights" in out
    assert "11 nodes agree" in out
    assert out.endswith("check.png\n")
    assert (folder / "check.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_every_node_with_prediction_measurement_and_error(capsys, folder) -> None:
    code, out, _ = run(capsys, *SMALL, "--width", "40", "--json", "-o", "a.svg")
    answer = json.loads(out)
    assert (code, answer["agrees"], answer["figure"]) == (0, True, "a.svg")
    assert [w["width"] for w in answer["widths"]] == [40, 80]
    last = answer["widths"][1]["nodes"][-1]
    assert (last["node"], last["kind"]) == (10, "Activation")
    assert last["c_predicted"] == pytest.approx(0.5, abs=1e-9)
    assert abs(last["c"] - 0.5) < 0.05 + 4 * last["c_error"]
    low, high = last["c_band"]
    assert low < last["c_median"] < high
    text = (folder / "a.svg").read_text()
    assert "width 40" in text
    assert "predicted" in text


def test_a_disagreement_at_the_largest_width_returns_one_and_names_the_layers(capsys) -> None:
    arguments = ("factories:bordered", "--input", "9,8", "--seeds", "3")
    code, out, _ = run(capsys, *arguments)
    assert code == 1
    assert "1 of 5 nodes DISAGREE" in out
    assert "q is far too low" in out
    assert "✗" in out


def test_a_narrow_network_is_not_blamed_for_its_width(capsys) -> None:
    # DKS of SoftPlus with Gaussian weights: the paper's figure 4 shows how far it is off.
    narrow = ("mlp:20", "--method", "dks", "--zeta", "10", "--distribution", "gaussian")
    code, out, _ = run(capsys, *narrow, "--width", "16", "--seeds", "8")
    assert code == 0
    assert "agree, within the fluctuation of this width" in out
    assert "from a width of about" in out


def test_only_the_largest_width_decides(capsys, monkeypatch) -> None:
    from skipless.runs import check

    def narrowest_is_wrong(*arguments):
        checks = original(*arguments)
        narrowest = next(iter(checks))
        rows = checks[narrowest].comparisons
        wrong = [replace(row, surprise=Surprise(99.0, 0.0)) for row in rows]
        return checks | {narrowest: replace(checks[narrowest], comparisons=tuple(wrong))}

    original = check.check_widths
    monkeypatch.setattr(check, "check_widths", narrowest_is_wrong)
    assert run(capsys, *SMALL)[0] == 1
    code, out, _ = run(capsys, *SMALL, "--width", "20")
    assert code == 0
    assert out.count("DISAGREE") == 1


def test_a_users_own_model_is_converted_and_checked(capsys) -> None:
    code, out, err = run(capsys, "factories:made", "--eta", "0.3", "--seeds", "4")
    assert (code, err) == (0, "")
    assert "measured: 8 pairs" in out
    assert "nodes agree" in out


def test_a_factory_is_called_with_the_widths_if_it_takes_them(capsys) -> None:
    arguments = ("factories:made", "--eta", "0.3", "--width", "50", "--width", "20", "--seeds", "3")
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    assert [w["width"] for w in json.loads(out)["widths"]] == [20, 50]


def test_the_shape_of_the_input_may_be_given(capsys) -> None:
    arguments = ("factories:plain", "--input", "50", "--eta", "0.5", "--seeds", "3", "--json")
    code, out, _ = run(capsys, *arguments)
    nodes = json.loads(out)["widths"][0]["nodes"]
    assert code == 0
    assert [n["kind"] for n in nodes] == ["Input", *["Affine", "Activation"] * 4]
    assert nodes[-1]["c_predicted"] == pytest.approx(
        solve(Graph.chain(4), TAT(eta=0.5)).targets["mu0"], abs=1e-9
    )


def test_a_figure_that_cannot_be_written_is_refused_before_anything_is_measured(
    capsys, monkeypatch
) -> None:
    from skipless.runs import check

    monkeypatch.setattr(check, "check_widths", lambda *_: pytest.fail("measured"))
    code, _, err = run(capsys, *SMALL, "-o", "check.gif")
    assert code == 2
    assert "PNG or SVG" in err


def test_a_clamped_target_is_noted_on_stderr(capsys) -> None:
    code, _, err = run(capsys, "mlp:4", "--eta", "0.9", "--clamp", "--width", "60", "--seeds", "4")
    assert code == 0
    assert err.startswith("note: C_f(0) = 0.9 is out of reach")


def test_without_torch_the_extra_is_named(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "skipless.runs.check", raising=False)
    code, _, err = run(capsys, *SMALL)
    assert code == 2
    assert "[torch]'" in err
