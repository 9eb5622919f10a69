"""Log lines of the same failure: the first is written, the others are counted.

An unreachable server fails each attempt to reach it, for hours. Without this, the lines of one failure hide all others.
A hostile server fails in another way each time, so different failures of one server are limited, too. What is kept of a
line is its text alone: a trace holds all that its functions worked on, such as whole answers of that server.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from caphv.api.plaintext import LONGEST_ERROR

WINDOW_SECONDS = 600.0
FAILURE_OF_ANY_OBJECT = {"any_object": True}
"""`extra` of a line that says the same for each object, for example that a server is unreachable."""
MOST_OF_A_SERVER = 60
"""Different failures of one server that are written in ten minutes."""
_REMEMBERED = 1000
_COMPARED = 1000


@dataclass(slots=True)
class _Failure:
    since: float
    count: int
    last: logging.LogRecord


@dataclass(slots=True)
class _Server:
    since: float
    failures: int = 0


class Repeats:
    """Decides which lines are written; one for each handler.

    Lines are the same if logger, level, text, error and fields are. Field `server` is the URL of the server that a line
    is about. Only warnings and errors are counted: lines of a lower level say what happened, and each counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failure] = OrderedDict()
        self._servers: OrderedDict[str, _Server] = OrderedDict()

    def take(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """Yield what has to be written now: counts whose ten minutes have passed, and the line itself if it is new."""
        now = self._clock()
        yield from self._counts(now)
        if record.levelno < logging.WARNING:
            yield record
            return
        key = _key(record)
        known = self._failures.get(key)
        if known:
            known.count += 1
            known.last = _text_of(record)
            return
        url = getattr(record, "caphv_fields", {}).get("server", "")
        failures = self._failures_of(url, now) if url else 0
        if failures > MOST_OF_A_SERVER:
            if failures == MOST_OF_A_SERVER + 1:
                yield _limited(record, url)
            return
        self._failures[key] = _Failure(now, 0, _text_of(record))
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)
        yield record

    def limited(self, url: str) -> bool:
        """Whether failures of a server are no longer written."""
        server = self._servers.get(url)
        recent = server is not None and self._clock() - server.since < WINDOW_SECONDS
        return recent and server is not None and server.failures > MOST_OF_A_SERVER

    def _failures_of(self, url: str, now: float) -> int:
        """Different failures of a server in its ten minutes, with this one."""
        server = self._servers.get(url)
        if server is None or now - server.since >= WINDOW_SECONDS:
            self._servers.pop(url, None)
            server = self._servers[url] = _Server(now)
            if len(self._servers) > _REMEMBERED:
                self._servers.popitem(last=False)
        server.failures += 1
        return server.failures

    def _counts(self, now: float) -> Iterator[logging.LogRecord]:
        """Counts of failures in the order of their first line; those that have ended are forgotten."""
        while self._failures:
            key, failure = next(iter(self._failures.items()))
            passed = now - failure.since
            if passed < WINDOW_SECONDS:
                return
            del self._failures[key]
            if failure.count:
                self._failures[key] = _Failure(now, 0, failure.last)
                yield _counted(failure, passed)


def _counted(failure: _Failure, seconds: float) -> logging.LogRecord:
    """Return the last line with the count instead of its trace."""
    times = "once" if failure.count == 1 else f"{failure.count} times"
    return _with_text(failure.last, f"{failure.last.msg} (again, {times} in {seconds / 60:.0f}m)")


def _limited(record: logging.LogRecord, url: str) -> logging.LogRecord:
    """Return the line that stands for all further failures of a server."""
    minutes = f"{WINDOW_SECONDS / 60:.0f}m"
    text = f"{url}: more than {MOST_OF_A_SERVER} different failures in {minutes}; further ones are not logged"
    return _with_text(record, text)


def _text_of(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy that refers to nothing but text."""
    return _with_text(record, f"{record.getMessage()}{_error(record)}"[:LONGEST_ERROR])


def _with_text(record: logging.LogRecord, text: str) -> logging.LogRecord:
    copied = copy.copy(record)
    copied.msg = text
    copied.args = copied.exc_info = copied.exc_text = None
    return copied


def _key(record: logging.LogRecord) -> Hashable:
    fields = {} if getattr(record, "any_object", False) else getattr(record, "caphv_fields", {})
    text = record.getMessage()[:_COMPARED]
    return record.name, record.levelno, text, _error(record)[:_COMPARED], tuple(fields.items())


def _error(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return f": {type(error).__name__}: {error}" if error else ""
