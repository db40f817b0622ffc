"""The command line: parses, calls one function, prints."""

from __future__ import annotations

import click

from skipless import __version__

from .deploy import deploy
from .kernels import check, models, plot, solve
from .reproduce import report, reproduce
from .train import data, train


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if all went well, 2 for bad input, told in one line on stderr.

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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="skipless", message="%(prog)s %(version)s")
def skipless() -> None:
    """Very deep networks that train without shortcuts and without normalisation layers."""


for command in (solve, plot, check, train, report, models, data, reproduce, deploy):
    skipless.add_command(command)
