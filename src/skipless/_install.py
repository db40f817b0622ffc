"""The command that adds what is missing to this installation of skipless."""

import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_BRING_TORCH = {"torch", "train", "private"}
_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def not_installed(what: str, package: str | None, extras: str) -> str:
    """The message that `what` needs `package`, and the command that installs `extras`."""
    return f"{what} needs {package}, which is not installed: {install_line(extras)}"


def install_line(extras: str) -> str:
    """The command that adds `extras`, separated by commas.

    A release from an index goes by its name. A copy of the repository goes by its folder, stays
    editable if it is, and gets the versions that it is tested with. Where PyTorch is missing, its
    build for CPUs comes with them, which is 5 GB smaller than that for CUDA.
    """
    try:
        own = distribution("skipless")
    except PackageNotFoundError:  # found by PYTHONPATH
        return f"pip install 'skipless[{extras}]'{_build_of_torch('pip', extras)}"
    origin = json.loads(own.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    folder = Path(url2pathname(urlsplit(url).path))
    options, target = "", f"skipless[{extras}]"
    if "vcs_info" in origin:
        target += f" @ {origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    elif "dir_info" not in origin:
        target += f" @ {url}" if url else ""
    elif folder.is_dir():
        place = "" if folder == Path.cwd() else f"{folder}/"
        if (folder / "constraints.txt").is_file():
            options = f"-c {shlex.quote(f'{place}constraints.txt')} "
        options += "-e " if origin["dir_info"].get("editable") else ""
        target = f"{place.rstrip('/') or '.'}[{extras}]"
    installer = (own.read_text("INSTALLER") or "").strip()
    return f"{_pip(installer)} {options}'{target}'{_build_of_torch(installer, extras)}"


def _build_of_torch(installer: str, extras: str) -> str:
    if find_spec("torch") or _BRING_TORCH.isdisjoint(extras.split(",")):
        return ""
    return " --torch-backend cpu" if installer == "uv" else f" --extra-index-url {_CPU_BUILDS}"


def _pip(installer: str) -> str:
    """`pip install`, or uv's, for the environment that runs, even if it is not activated."""
    active = Path(shutil.which("python") or "").parent == Path(sys.executable).parent
    if installer == "uv":
        return "uv pip install" + ("" if active else f" --python {shlex.quote(sys.executable)}")
    return "pip install" if active else f"{shlex.quote(sys.executable)} -m pip install"
