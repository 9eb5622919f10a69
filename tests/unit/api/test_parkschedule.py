"""Schedules of parked clusters: what is read, what is refused with its remedy, and what the clock does to it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import parkschedule
from caphv.api.parkschedule import EXAMPLE, Moment, ScheduleError, load_zone, parse_schedule, state_at

pytestmark = pytest.mark.unit

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTS = "20:00-06:00 Europe/Berlin; Sat-Sun"


def moment(text: str, local: str) -> tuple[bool, str]:
    """What a schedule says of a local time, with the local time of the next change."""
    schedule = parse_schedule(text)
    zone = load_zone(schedule.zone)
    found = state_at(schedule, zone, datetime.fromisoformat(local).replace(tzinfo=zone))
    return found.parked, found.until.astimezone(zone).strftime("%a %d %H:%M%z") if found.until else ""


@pytest.mark.parametrize(
    ("text", "local", "expected"),
    [
        (EXAMPLE, "2026-11-26T12:00", (False, "Thu 26 20:00+0100")),
        (EXAMPLE, "2026-11-26T20:00", (True, "Fri 27 06:00+0100")),
        (EXAMPLE, "2026-11-27T05:59:59", (True, "Fri 27 06:00+0100")),
        (EXAMPLE, "2026-11-27T06:00", (False, "Fri 27 20:00+0100")),
        # A window belongs to the day on which it begins, and windows that meet are one.
        (EXAMPLE, "2026-11-27T23:00", (True, "Mon 30 00:00+0100")),
        (EXAMPLE, "2026-11-30T03:00", (False, "Mon 30 20:00+0100")),
        (NIGHTS, "2026-11-28T12:00", (True, "Mon 30 06:00+0100")),
        ("Sat-Sun", "2026-11-26T12:00", (False, "Sat 28 00:00+0000")),
        ("Fri-Mon", "2026-11-24T12:00", (False, "Fri 27 00:00+0000")),
        ("Mon,Wed,Fri-Sat 00:00-24:00", "2026-11-27T12:00", (True, "Sun 29 00:00+0000")),
        ("Sun 22:00-21:59", "2026-11-30T12:00", (True, "Mon 30 21:59+0000")),
        ("  Sun   08:00-09:00   UTC ", "2026-11-29T09:00", (False, "Sun 06 08:00+0000")),
        # Without an end, or with one only for a moment of the week.
        ("Mon-Sun", "2026-11-26T12:00", (True, "")),
        ("12:00-06:00; 06:00-12:00", "2026-11-26T12:00", (True, "")),
        ("Mon-Sat; Sun 00:00-23:59", "2026-11-30T12:00", (True, "Sun 06 23:59+0000")),
    ],
)
def test_a_cluster_is_parked_in_the_windows_of_its_week(text: str, local: str, expected: tuple[bool, str]) -> None:
    assert moment(text, local) == expected


@pytest.mark.parametrize(
    ("text", "local", "expected"),
    [
        # On 29 March 2026, 02:00 to 03:00 do not exist in Berlin.
        ("20:00-06:00 Europe/Berlin", "2026-03-28T23:00", (True, "Sun 29 06:00+0200")),
        ("02:30-05:00 Europe/Berlin", "2026-03-29T01:00", (False, "Sun 29 03:30+0200")),
        ("20:00-02:30 Europe/Berlin", "2026-03-29T01:00", (True, "Sun 29 03:30+0200")),
        ("02:30-03:10 Europe/Berlin", "2026-03-29T01:00", (False, "Mon 30 02:30+0200")),
        # A window that the clock skips is dropped.
        ("Sun 02:30-03:00 Europe/Berlin", "2027-03-22T12:00", (False, "Sun 04 02:30+0200")),
        ("Mon-Sat; Sun 00:00-02:30; Sun 03:00-24:00 Europe/Berlin", "2027-03-22T12:00", (True, "Sun 04 02:30+0200")),
        ("Sun Europe/Berlin", "2026-03-29T12:00", (True, "Mon 30 00:00+0200")),
        # On 25 October, 02:00 to 03:00 exist twice.
        ("20:00-06:00 Europe/Berlin", "2026-10-24T23:00", (True, "Sun 25 06:00+0100")),
        ("20:00-02:30 Europe/Berlin", "2026-10-24T23:00", (True, "Sun 25 02:30+0200")),
        ("02:30-05:00 Europe/Berlin", "2026-10-25T01:00", (False, "Sun 25 02:30+0200")),
    ],
)
def test_windows_keep_their_local_times_when_the_clock_changes(
    text: str, local: str, expected: tuple[bool, str]
) -> None:
    assert moment(text, local) == expected


def test_an_hour_that_exists_twice_is_passed_once() -> None:
    schedule = parse_schedule("20:00-02:30 Europe/Berlin")
    second = datetime(2026, 10, 25, 1, 45, tzinfo=UTC)  # 02:45 in winter time, after 02:45 in summer time
    assert not state_at(schedule, BERLIN, second).parked
    assert not state_at(schedule, BERLIN, second - timedelta(hours=1)).parked


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty: it has an empty window"),
        (";", "has an empty window"),
        ("Sat-Sun;", "has an empty window"),
        ("weekends", "has window weekends, without days or times"),
        ("Europe/Berlin", "without days or times"),
        ("mon-fri 20:00-06:00", "without days or times"),
        ("Mon-Fri 8pm-6am", "has 8pm-6am in a window, which is not understood"),
        ("Mon-Fri 20:00-06:00 Europe/Berlin Mon", "has days Mon after the times: write them first"),
        ("Mon-Fri 20:00-06:00 Europe/Berlin UTC", "has UTC in a window"),
        ("20:00-06:00 Mon-Fri", "has days Mon-Fri after the times: write them first"),
        ("20:00-06:00 Europe/Berlin Sat,Sun", "has days Sat,Sun after the times: write them first"),
        ("Mon 20:00-06:00 ../../etc/passwd", "has ../../etc/passwd in a window"),
        ("Mon 20:00-06:00 /etc/localtime", "has /etc/localtime in a window"),
        ("24:00-06:00", "has times 24:00-06:00, which do not exist"),
        ("20:60-06:00", "which do not exist"),
        ("20:00-24:01", "which do not exist"),
        ("20:00-20:00", "of which the end is the start"),
        ("Mon UTC; Tue Europe/Berlin", "has several time zones, Europe/Berlin and UTC: keep one"),
        ("Sat-Sun; " * 40, "has 360 characters, at most 256 are read"),
        ("Mon\x1b[2J", "without days or times"),
    ],
)
def test_a_schedule_that_cannot_be_read_says_what_to_write(text: str, part: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text)
    message = str(caught.value)
    assert part in message
    assert message.startswith("annotation caphv.io/park-schedule is ")
    assert message.endswith(f"write days, times and a time zone, such as {EXAMPLE}")
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize(
    "name",
    ["Europe/Brelin", "Europe", "Mars", "a" * 300, "../UTC", "a.b", "localtime", "right/UTC", ".".join("10" * 500), ""],
)
def test_a_zone_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match="the time zone database does not have it"):
        load_zone(name)


def test_a_missing_database_is_named_and_utc_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(parkschedule, "ZoneInfo", missing)
    with pytest.raises(
        ScheduleError, match="no time zone database; install the Python package tzdata, or write the times in UTC"
    ):
        load_zone("Europe/Berlin")
    assert moment("Sun 08:00-09:00", "2026-11-29T08:30") == (True, "Sun 29 09:00+0000")


@given(st.text(max_size=300) | st.text("MonTueSat-,;: 0123456789EuropBli/", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ScheduleError):
        assert parse_schedule(text).windows


DAYS = st.sampled_from(["", "Mon-Fri ", "Sat,Sun ", "Fri-Mon ", "Wed ", "Sun "])
CLOCK = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
CLOCKS = st.lists(CLOCK, min_size=2, max_size=2, unique=True).map("-".join)
WINDOWS = st.builds("{}{}".format, DAYS, CLOCKS)
SCHEDULES = st.lists(WINDOWS, min_size=1, max_size=6).map("; ".join)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"])
TIMES = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(SCHEDULES, ZONES, TIMES)
def test_nothing_changes_before_the_next_change_and_something_does_then(text: str, zone: str, now: datetime) -> None:
    schedule = parse_schedule(f"{text} {zone}")
    found = state_at(schedule, load_zone(zone), now)
    if found.until is None:
        assert found.parked
        return
    # Two weeks if the clock skips the only window, or the only gap, of a week.
    assert now < found.until <= now + timedelta(days=14, hours=2)
    before = found.until - timedelta(microseconds=1)
    assert state_at(schedule, load_zone(zone), before) == Moment(found.parked, found.until)
    assert state_at(schedule, load_zone(zone), found.until).parked is not found.parked
