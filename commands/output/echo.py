"""Lines that name what objects, servers and files say."""

from __future__ import annotations

import click

from caphv.api.plaintext import one_line


def echo(text: str, *, err: bool = False) -> None:
    """Write one line, without anything in it that a terminal could obey."""
    click.echo(one_line(text), err=err)
