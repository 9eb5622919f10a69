"""A flag of `caphv generate`, which sets a field of a definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caphv.validation.finding import FieldPath
from packager.definitions.flags import values

KUBERNETES_VERSION = "v1.36.2"

# Stands for each pool of workers in the path of a flag.
EACH = "*"


@dataclass(frozen=True)
class Flag:
    """A flag, the field that it sets, and its question in the interactive mode.

    `metavar` is the form of the value, for the help. `ask` is the question, empty for flags that
    are not asked for. `default` is the value for an empty answer, None if an answer is required.
    `choices` are all values that the schema takes if they are few, for completion in a shell.
    `merge_field` is the field that identifies an item of a list: each item of the flag is merged
    with the same item of a file or of an earlier flag. If empty, the flag's list replaces any other
    list.
    """

    name: str
    path: FieldPath
    metavar: str
    help: str
    ask: str = ""
    default: str | None = ""
    value: Callable[[str], Any] = values.as_typed
    choices: tuple[str, ...] = ()
    merge_field: str = ""

    @property
    def parameter(self) -> str:
        """The name in the form of a Python variable."""
        return self.name.removeprefix("--").replace("-", "_")
