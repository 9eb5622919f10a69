"""The form of an object in a backup, and the limits within which it can be read back."""

from __future__ import annotations

from typing import Any

import orjson

from caphv.runtime.text import Limits, TextError, load_json

# By default etcd keeps no object above 1.5 MiB.
OBJECT_LIMITS = Limits(size=8 * 1024 * 1024, nodes=1_000_000)


def dump(value: Any) -> bytes:
    """Return a value as it is in the files of a backup."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def problem_of(value: Any) -> str:
    """Return why a value cannot be written and read back; empty if it can."""
    try:
        load_json(dump(value), OBJECT_LIMITS)
    except TextError as error:
        return error.problem
    except TypeError:  # orjson's for values that are nested too deeply
        return "is nested too deeply"
    return ""
