"""Read the passphrase of a backup from a file, the environment or a prompt, never an option."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from commands.errors import InputError

_Command = TypeVar("_Command", bound=Callable[..., Any])
VARIABLE = "CAPHV_BACKUP_PASSPHRASE"
_MAX_CHARACTERS = 4096


def passphrase_options(command: _Command) -> _Command:
    """Add the option `passphrase_file`."""
    return click.option(
        "--passphrase-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"File with the passphrase.  [default: {VARIABLE}, else a prompt]",
    )(command)


def read_passphrase(file: Path | None, *, new: bool = False) -> str:
    """Return the passphrase; a new one is asked for twice.

    Raises `InputError`, `click.UsageError`, `click.Abort`.
    """
    from operations.backup.sealing import MIN_PASSPHRASE_LENGTH

    # A command line is visible to other users of the machine, and stays in the shell's history.
    if file:
        passphrase = _single_line(_read_file(file), f"--passphrase-file {file}")
    elif variable := os.environ.get(VARIABLE):
        passphrase = _single_line(variable, f"variable {VARIABLE}")
    else:
        if not sys.stdin.isatty():
            other = ", or --unencrypted" if new else ""
            raise click.UsageError(
                f"the backup needs a passphrase: use --passphrase-file or {VARIABLE}{other}"
            )
        # Standard output may be data, or the manifests of pools.
        passphrase = str(
            click.prompt(
                "Passphrase of the backup", hide_input=True, confirmation_prompt=new, err=True
            )
        )
    if new and len(passphrase) < MIN_PASSPHRASE_LENGTH:
        raise InputError(
            f"the passphrase has {len(passphrase)} characters: use at least {MIN_PASSPHRASE_LENGTH}"
        )
    return passphrase


def _read_file(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as source:
            return source.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InputError(f"--passphrase-file {file}: {reason}") from None


def _single_line(text: str, source: str) -> str:
    """Return a passphrase without the end of its line.

    A file that an editor wrote, a variable of a Pod and a prompt then give the same passphrase, so
    that each opens what another one has sealed. Raises `InputError` for other texts than one line.
    """
    passphrase = text.strip("\r\n")
    if not passphrase or len(passphrase) > _MAX_CHARACTERS or "\n" in passphrase:
        raise InputError(f"{source}: expected one line with the passphrase")
    return passphrase
