"""The passphrase of a backup: from a file, the environment or a question, never from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from commands.options.clusters import InputError

_Command = TypeVar("_Command", bound=Callable[..., Any])
VARIABLE = "CAPHV_BACKUP_PASSPHRASE"
_LONGEST = 4096


def passphrase_options(command: _Command) -> _Command:
    """Add the option `passphrase_file`."""
    return click.option(
        "--passphrase-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"File with the passphrase.  [default: variable {VARIABLE}, otherwise a prompt]",
    )(command)


def read_passphrase(file: Path | None, *, new: bool = False) -> str:
    """Return the passphrase; a new one is asked for twice. Raises `InputError`, `click.UsageError`, `click.Abort`."""
    from overview.backup.sealing import SHORTEST_PASSPHRASE

    found = _from_file(file) if file else os.environ.get(VARIABLE, "")
    if not found:
        if not sys.stdin.isatty():
            other = ", or --unencrypted" if new else ""
            raise click.UsageError(f"the backup needs a passphrase: use --passphrase-file or {VARIABLE}{other}")
        found = str(click.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=new))
    if new and len(found) < SHORTEST_PASSPHRASE:
        raise InputError(f"the passphrase has {len(found)} characters: use at least {SHORTEST_PASSPHRASE}")
    return found


def _from_file(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as source:
            found = source.read(_LONGEST + 1).strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InputError(f"--passphrase-file {file}: {reason}") from None
    if not found or len(found) > _LONGEST or "\n" in found:
        raise InputError(f"--passphrase-file {file}: expected one line with the passphrase")
    return found
