"""Parse and evaluate park schedules: weekly windows in the local time of one zone.

A schedule such as `Mon-Fri 20:00-06:00 Europe/Berlin; Sat-Sun` comes from an annotation and is
untrusted. Its length is bounded, and each part is matched by an expression that takes linear time.
Only `load_zone` does I/O: it reads the time zone database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from caphv.api.names import PARK_SCHEDULE_ANNOTATION
from caphv.api.plaintext import one_line

EXAMPLE = "Mon-Fri 20:00-06:00 Europe/Berlin; Sat-Sun"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MAX_SCHEDULE = 256
_MAX_SHOWN = 60
# Twice the length of the longest name in the database.
_MAX_ZONE = 64
_DAY_MINUTES = 24 * 60

_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_DAY_LIST = re.compile(rf"{_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*")
_TIMES = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
# Names of zones become paths in the database.
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}")
# Names that only the databases of some operating systems have. A schedule must be valid everywhere.
_SYSTEM_ZONES = ("localtime", "posixrules", "posix/", "right/")
# Windows that begin on these days, counted from today, decide. The next change is at most two weeks
# ahead: the clock may skip the only window of a week.
_RELEVANT_DAYS = range(-2, 17)
_MAX_AHEAD = timedelta(days=14, hours=2)


class ScheduleError(ValueError):
    """A schedule cannot be used.

    The message contains the value and the remedy. `detail` is the message without the subject.
    """

    def __init__(self, subject: str, detail: str) -> None:
        super().__init__(f"annotation {PARK_SCHEDULE_ANNOTATION} {subject}: {detail}")
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Window:
    """A time of the week in which a cluster is parked.

    :param days: the weekdays on which it begins; Monday is 0
    :param start: minutes after midnight
    :param end: minutes after midnight; of the next day unless it is after the start
    """

    days: frozenset[int]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Weekly windows in the local time of a zone of the IANA database."""

    windows: tuple[Window, ...]
    zone: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The result of evaluating a schedule at a time.

    :param parked: whether the cluster is to be parked at that time
    :param until: when that changes; None if it never does
    """

    parked: bool
    until: datetime | None


class _ParsedWindow(NamedTuple):
    """A window, and the name of its time zone, which is empty if it names none."""

    window: Window
    zone: str


class _Span(NamedTuple):
    """Start and end of a window on a day, in UTC."""

    start: datetime
    end: datetime


def parse_schedule(text: str) -> Schedule:
    """Parse the value of the annotation. Raises `ScheduleError`."""
    if len(text) > _MAX_SCHEDULE:
        raise _error(text, f"has {len(text)} characters, at most {_MAX_SCHEDULE} are read")

    windows: list[Window] = []
    zones: set[str] = set()
    for part in text.split(";"):
        if not part.strip():
            raise _error(text, "has an empty window")
        parsed = _parse_window(text, part.split())
        windows.append(parsed.window)
        if parsed.zone:
            zones.add(parsed.zone)
    if len(zones) > 1:
        raise _error(text, f"has several time zones, {' and '.join(sorted(zones))}: keep one")
    return Schedule(tuple(windows), zones.pop() if zones else "UTC")


def load_zone(name: str) -> tzinfo:
    """Return a time zone by its name in the IANA database. Raises `ScheduleError`."""
    if name == "UTC":
        return UTC
    if zone := _read_zone(name):
        return zone

    subject = f"names time zone {_shown(name)}"
    if _read_zone("Etc/UTC") is None:
        raise ScheduleError(
            subject,
            "this installation has no time zone database; install the Python package tzdata, or "
            "write the times in UTC",
        )
    raise ScheduleError(
        subject,
        "the time zone database does not have it; write its name as in Europe/Berlin, or UTC",
    )


def _read_zone(name: str) -> ZoneInfo | None:
    # Check the name first: ZoneInfo turns it into a path or a module of package tzdata.
    if len(name) > _MAX_ZONE or not _ZONE.fullmatch(name) or name.startswith(_SYSTEM_ZONES):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def state_at(schedule: Schedule, zone: tzinfo, now: datetime) -> Moment:
    """Return whether a schedule parks a cluster at a time, and when that changes.

    A local time that the clock skips counts as if the clock had not changed yet. A local time that
    occurs twice counts as the first one.

    :param schedule: the windows
    :param zone: the zone of their times
    :param now: an aware time, in any zone
    """
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=offset) for offset in _RELEVANT_DAYS)
    spans = sorted(span for day in days for span in _spans(schedule, zone, day))
    ends = [span.end for span in spans if span.start <= now < span.end]
    if not ends:
        return Moment(False, min((span.start for span in spans if span.start > now), default=None))

    # A window that begins before or at the end of this one extends it. The spans are sorted, so one
    # pass finds all extensions.
    until = max(ends)
    for span in spans:
        if span.start <= until:
            until = max(until, span.end)
    is_endless = until - now > _MAX_AHEAD
    return Moment(True, None if is_endless else until)


def _parse_window(text: str, words: list[str]) -> _ParsedWindow:
    """Parse the words of a window: days, times and a zone, each optional, in this order.

    Raises `ScheduleError` for words in another order, and for a window without days and times.
    """
    remaining = list(words)
    days = frozenset(range(7))
    start = 0
    end = _DAY_MINUTES
    if _DAY_LIST.fullmatch(remaining[0]):
        days = _parse_days(remaining.pop(0))
    if remaining and (times := _TIMES.fullmatch(remaining[0])):
        hours, minutes, end_hours, end_minutes = map(int, times.groups())
        start = hours * 60 + minutes
        end = end_hours * 60 + end_minutes
        if max(minutes, end_minutes) > 59 or start >= _DAY_MINUTES or end > _DAY_MINUTES:
            raise _error(text, f"has times {remaining[0]}, which do not exist")
        if start == end:
            raise _error(text, f"has times {remaining[0]}, of which the end is the start")
        remaining.pop(0)
    if len(remaining) == len(words):
        raise _error(text, f"has window {_shown(' '.join(words))}, without days or times")

    if late := next(filter(_DAY_LIST.fullmatch, remaining), ""):
        raise _error(text, f"has days {_shown(late)} after the times: write them first")
    zone = ""
    if remaining and _ZONE.fullmatch(remaining[0]):
        zone = remaining.pop(0)
    if remaining:
        raise _error(text, f"has {_shown(remaining[0])} in a window, which is not understood")
    return _ParsedWindow(Window(days, start, end), zone)


def _parse_days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start = _DAYS.index(first)
        end = _DAYS.index(last or first)
        if end < start:  # Fri-Mon spans the turn of the week
            end += 7
        days |= {day % 7 for day in range(start, end + 1)}
    return frozenset(days)


def _spans(schedule: Schedule, zone: tzinfo, day: date) -> Iterator[_Span]:
    """Yield the spans of the windows that begin on a day."""
    for window in schedule.windows:
        if day.weekday() not in window.days:
            continue
        last_day = day + timedelta(days=1) if window.end <= window.start else day
        start = _instant(day, window.start, zone)
        end = _instant(last_day, window.end, zone)
        if start < end:  # not if the clock skips all of it
            yield _Span(start, end)


def _instant(day: date, minutes: int, zone: tzinfo) -> datetime:
    """Return the time that is so many minutes after midnight by the clock, up to 24:00."""
    hour = minutes // 60 % 24
    local_day = day + timedelta(days=minutes // _DAY_MINUTES)
    return datetime.combine(local_day, time(hour, minutes % 60), zone).astimezone(UTC)


def _shown(text: str) -> str:
    """Return a part of a schedule for a message, shortened and without line breaks."""
    line = one_line(text)
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"


def _error(text: str, what: str) -> ScheduleError:
    subject = f"is {_shown(text)}" if text.strip() else "is empty"
    return ScheduleError(
        subject, f"it {what}; write days, times and a time zone, such as {EXAMPLE}"
    )
