"""The configuration of a run that was trained earlier, as its run.json tells it."""

from __future__ import annotations

import warnings

from skipless.models.names import parsed
from skipless.record import RUN, Record

from .configuration import Configuration, option_types


def stored_configuration(record: Record) -> Configuration:
    """What a run was started with, as far as this version has these options.

    >>> from pathlib import Path
    >>> stored_configuration(Record(Path(), {"configuration": {"model": "mlp:7"}}, ())).model
    'mlp:7'
    """
    path = record.folder / RUN
    stored = record.run.get("configuration")
    if not isinstance(stored, dict) or "model" not in stored:
        raise ValueError(
            f"{path} does not say how its network is made: it has no configuration with a model. "
            "Restore it, or name another run of skipless train."
        )
    known = {name: value for name, value in stored.items() if name in option_types()}
    if unknown := [name for name in stored if name not in known]:
        warnings.warn(
            f"{path} has options that are unknown here and left out: {', '.join(unknown)}. It was "
            "written by another version.",
            stacklevel=2,
        )
    try:
        configuration = Configuration.of(known)
        parsed(configuration.model)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error} Restore it, or name another run of skipless train."
        ) from None
    return configuration
