"""Old names for Flax NNX, which are in `skipless.jax` now. They work for one more release."""

from typing import Any

import skipless.jax
from skipless._deprecated import renamed_names, warn_renamed

_NAMES = ("Constant", "ConversionReport", "Identity", "ShapedActivation", "TReLU")
__getattr__ = renamed_names(__name__, {name: f"skipless.jax.{name}" for name in _NAMES})


def convert(*args: Any, **options: Any) -> tuple[Any, Any]:
    """The converted model and its report, as before."""
    warn_renamed(f"{__name__}.convert", "skipless.jax.convert, whose model has a skipless_report")
    model = skipless.jax.convert(*args, **options)
    return model, model.skipless_report
