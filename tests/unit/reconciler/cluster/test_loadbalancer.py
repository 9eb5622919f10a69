"""The load balancer that a cluster should have, and which differences are repaired."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from reconciler.cluster.loadbalancer import drift, load_balancer_spec

pytestmark = pytest.mark.unit

SELECTOR = {"harvestercluster/machinetype": ["controlplane-demo"], "caphv.io/cluster": ["clusters.demo"]}
LISTENER = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}


def cluster_spec(**config: Any) -> Obj:
    return {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "balancers", **config}}


def wanted(**config: Any) -> Obj:
    return load_balancer_spec(cluster_spec(**config), SELECTOR)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


FIELDS = {
    "workloadType": st.sampled_from(["vm", "cluster"]),
    "ipam": st.sampled_from(["pool", "dhcp"]),
    "ipPool": st.sampled_from(["balancers", "others"]),
    "description": st.text(max_size=5),
    "listeners": st.lists(st.fixed_dictionaries({"name": st.text(max_size=3), "port": st.integers(1, 9)}), max_size=3),
    "healthCheck": st.dictionaries(st.sampled_from(["port", "periodSeconds", "extra"]), st.integers(0, 9)),
    "backendServerSelector": st.dictionaries(
        st.sampled_from(["harvestercluster/machinetype", "caphv.io/cluster", "other"]), st.lists(st.text(max_size=3))
    ),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_repair_is_complete_in_one_patch(found: Obj) -> None:
    want = wanted(listeners=[LISTENER])
    after = merged(found, drift(want, found))
    assert drift(want, after) == {}
    assert after["backendServerSelector"] == SELECTOR
    assert after["listeners"] == want["listeners"]
    assert "description" not in after or not after["description"]


def test_what_is_as_wanted_is_no_drift() -> None:
    assert drift(wanted(description="x"), wanted(description="x")) == {}


def test_what_harvester_adds_is_no_drift() -> None:
    found = copy.deepcopy(wanted(listeners=[LISTENER]))
    found["healthCheck"]["addedByTheWebhook"] = 5
    found["listeners"][0]["addedByTheWebhook"] = "x"
    found["somethingElse"] = {"x": 1}
    found["description"] = ""
    assert drift(wanted(listeners=[LISTENER]), found) == {}


def test_key_too_many_in_the_selector_is_taken_out() -> None:
    found = {**wanted(), "backendServerSelector": {**SELECTOR, "tier": ["gold"]}}
    assert drift(wanted(), found) == {"backendServerSelector": {**SELECTOR, "tier": None}}


def test_description_that_the_spec_gave_up_is_deleted() -> None:
    assert drift(wanted(), wanted(description="old")) == {"description": None}


def test_listener_of_the_spec_comes_before_that_of_the_api() -> None:
    assert [entry["port"] for entry in wanted(listeners=[LISTENER])["listeners"]] == [9345, 6443]


def test_pool_is_that_of_the_machines_when_there_is_no_other() -> None:
    spec = {
        "loadBalancerConfig": {"ipamType": "pool"},
        "vmNetworkConfig": {"ipPoolRefs": ["first", "second"], "gateway": "10.0.0.1", "subnetMask": "255.0.0.0"},
    }
    assert load_balancer_spec(spec, SELECTOR)["ipPool"] == "first"


def test_dhcp_has_no_pool() -> None:
    assert "ipPool" not in wanted(ipamType="dhcp")
