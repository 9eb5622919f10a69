"""Write lines that contain text from objects, servers and files."""

from __future__ import annotations

import click

from caphv.api.plaintext import one_line


def echo(text: str, *, err: bool = False) -> None:
    """Write one line without control characters, which a terminal could execute."""
    click.echo(one_line(text), err=err)
