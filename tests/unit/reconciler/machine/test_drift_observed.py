"""What real Harvester and KubeVirt made of VMs at their creation is no drift."""

from __future__ import annotations

import pytest

from reconciler.machine.drift import drift
from tests.support import observed, observedvms
from tests.support.observed import Record

pytestmark = pytest.mark.unit

FILES = (
    "harvester/admission-v1.9.0-rc6.yaml",
    "harvester/admission-v1.8.2.yaml",
    "harvester/admission-v1.6.1.yaml",
    "kubevirt/admission-v1.7.0.yaml",
    "kubevirt/admission-v1.4.0.yaml",
)


@pytest.mark.parametrize("file", FILES)
def test_admission_makes_no_drift(file: str) -> None:
    records = {record.name: record for record in observed.records(file)}
    created = [record for record in records.values() if is_admitted_vm(record)]
    assert len(created) > 40

    drifted = {
        record.name: found
        for record in created
        if (found := drift(observedvms.given_vm(records, record), observedvms.admitted_vm(records, record)))
    }
    assert drifted == {}


def is_admitted_vm(record: Record) -> bool:
    created = "before" not in record.input and "claim" not in record.input
    return created and "refused" not in record.outcome and record.name != "templates-are-no-json"
