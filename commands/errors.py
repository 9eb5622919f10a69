"""Errors of commands, with their exit status."""

from __future__ import annotations

import click

from caphv.api.plaintext import one_line


class CommandError(click.ClickException):
    """A command failed: exit status 1.

    Lines of the message may quote files, objects and servers. Quoted text can neither start a new
    line nor act as control codes of a terminal.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(map(one_line, lines)))


class InputError(CommandError):
    """An input file, server or repository cannot be read: exit status 2."""

    exit_code = 2
