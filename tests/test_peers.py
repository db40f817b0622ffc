"""How `make bench-peers` counts, puts together and writes; the peers themselves run there only."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = ROOT / "benchmarks" / "peers.py"


def loaded():
    spec = importlib.util.spec_from_file_location("benchmark_of_peers", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


peers = loaded()

SOURCE = '''"""What it is.

In two paragraphs, with a # in it.
"""

# A comment.
import math  # counts


def f(x):
    """Docstring."""

    text = """neither
    blank"""
    return math.sqrt(x), text
'''


def test_blank_lines_comments_and_docstrings_are_not_lines_of_code() -> None:
    assert peers.lines_of_code(SOURCE) == 5
    assert peers.lines_of_code("") == 0


def test_a_period_costs_what_its_steps_add_up_to() -> None:
    kinds = {"plain": 1.0, "curvature": 3.5, "inverse": 11.0}
    for every, inverted in ((1, 50), (10, 200), (4, 4)):
        steps = [
            kinds["inverse" if not n % inverted else "plain" if n % every else "curvature"]
            for n in range(inverted)
        ]
        assert peers.period(kinds, every, inverted) == pytest.approx(sum(steps) / inverted)
    without = {"plain": 1.0, "curvature": 3.0}
    assert peers.period(without, 10, 200) == pytest.approx((3.0 + 9 * 1.0) / 10)


def test_steps_are_told_in_those_of_the_sgd_beside_them() -> None:
    times = {"sgd": {"step": 0.5}, "peer": {"plain": 1.0, "curvature": 1.0, "inverse": 1.0}}
    assert peers.over_sgd("peer", times) == ["2.00", "2.00"]


def test_a_peer_that_does_not_run_says_why(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "broken.py").write_text("import no_such_peer")
    (tmp_path / "whole.py").write_text("print('a warning'); print('[1, 2]')")
    monkeypatch.setattr(peers, "SCRIPTS", tmp_path)
    assert peers.run_script("whole.py") == [1, 2]
    with pytest.raises(peers.PeerError, match=r"broken\.py does not run.*No module named 'no_suc"):
        peers.run_script("broken.py")


def test_only_what_is_between_the_marks_is_written_anew() -> None:
    page = f"before\n{peers.START}\nold\n{peers.END}\nafter\n"
    assert peers.between_marks(page, "new\n") == page.replace("old", "new")
    with pytest.raises(ValueError, match="lacks the marks"):
        peers.between_marks("before", "new")


def test_the_page_has_the_marks_and_the_counts_of_the_files_as_they_are() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert peers.between_marks(page, "")
    counts = [
        peers.lines_of_code((peers.SCRIPTS / f"with_{name}.py").read_text(encoding="utf-8"))
        for name in ("dks", "skipless")
    ]
    assert re.search(rf"\| lines of code \| {counts[0]} \| {counts[1]} \|", page)
