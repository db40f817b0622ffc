"""`skipless models`: the networks that have names."""

from __future__ import annotations

import click


@click.command()
@click.argument("pattern", default="*")
def models(pattern: str) -> None:
    """List the networks that `skipless train` knows, or those that match PATTERN.

    Of wide_resnet and mlp there are more: wide_resnet of every depth 6n + 4, mlp of every depth.

    \b
    Examples:
      skipless models
      skipless models 'resnet*'
    """  # noqa: D301
    try:
        from skipless.models import list_models
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"models needs {missing.name}, which is not installed: pip install 'skipless[torch]'"
        ) from None
    found = list_models(pattern)
    if not found:
        raise click.UsageError(f"No network matches {pattern!r}. See all of them: skipless models")
    click.echo("\n".join(found))
