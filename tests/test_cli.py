"""The command line: answers. Mistakes are in test_mistakes.py."""

import json
import math

import pytest

from skipless import TAT, Graph, solve
from skipless.cli import main, skipless


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_solve_prints_json_with_the_promised_keys(capsys) -> None:
    code, out, err = run(capsys, "solve", "mlp:100", "--eta", "0.95", "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer) == [
        "model",
        "method",
        "activation",
        "depth",
        "note",
        "parameters",
        "targets",
        "residuals",
    ]
    assert (answer["model"], answer["method"]) == ("mlp:100", "tat")
    assert (answer["activation"], answer["depth"]) == ("leaky_relu", 100)
    expected = solve(Graph.chain(100), TAT(eta=0.95))
    assert answer["parameters"] == expected.parameters
    assert answer["parameters"]["input_scale"] is None
    assert answer["targets"]["mu0"] == 0.95
    assert answer["targets"].keys() == answer["residuals"].keys()


def test_a_network_by_name_is_solved_for_as_create_model_solves_for_it(capsys) -> None:
    from skipless.models import create_model

    for options, weight in (((), 0.0), (("--shortcut-weight", "0.5"), 0.5)):
        code, out, _ = run(capsys, "solve", "resnet34", *options, "--json")
        made = create_model("resnet34", img_size=32, width=0.25, shortcut_weight=weight)
        assert code == 0
        assert made.shaping is not None
        assert json.loads(out)["parameters"] == made.shaping.solution.parameters


def test_a_factory_is_solved_for_as_convert_solves_for_it(capsys) -> None:
    import torch

    import user_models
    from skipless.torch import convert

    _, out, _ = run(
        capsys, "solve", "user_models:vgg", "--input", "3,8,8", "--eta", "0.3", "--json"
    )
    converted = convert(user_models.vgg(), torch.zeros(2, 3, 8, 8), TAT(eta=0.3))
    assert json.loads(out)["parameters"] == converted.skipless_report.solution.parameters


def test_solve_prints_a_table_for_people(capsys) -> None:
    code, out, _ = run(capsys, "solve", "mlp:50", "--method", "DKS", "--activation", "tanh")
    assert code == 0
    assert "mlp:50, DKS with tanh" in out
    assert "input_shift" in out
    assert "negative_slope" not in out
    assert "C'(1)" in out


def test_eoc_uses_relu_by_default(capsys) -> None:
    _, out, _ = run(capsys, "solve", "mlp:9", "--method", "eoc", "--json")
    answer = json.loads(out)
    assert answer["activation"] == "relu"
    assert answer["parameters"]["sigma_w"] == pytest.approx(math.sqrt(2))
    _, out, _ = run(
        capsys,
        *("solve", "mlp:9", "--method", "eoc", "--activation", "leaky_relu"),
        *("--negative-slope", "0.5", "--json"),
    )
    assert json.loads(out)["parameters"]["negative_slope"] == 0.5


def test_a_clamped_target_is_noted_on_stderr_and_the_answer_stays_json(capsys) -> None:
    code, out, err = run(capsys, "solve", "mlp:10", "--eta", "0.9", "--clamp", "--json")
    assert code == 0
    assert json.loads(out)["parameters"]["negative_slope"] == 0.0
    assert err.startswith("note: C_f(0) = 0.9 is out of reach; using 0.8715")


def test_every_command_explains_itself_with_examples(capsys) -> None:
    for arguments in ((), ("--help",), ("-h",)):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert "Usage: skipless [OPTIONS] COMMAND" in out
    for command in skipless.commands:
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"\n  Examples:\n    skipless {command}" in out, command
    assert "[default: 0.05]" in run(capsys, "check", "--help")[1]


def test_the_version_is_printed(capsys) -> None:
    from skipless import __version__

    assert run(capsys, "--version") == (0, f"skipless {__version__}\n", "")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot_writes_the_figure_and_prints_where(suffix, tmp_path, capsys) -> None:
    target = tmp_path / f"maps.{suffix}"
    code, out, err = run(capsys, "plot", "mlp:20", "--eta", "0.8", "-o", str(target))
    assert (code, out.strip(), err) == (0, str(target), "")
    head = target.read_bytes()[:400]
    assert head.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in head or b"<?xml" in head


def test_plot_draws_the_given_methods_and_activation(tmp_path, capsys) -> None:
    target = tmp_path / "maps.svg"
    arguments = ("plot", "mlp:20", "--method", "tat", "--method", "dks", "--activation", "tanh")
    assert run(capsys, *arguments, "-o", str(target))[0] == 0
    text = target.read_text()
    assert "TAT tanh τ=0.3" in text
    assert "DKS tanh ζ=1.5" in text
    assert "EOC" not in text


def test_a_figure_is_labelled_with_what_was_met(tmp_path, capsys) -> None:
    target = tmp_path / "maps.svg"
    run(capsys, "plot", "mlp:30", "--method", "tat", "--activation", "LeakyReLU", "-o", str(target))
    assert "TAT leaky_relu η=0.9" in target.read_text()
    run(capsys, "plot", "mlp:10", "--method", "tat", "--eta", "0.9", "--clamp", "-o", str(target))
    assert "TAT leaky_relu η=0.8715" in target.read_text()


def test_plotting_without_matplotlib_says_how_to_get_it(monkeypatch, tmp_path, capsys) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run(capsys, "plot", "mlp:20", "--method", "tat", "-o", str(tmp_path / "a.png"))
    assert code == 2
    assert "[plot]'" in err
