"""The stand-in imports Clusters as the real add-on provider did, and its agent has the limits that a rule relies on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.caapf import Naming, fleet_cluster
from tests.support.observed import Record, records

pytestmark = pytest.mark.unit
RECORDS = records("rancher-cluster-api-addon-provider-fleet/import.yaml")
CLUSTERS = [record for record in RECORDS if isinstance(record.input, dict)]
CONTROL_PLANE_TAINT = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


def without_empty(imported: Any) -> Any:
    """Drop kind, and metadata without content, which no API server keeps."""
    if imported is None:
        return None
    metadata = {name: value for name, value in imported["metadata"].items() if value}
    return {"metadata": metadata, "spec": imported["spec"]}


@pytest.mark.parametrize("record", CLUSTERS, ids=str)
def test_the_stand_in_imports_what_the_add_on_provider_imported(record: Record) -> None:
    imported = fleet_cluster(record.input["cluster"], Naming(**record.input["naming"]))
    assert without_empty(imported) == record.outcome


def test_the_agent_needs_no_network_and_no_control_plane_takes_it() -> None:
    """Therefore Fleet can install a CNI, and only if there are workers: rule `cni-workers`."""
    (agent,) = [record.outcome for record in RECORDS if record not in CLUSTERS]
    assert agent["hostNetwork"]
    keys = {row.get("key") for row in agent["tolerations"]}
    assert not keys & {CONTROL_PLANE_TAINT["key"], None}
