"""Write files with secrets, which only the user may read.

A file that cannot be written is refused before the work begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The options of `file_options`; `OutputFile` has checked that no content is lost."""

    file: Path | None
    overwrite: bool


def file_options(help_text: str) -> Callable[[_Command], _Command]:
    """Add `file`, and `overwrite`, without which a file with content is refused."""

    def add(command: _Command) -> _Command:
        # The option is eager, because the check of the file needs its value.
        command = click.option(
            "--overwrite", is_flag=True, is_eager=True, help="Overwrite an existing file."
        )(command)
        return click.option(
            "--file", "file", type=OutputFile(), show_default=False, help=help_text
        )(command)

    return add


class OutputFile(click.Path):
    """A file that can be written, and has no content that would be lost without `overwrite`.

    Any other file is a usage error before the work, so that no result is lost for lack of a file.
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
        has_content = os.path.isfile(file) and os.path.getsize(file) > 0
        may_overwrite = ctx is not None and ctx.params.get("overwrite")
        if has_content and not may_overwrite:
            self.fail(f"{file} exists: name another file, or add --overwrite", param, ctx)
        return file


def write_private(file: Path, content: bytes) -> None:
    """Write a file with mode 0600. Raises `OSError`."""
    # The file has its mode from the first moment, because others could open it before a chmod.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
        # Opening an existing file does not change its mode.
        os.fchmod(target.fileno(), 0o600)
        target.write(content)
