"""What turns gradients into steps: torch optimisers that know nothing of this project.

They are imported on first use, so that the command line can show K-FAC's settings without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from skipless._deprecated import warn_renamed
from skipless._install import not_installed

from .settings import KFACSettings

if TYPE_CHECKING:
    from .choices import create_optimizer, optimizer_names
    from .kfac import KFAC
    from .lars import LARS
    from .muon import MuonAdamW

__all__ = ["KFAC", "LARS", "KFACSettings", "MuonAdamW", "create_optimizer", "optimizer_names"]

_MODULES = {
    "KFAC": "kfac",
    "LARS": "lars",
    "MuonAdamW": "muon",
    "create_optimizer": "choices",
    "optimizer_names": "choices",
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # or a type checker would take any name at all

    def __getattr__(name):
        if name in _MODULES:
            try:
                return getattr(import_module(f"skipless.optim.{_MODULES[name]}"), name)
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                raise ImportError(
                    not_installed(f"skipless.optim.{name}", "torch", "torch")
                ) from None
        if name == "PRESETS":
            warn_renamed("skipless.optim.PRESETS", 'KFAC(model, lr, preset="cifar10")')
            from .settings import PRESETS

            return PRESETS
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
