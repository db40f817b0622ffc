"""The command line: parses, calls one function, prints."""

import errno
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from skipless import __version__
from skipless._install import not_installed
from skipless.files import user_path

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


class UserPath(click.Path):
    """A path of the command line, where ~ is a home folder; options are those of `click.Path`."""

    def __init__(self, **kinds: bool) -> None:
        super().__init__(path_type=Path, **kinds)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path, if there can be one of that name."""
        text = str(value)
        try:
            text.encode()
            path = user_path(text)
            path.exists()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8. Name another one.", param, ctx)
        except (ValueError, OSError) as error:
            self.fail(getattr(error, "strerror", None) or str(error), param, ctx)
        if not text.strip():
            self.fail(f"expected a path, got {text!r}.", param, ctx)
        super().convert(str(path), param, ctx)
        return path


class Text(click.ParamType):
    """Text of the command line that says something."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, if it is any."""
        if not value.strip():
            self.fail(f"expected a value, got {value!r}.", param, ctx)
        return value


def output_option(help_: str, default: str | None = None, **kinds: bool) -> Decorator:
    """The option --output, a path; `kinds` are those of `click.Path`."""
    return click.option("--output", "-o", type=UserPath(**kinds), default=default, help=help_)


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
from .tune import tune  # noqa: E402


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="skipless", message="%(prog)s %(version)s")
def skipless() -> None:
    """Very deep networks that train without shortcuts and without normalisation layers.

    \b
    Examples:
      skipless solve mlp:100
      skipless train --model resnet50 --method tat --data cifar10
    """  # noqa: D301


for command in (solve, plot, check, tune, train, report, models, data, reproduce, deploy):
    skipless.add_command(command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 0, or 2 after one line on stderr about bad input.

    A check that finds a disagreement, and a run that diverges, return 1. An error that no input
    should cause returns 3, and leaves its traceback in a file.
    """
    try:
        return skipless.main(arguments, prog_name="skipless", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as help_:
        click.echo(help_.format_message())
    except click.ClickException as error:
        return _fail(error.format_message())
    except click.Abort:
        return _fail("stopped")
    except SystemExit as error:
        return _fail(f"The network's own code called sys.exit({error.code}). Remove that call.")
    except Exception as error:
        if (message := _describe(error)) is None:
            return _fail(_report_bug(error), 3)
        return _fail(message, getattr(error, "exit_code", 2))
    return 0


def _fail(message: str, code: int = 2) -> int:
    click.echo(f"skipless: {' '.join(message.split())}", err=True)
    return code


def _describe(error: Exception) -> str | None:
    """What to tell the user about an error that input may cause; None for any other."""
    words = str(error)
    match error:
        case RecursionError():
            return f"The input is nested too deeply ({words}). Simplify it."
        case MemoryError() | RuntimeError() if _is_out_of_memory(error):
            return (
                f"Out of memory ({' '.join(words.split())[:200]}). Use a smaller network, smaller "
                "inputs or batches, or more memory."
            )
        case OSError(errno=int(), strerror=str(reason), filename=place) if place is not None:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Free some space, or name another place." if full else "Name another one."
            return f"{reason}: {os.fsdecode(place)!r}. {remedy}"
        case ValueError() | ArithmeticError() | OSError() | ImportError():
            return words
    return None


def _is_out_of_memory(error: Exception) -> bool:
    # On CPUs, PyTorch raises a bare RuntimeError; sizes that overflow do not get that far.
    signs = ("memory", "Storage size calculation overflowed", "overflow when unpacking long")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


def _report_bug(error: Exception) -> str:
    """The message for an error that no input should cause; its traceback goes into a file."""
    kept = ""
    with suppress(OSError):
        descriptor, name = tempfile.mkstemp(prefix="skipless-", suffix=".log")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
        kept = f" The traceback is in {name}."
    return f"This is a bug in skipless: {type(error).__name__}: {error}.{kept} Please report it."
