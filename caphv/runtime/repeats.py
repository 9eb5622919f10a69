"""Write the first log line of a failure, and count the others.

Attempts to reach an unreachable server fail for hours, and the lines of this one failure would hide
all others. A hostile server fails in another way each time, so different failures of one server are
also limited. Only the text of a line is kept, because a traceback keeps every local variable of the
failed call alive, such as whole answers of that server.
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
"""`extra` of a line that concerns all objects, for example that a server is unreachable."""
MAX_FAILURES = 60
"""Number of different failures of one server that are written in ten minutes."""
_MAX_CACHED = 1000
_MAX_COMPARED_LENGTH = 1000


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
    """Decide which lines a handler writes. Each handler has its own instance.

    Lines are equal if logger, level, text, error and fields are. Field `server` is the URL of the
    server that a line concerns. Only warnings and errors are counted. Lines of a lower level report
    events and are always written.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failure] = OrderedDict()
        self._servers: OrderedDict[str, _Server] = OrderedDict()

    def take(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """Yield the lines to write: due counts, and this line if it is new."""
        moment = self._clock()
        yield from self._take_counts(moment)
        if record.levelno < logging.WARNING:
            yield record
            return

        key = _key(record)
        failure = self._failures.get(key)
        if failure:
            failure.count += 1
            failure.last = _text_record(record)
            return

        url = getattr(record, "caphv_fields", {}).get("server", "")
        failures = self._count_failure(url, moment) if url else 0
        if failures > MAX_FAILURES:
            if failures == MAX_FAILURES + 1:
                yield _limit_record(record, url)
            return

        self._failures[key] = _Failure(moment, 0, _text_record(record))
        if len(self._failures) > _MAX_CACHED:
            self._failures.popitem(last=False)
        yield record

    def is_limited(self, url: str) -> bool:
        """Return whether failures of a server are no longer written."""
        server = self._servers.get(url)
        if server is None or self._clock() - server.since >= WINDOW_SECONDS:
            return False
        return server.failures > MAX_FAILURES

    def _count_failure(self, url: str, moment: float) -> int:
        """Count another failure of a server. Return the count of its present ten minutes."""
        server = self._servers.get(url)
        if server is None or moment - server.since >= WINDOW_SECONDS:
            self._servers.pop(url, None)
            server = self._servers[url] = _Server(moment)
            if len(self._servers) > _MAX_CACHED:
                self._servers.popitem(last=False)
        server.failures += 1
        return server.failures

    def _take_counts(self, moment: float) -> Iterator[logging.LogRecord]:
        """Yield due counts in the order of their first lines, and forget failures that ended."""
        due = []
        for key, failure in self._failures.items():
            if moment - failure.since < WINDOW_SECONDS:
                break
            due.append((key, failure))

        for key, failure in due:
            self._failures.pop(key, None)
            if failure.count:
                self._failures[key] = _Failure(moment, 0, failure.last)
                yield _count_record(failure, moment - failure.since)


def _count_record(failure: _Failure, seconds: float) -> logging.LogRecord:
    """Return the last line with the count instead of its traceback."""
    times = "once" if failure.count == 1 else f"{failure.count} times"
    return _with_text(failure.last, f"{failure.last.msg} (again, {times} in {seconds / 60:.0f}m)")


def _limit_record(record: logging.LogRecord, url: str) -> logging.LogRecord:
    """Return the line that is written instead of all further failures of a server."""
    minutes = f"{WINDOW_SECONDS / 60:.0f}m"
    text = (
        f"{url}: more than {MAX_FAILURES} different failures in {minutes}; further ones are "
        "not logged"
    )
    return _with_text(record, text)


def _text_record(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of a line that holds only text."""
    return _with_text(record, f"{record.getMessage()}{_error(record)}"[:LONGEST_ERROR])


def _with_text(record: logging.LogRecord, text: str) -> logging.LogRecord:
    copied = copy.copy(record)
    copied.msg = text
    copied.args = copied.exc_info = copied.exc_text = None
    return copied


def _key(record: logging.LogRecord) -> Hashable:
    fields = {} if getattr(record, "any_object", False) else getattr(record, "caphv_fields", {})
    text = record.getMessage()[:_MAX_COMPARED_LENGTH]
    return (
        record.name,
        record.levelno,
        text,
        _error(record)[:_MAX_COMPARED_LENGTH],
        tuple(fields.items()),
    )


def _error(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return f": {type(error).__name__}: {error}" if error else ""
