"""What a silent guest agent leaves of an instance's interfaces, as the real code reported it."""

from __future__ import annotations

import pytest

from reconciler.machine.vmstatus import addresses
from sandbox.harvester.instances import silent_agent_status
from tests.support.observed import Record, records

pytestmark = pytest.mark.unit

# Of no influence on a machine, and not simulated.
IGNORED = ("queueCount", "linkState")
AGENT = [*records("kubevirt/agent-v1.7.0.yaml"), *records("kubevirt/agent-v1.4.0.yaml")]


@pytest.mark.parametrize("record", AGENT, ids=str)
def test_interfaces_as_observed(record: Record) -> None:
    vmi = {"status": {"interfaces": record.input["before"]}}
    real = [{name: value for name, value in nic.items() if name not in IGNORED} for nic in record.outcome["interfaces"]]
    if record.input["before"] and not record.input["agent"]:
        assert silent_agent_status(vmi)["interfaces"] == real

    known = {entry["address"] for entry in addresses({"status": {"interfaces": record.outcome["interfaces"]}})}
    assert known == ({"10.0.0.5"} if record.input["agent"] else set())
