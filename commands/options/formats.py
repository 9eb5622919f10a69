"""The option for the format of a command's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])
DATA_FORMATS = ("text", "json", "yaml")


def output_option(*formats: str) -> Callable[[_Command], _Command]:
    """Add the option `output`. Defaults to `DATA_FORMATS`; the first format is the default."""
    choices = formats or DATA_FORMATS
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )
