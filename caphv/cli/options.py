"""Options that several commands have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def which_sandbox(command: _Command) -> _Command:
    """Add the options that tell which sandbox is meant: `name` and `folder`."""
    command = click.option(
        "--dir", "folder", type=click.Path(path_type=Path), help="Folder of the sandbox, in place of a name."
    )(command)
    return click.option(
        "--name",
        metavar="NAME",
        help="Which sandbox, when there are several.  [default: default]",
        callback=_check_name,
    )(command)


def _check_name(_ctx: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    if name is not None and not (name.replace("-", "").isalnum() and name.isascii() and name[0].isalnum()):
        raise click.BadParameter(f"{name!r} is not made of letters, digits and dashes; it becomes the name of a folder")
    return name
