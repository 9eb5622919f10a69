"""Which machines serve the workload API and have etcd, by labels of Cluster API and of Rancher's releases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.clusterapi import has_etcd, has_rancher_etcd, is_control_plane, is_of_rancher, is_server
from caphv.api.object import Obj

pytestmark = pytest.mark.unit

CONTROL_PLANE, NAME = "cluster.x-k8s.io/control-plane", "cluster.x-k8s.io/control-plane-name"
RANCHER = {role: f"rke.cattle.io/{role}-role" for role in ("control-plane", "etcd", "worker")}
# Rancher labels the template of a MachineDeployment so; pre-releases of 2.8 used the name.
KEYS = {"2.14": CONTROL_PLANE, "2.8 pre-release": NAME}


BY_RANCHER: Obj = {"spec": {"controlPlaneRef": {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "c"}}}
BY_OTHERS: Obj = {"spec": {"controlPlaneRef": {"apiGroup": "example.com", "kind": "RKEControlPlane", "name": "c"}}}


def machine(**labels: str) -> Obj:
    return {"metadata": {"name": "m", "labels": {**labels}}}


def of_rancher(*roles: str, label: str = CONTROL_PLANE) -> Obj:
    labels = {RANCHER[role]: "true" for role in roles}
    return machine(**labels, **({label: "true"} if "control-plane" in roles else {}))


def roles_of(obj: Obj, cluster: Obj | None) -> tuple[bool, bool, bool]:
    return is_control_plane(obj, cluster), has_etcd(obj, cluster), is_server(obj, cluster)


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
    assert roles_of(obj, BY_RANCHER) == (serves, stores, serves or stores)
    assert has_rancher_etcd(obj, BY_RANCHER) is stores


@pytest.mark.parametrize("value", ["", "true", "anything"])
def test_other_providers_have_etcd_on_each_control_plane_machine(value: str) -> None:
    obj = machine(**{CONTROL_PLANE: value})
    assert is_control_plane(obj, None)
    assert has_etcd(obj, None)
    assert not has_rancher_etcd(obj, None)


def test_a_role_that_is_not_true_is_none() -> None:
    obj = machine(**dict.fromkeys(RANCHER.values(), "false"))
    assert not is_server(obj, BY_RANCHER)
    assert has_etcd(machine(**{CONTROL_PLANE: "", RANCHER["etcd"]: "false"}), BY_RANCHER)


def test_nothing_without_labels() -> None:
    for cluster in (None, BY_RANCHER):
        assert not is_server({"metadata": {"name": "m"}}, cluster)
        assert not is_server({"metadata": {"name": "m", "labels": None}}, cluster)


@given(st.sets(st.sampled_from(list(RANCHER))), st.booleans())
def test_what_stops_last_is_all_that_the_api_needs(roles: set[str], labelled: bool) -> None:
    obj = of_rancher(*sorted(roles))
    if labelled:
        obj["metadata"]["labels"][CONTROL_PLANE] = "true"
    serves, stores, stops_last = roles_of(obj, BY_RANCHER)
    assert stops_last is (serves or stores)
    assert stores or not has_rancher_etcd(obj, BY_RANCHER)


@given(st.sets(st.sampled_from([*RANCHER.values(), NAME])), st.booleans(), st.sampled_from([None, BY_OTHERS]))
def test_labels_of_rancher_mean_nothing_in_clusters_of_others(
    labels: set[str], labelled: bool, cluster: Obj | None
) -> None:
    obj = machine(**dict.fromkeys(labels, "true"), **({CONTROL_PLANE: ""} if labelled else {}))
    assert roles_of(obj, cluster) == (labelled, labelled, labelled)
    assert not has_rancher_etcd(obj, cluster)


@pytest.mark.parametrize("reference", [{"apiGroup": "rke.cattle.io"}, {"apiVersion": "rke.cattle.io/v1"}])
def test_a_machine_or_its_cluster_shows_that_rancher_provisions_it(reference: dict[str, str]) -> None:
    obj = of_rancher("etcd")
    assert not is_server(obj, None)
    obj["spec"] = {"bootstrap": {"configRef": {**reference, "kind": "RKEBootstrap", "name": "m"}}}
    assert roles_of(obj, None) == (False, True, True)
    assert is_of_rancher({"spec": {"controlPlaneRef": {**reference, "kind": "RKEControlPlane", "name": "c"}}})
    assert not is_of_rancher({"spec": {"controlPlaneRef": {**reference, "kind": "Other", "name": "c"}}})
    assert not is_of_rancher(None)
