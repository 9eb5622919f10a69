"""Structured logs: one JSON object per line in a cluster, short text on a terminal.

Fields such as controller and object are set once around a piece of work and appear on each of its
lines. A failure that repeats is written once and then counted, see `caphv.runtime.repeats`.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any, Literal, TextIO

import orjson

from caphv.api.plaintext import LONGEST_LOG, plain
from caphv.runtime.repeats import Repeats

Format = Literal["auto", "json", "text"]
_fields: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar(
    "fields",
    default={},  # noqa: B039 - never changed in place
)


@contextlib.contextmanager
def context(**fields: str) -> Iterator[None]:
    """Add fields to each line that is logged inside the block."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def is_limited(server: str) -> bool:
    """Return whether the log leaves out failures of a server, because they are too many."""
    handlers = logging.getLogger().handlers
    return any(
        handler.repeats.is_limited(server) for handler in handlers if isinstance(handler, _Handler)
    )


def configure(level: str, log_format: Format, stream: TextIO | None = None) -> None:
    """Send the logs of this process to a stream, by default standard error.

    `auto` logs JSON unless the stream is a terminal.
    """
    output = stream or sys.stderr
    as_json = log_format == "json" or (log_format == "auto" and not output.isatty())
    handler = _Handler(output)
    handler.addFilter(_add_fields)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

    # No formatter uses these fields, and finding them takes as long as the rest of a line.
    logging._srcfile = None  # as its documentation recommends
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False

    # At debug level libraries log headers and bodies, which contain credentials and bootstrap data.
    for noisy in ("aiohttp", "git", "kubernetes", "urllib3", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.repeats.take(record):
            super().emit(line)


def _add_fields(record: logging.LogRecord) -> bool:
    record.caphv_fields = _fields.get()
    return True


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            **getattr(record, "caphv_fields", {}),
        }
        if record.exc_info:
            line["error"] = _cut(self.formatException(record.exc_info))

        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # half a surrogate pair, which JSON can express but UTF-8 cannot
            return json.dumps(line, default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        subject = ""
        fields = getattr(record, "caphv_fields", {})
        for name in ("object", "cluster", "server"):
            if name in fields:
                subject = f" [{fields[name]}]"
                break

        text = f"{clock} {record.levelname[:4]:4}{subject} {record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return plain(text, LONGEST_LOG)


def _cut(text: str) -> str:
    # JSON escapes control characters itself.
    return text if len(text) <= LONGEST_LOG else f"{text[: LONGEST_LOG - 1]}…"
