"""Options of commands that change something and wait for the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from commands.options.formats import output_option
from commands.options.groups import with_options

_Command = TypeVar("_Command", bound=Callable[..., Any])
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """A time such as `90s`, `45m` or `2h`; the value is in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the text. Raises `click.BadParameter`."""
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"([1-9]\d{0,5})([smh])", str(value))
        if match is None:
            self.fail(f"{value!r} is not a time such as 90s, 45m or 2h", param, ctx)
        return float(int(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """The options of `change_options` for questions and output; some commands lack `output`."""

    yes: bool
    dry_run: bool
    output: str = "text"

    @property
    def is_text(self) -> bool:
        """Whether standard output is text for people."""
        return self.output == "text"


@dataclass(frozen=True, kw_only=True)
class WaitOptions:
    """The options of `wait_options`: whether to wait, and for how many seconds."""

    wait: bool
    timeout: float


def question_options(command: _Command) -> _Command:
    """Add `yes` and `dry_run`."""
    return with_options(
        command,
        click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
    )


def change_options(command: _Command) -> _Command:
    """Add the options of a command that changes something: `yes`, `dry_run` and `output`."""
    return with_options(command, output_option(), question_options)


def timeout_option(default: str, help_text: str) -> Callable[[_Command], _Command]:
    """Add `timeout`, in seconds."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=default,
        show_default=True,
        metavar="DURATION",
        help=help_text,
    )


def wait_options(timeout: str) -> Callable[[_Command], _Command]:
    """Add `wait` and `timeout` with a default."""

    def add(command: _Command) -> _Command:
        return with_options(
            command,
            timeout_option(timeout, "Maximum time to wait, such as 90s, 45m or 2h."),
            click.option(
                "--wait",
                is_flag=True,
                help="Wait until the change is complete, and show its progress.",
            ),
        )

    return add
