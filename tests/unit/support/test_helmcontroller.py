"""What the real Helm controller gave its Jobs, replayed against the stand-in."""

from __future__ import annotations

import pytest

from tests.support.addons.helmjob import JobOptions
from tests.support.observed import Record, records

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("record", records("k3s-io-helm-controller/jobs.yaml"), ids=str)
def test_jobs_get_the_policies_that_the_controller_gave_them(record: Record) -> None:
    options = JobOptions.of(record.input["chart"], record.input["config"])
    assert options.failure_policy == record.outcome["FAILURE_POLICY"]
    assert str(options.force_conflicts).lower() == record.outcome["FORCE_CONFLICTS"]
    # The stand-in installs with automatic server-side apply, and retries without end.
    assert (record.outcome["SERVER_SIDE"], record.outcome["backoffLimit"]) == ("auto", 1000)
