"""What is said of credentials that expire, and when to look again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.names import Reason
from reconciler.cluster.identity import WARN_AHEAD, judge

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def test_credentials_without_a_date_are_left_alone() -> None:
    verdict = judge(None, NOW)
    assert (verdict.reason, verdict.again) == (None, None)


def test_far_from_the_end_the_timer_goes_off_seven_days_before_it() -> None:
    verdict = judge(NOW + timedelta(days=30), NOW)
    assert verdict.reason is None
    assert verdict.again == timedelta(days=23).total_seconds()
    assert "2026-12-21T09:00:00Z" in verdict.message


def test_seven_days_before_the_end_it_is_said_and_the_next_look_is_at_the_end() -> None:
    verdict = judge(NOW + WARN_AHEAD, NOW)
    assert verdict.reason is Reason.IDENTITY_EXPIRING
    assert verdict.again == WARN_AHEAD.total_seconds()
    assert "new kubeconfig" in verdict.message


def test_after_the_end_there_is_nothing_to_wait_for() -> None:
    verdict = judge(NOW, NOW)
    assert (verdict.reason, verdict.again) == (Reason.IDENTITY_EXPIRED, None)


@given(st.timedeltas(min_value=timedelta(days=-100), max_value=timedelta(days=4000)))
def test_each_timer_leads_to_the_next_verdict(left: timedelta) -> None:
    first = judge(NOW + left, NOW)
    if first.again is not None:
        assert first.again > 0
        assert judge(NOW + left, NOW + timedelta(seconds=first.again)).reason is not first.reason
