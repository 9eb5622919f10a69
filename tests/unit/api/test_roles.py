"""Which machines serve the workload API and have etcd, by labels of Cluster API and of Rancher's releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.clusterapi import has_etcd, has_rancher_etcd, is_control_plane, is_server
from caphv.api.object import Obj

pytestmark = pytest.mark.unit

CONTROL_PLANE, NAME = "cluster.x-k8s.io/control-plane", "cluster.x-k8s.io/control-plane-name"
RANCHER = {role: f"rke.cattle.io/{role}-role" for role in ("control-plane", "etcd", "worker")}
# Rancher labels the template of a MachineDeployment so; pre-releases of 2.8 used the name.
KEYS = {"2.14": CONTROL_PLANE, "2.8 pre-release": NAME}


def machine(**labels: str) -> Obj:
    return {"metadata": {"name": "m", "labels": {**labels}}}


def of_rancher(*roles: str, label: str = CONTROL_PLANE) -> Obj:
    labels = {RANCHER[role]: "true" for role in roles}
    return machine(**labels, **({label: "true"} if "control-plane" in roles else {}))


@pytest.mark.parametrize("release", KEYS)
@pytest.mark.parametrize(
    ("roles", "serves", "stores"),
    [
        (("control-plane", "etcd", "worker"), True, True),
        (("control-plane", "etcd"), True, True),
        (("control-plane",), True, False),
        (("etcd",), False, True),
        (("etcd", "worker"), False, True),
        (("worker",), False, False),
    ],
)
def test_roles_of_ranchers_pools(release: str, roles: tuple[str, ...], serves: bool, stores: bool) -> None:
    obj = of_rancher(*roles, label=KEYS[release])
    assert (is_control_plane(obj), has_etcd(obj), is_server(obj)) == (serves, stores, serves or stores)
    assert has_rancher_etcd(obj) is stores


@pytest.mark.parametrize("value", ["", "true", "anything"])
def test_other_providers_have_etcd_on_each_control_plane_machine(value: str) -> None:
    obj = machine(**{CONTROL_PLANE: value})
    assert is_control_plane(obj)
    assert has_etcd(obj)
    assert not has_rancher_etcd(obj)


def test_a_role_that_is_not_true_is_none() -> None:
    obj = machine(**dict.fromkeys(RANCHER.values(), "false"))
    assert not is_server(obj)
    assert has_etcd(machine(**{CONTROL_PLANE: "", RANCHER["etcd"]: "false"}))


def test_nothing_without_labels() -> None:
    assert not is_server({"metadata": {"name": "m"}})
    assert not is_server({"metadata": {"name": "m", "labels": None}})


@given(st.sets(st.sampled_from(list(RANCHER))), st.booleans())
def test_what_stops_last_is_all_that_the_api_needs(roles: set[str], labelled: bool) -> None:
    obj = of_rancher(*sorted(roles))
    if labelled:
        obj["metadata"]["labels"][CONTROL_PLANE] = "true"
    assert is_server(obj) is (is_control_plane(obj) or has_etcd(obj))
    assert not (has_rancher_etcd(obj) and not has_etcd(obj))
