"""All commands, for tests by discovery."""

from __future__ import annotations

from collections.abc import Iterator

import click

from commands.main import cli


def leaf_commands(group: click.Group = cli, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is no group, with its words: `identity list`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{above} {name}".strip()
        if isinstance(command, click.Group):
            yield from leaf_commands(command, words)
        else:
            yield words, command
