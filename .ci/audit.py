"""Known vulnerabilities of what is installed: `python .ci/audit.py SITE_PACKAGES`.

pip-audit finds no vulnerability in packages that its source of advisories does not know, and is
content where it can reach no source at all. So packages are counted: exit code 1 if one is
vulnerable, 2 if nothing could be audited, which is not an all-clear.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SOURCES = ("pypi", "osv")


def ask(source: str, packages: str) -> list[dict[str, Any]]:
    """What pip-audit says of each package; nothing if the source is out of reach."""
    command = [sys.executable, "-m", "pip_audit", "--path", packages, "--format", "json"]
    command += ["--vulnerability-service", source, "--progress-spinner", "off", "--timeout", "15"]
    answer = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(answer.stdout)["dependencies"]
    except (ValueError, LookupError):
        return []


def judge(found: Sequence[Mapping[str, Any]]) -> tuple[int, list[str]]:
    """The exit code, and the lines to print."""
    audited = [own for own in found if "skip_reason" not in own]
    lines = [
        f"{own['name']} {own['version']}: {flaw['id']}, mended in "
        f"{', '.join(flaw['fix_versions']) or 'no version yet'}"
        for own in audited
        for flaw in own["vulns"]
    ]
    if not audited:
        return 2, ["No advisory data is in reach: nothing was audited. Try where PyPI or OSV are."]
    lines.append(f"{len(audited)} of {len(found)} packages audited, {len(lines)} vulnerabilities.")
    return int(len(lines) > 1), lines


def main() -> int:
    for source in SOURCES:
        code, lines = judge(ask(source, sys.argv[1]))
        if code != 2:
            break
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
