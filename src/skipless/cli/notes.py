"""Warnings of the library, told as notes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def notes() -> Iterator[None]:
    """Tell what the library warns of on stderr, one line each, when it happens."""

    def tell(message: Warning | str, *_: object, **__: object) -> None:
        click.echo(f"note: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for developers_only in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", developers_only)
        warnings.showwarning = tell
        yield
