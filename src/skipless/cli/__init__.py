"""The command line: parses, calls one function, prints."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from skipless import __version__
from skipless._install import not_installed

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print the library's warnings on stderr as they happen, one line each."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        click.echo(f"note: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for developers_only in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", developers_only)
        warnings.showwarning = show
        yield


def output_option(help_: str, default: str | None = None, **kinds: bool) -> Decorator:
    """The option --output, a path; `kinds` are those of `click.Path`."""
    kind = click.Path(path_type=Path, **kinds)
    return click.option("--output", "-o", type=kind, default=default, help=help_)


@contextmanager
def requires(command: str, extras: str) -> Iterator[None]:
    """Where an import fails, name the extras that bring what `command` needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed(command, error.name, extras)) from None


# The commands use the functions above.
from .deploy import deploy  # noqa: E402
from .kernels import check, models, plot, solve  # noqa: E402
from .reproduce import report, reproduce  # noqa: E402
from .train import data, train  # noqa: E402


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="skipless", message="%(prog)s %(version)s")
def skipless() -> None:
    """Very deep networks that train without shortcuts and without normalisation layers.

    \b
    Examples:
      skipless solve mlp:100
      skipless train --model resnet50 --method tat --data cifar10
    """  # noqa: D301


for command in (solve, plot, check, train, report, models, data, reproduce, deploy):
    skipless.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 0, or 2 after one line on stderr about bad input.

    A check that finds a disagreement, and a run that diverges, return 1.
    """
    try:
        return skipless.main(arguments, prog_name="skipless", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as help_:
        click.echo(help_.format_message())
    except click.ClickException as error:
        return _fail(error.format_message())
    except (ValueError, ArithmeticError, OSError, ImportError) as error:
        return _fail(str(error), getattr(error, "exit_code", 2))
    except click.Abort:
        return _fail("stopped")
    return 0


def _fail(message: str, code: int = 2) -> int:
    click.echo(f"skipless: {' '.join(message.split())}", err=True)
    return code
