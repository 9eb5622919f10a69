"""Files with secrets that commands write: refused before the work when they cannot be written, readable by one user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def file_options(help_text: str) -> Callable[[_Command], _Command]:
    """Add `file`, and `overwrite`, without which a file with content is refused."""

    def add(command: _Command) -> _Command:
        # Eager, so that it is known when the file is checked.
        command = click.option("--overwrite", is_flag=True, is_eager=True, help="Replace a file that exists.")(command)
        return click.option("--file", "file", type=OutputFile(), show_default=False, help=help_text)(command)

    return add


class OutputFile(click.Path):
    """A file that can be written, and has no content that would be lost, unless `overwrite` of the command says so.

    Wrong usage otherwise: what a command has made is not lost.
    """

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check file and directory. Raises `click.BadParameter`."""
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = file.absolute().parent
        if not os.path.isdir(folder):
            self.fail(f"{file}: {folder} is not a directory", param, ctx)
        if not os.path.exists(file) and not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{file}: directory {folder} is not writable", param, ctx)
        if os.path.isfile(file) and os.path.getsize(file) and not (ctx and ctx.params.get("overwrite")):
            self.fail(f"{file} exists: name another file, or add --overwrite", param, ctx)
        return file


def write_private(file: Path, content: bytes) -> None:
    """Write a file with mode 0600. Raises `OSError`."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
        # Opening an existing file does not change its mode.
        os.fchmod(target.fileno(), 0o600)
        target.write(content)
