"""Groups of options as frozen dataclasses, which commands and their steps take."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Group = TypeVar("_Group")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_options(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    """Return a command with more options. Help lists them from the last one to the first.

    :param options: decorators that add an option or several
    """
    for add in options:
        command = add(command)
    return command


def fill(**groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass options to a command as dataclasses; options of no group stay parameters.

    The decorator is the last one before the function, below the decorators that add options. Groups
    may share an option.

    :param groups: the dataclass for each parameter of the command, with fields named like the
        options
    """
    grouped = {field.name for group in groups.values() for field in dataclasses.fields(group)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(*args: Any, **values: Any) -> None:
            single = {name: value for name, value in values.items() if name not in grouped}
            filled = {name: pick(group, values) for name, group in groups.items()}
            command(*args, **single, **filled)

        vars(call)["option_groups"] = groups
        return call

    return decorate


def pick(group: type[_Group], values: Mapping[str, Any]) -> _Group:
    """Return a group with the values of its options; an option that is absent has its default."""
    fields = dataclasses.fields(group)  # type: ignore[arg-type]
    return group(**{field.name: values[field.name] for field in fields if field.name in values})
