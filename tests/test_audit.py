"""`make audit` never takes what it could not look up for safe."""

import runpy
from pathlib import Path

judge = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "audit.py"))["judge"]

UNKNOWN = {"name": "ours", "skip_reason": "not found"}
SAFE = {"name": "numpy", "version": "2.4.6", "vulns": []}
FLAWED = {"name": "pillow", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}


def test_without_advisories_there_is_no_all_clear() -> None:
    for found in ([], [UNKNOWN]):
        code, lines = judge(found)
        assert code == 2
        assert "nothing was audited" in lines[0]


def test_vulnerabilities_are_named_with_what_mends_them() -> None:
    assert judge([SAFE, UNKNOWN]) == (0, ["1 of 2 packages audited, 0 vulnerabilities."])
    code, lines = judge([SAFE, FLAWED])
    assert code == 1
    assert lines == [
        "pillow 1: PYSEC-1, mended in 2",
        "2 of 2 packages audited, 1 vulnerabilities.",
    ]
