"""What the stand-ins for bootstrap and control plane providers read from objects and write into them."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from sandbox.capi import state
from sandbox.capi.bootstrap import role_of
from sandbox.capi.controlplane import registration_addresses
from sandbox.capi.distribution import K3S, RKE2, Distribution
from sandbox.capi.nodeconfig import Role
from sandbox.capi.plan import Delete, Wait
from sandbox.capi.status import Observation, rke2_status, v1beta1_status, version_order

pytestmark = pytest.mark.unit

CLUSTER = Key("clusters", "first")
FILES = [{"path": "/etc/motd", "content": "welcome\n", "permissions": "0644"}]


def control_plane(**spec: Any) -> Obj:
    return {
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
        "kind": "RKE2ControlPlane",
        "metadata": {"name": "first-cp", "namespace": "clusters", "uid": "1", "generation": 2},
        "spec": {
            "replicas": 3,
            "version": "v1.36.2+rke2r1",
            "rolloutStrategy": {},
            "machineTemplate": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"infrastructureRef": {"apiGroup": "g", "kind": "HarvesterMachineTemplate", "name": "blue"}},
            },
            "serverConfig": {"cni": "calico"},
            "files": FILES,
            **spec,
        },
    }


def made(owner: Obj, distribution: Distribution = RKE2) -> tuple[Obj, Obj, Obj]:
    """Machine, HarvesterMachine and bootstrap object as they are made."""
    template = {"metadata": {"name": "blue", "namespace": "clusters"}, "spec": {"template": {"spec": {"cpu": 2}}}}
    infrastructure = state.new_harvester_machine(owner, distribution, CLUSTER, template)
    config = state.new_config(owner, distribution, CLUSTER)
    return state.new_machine(owner, distribution, CLUSTER, (infrastructure, config), "zone-1"), infrastructure, config


def of_k3s(inner: Obj) -> Obj:
    """The control plane of K3s, with this in the spec that its bootstrap objects get."""
    reference = {"apiGroup": "g", "apiVersion": "g/v1", "kind": "HarvesterMachineTemplate", "name": "blue"}
    return {
        "apiVersion": K3S.control_planes.api_version,
        "kind": K3S.control_planes.kind,
        "metadata": {"name": "first-cp", "namespace": "clusters", "uid": "1", "generation": 2},
        "spec": {
            "replicas": 3,
            "version": "v1.36.2",
            "machineTemplate": {"infrastructureRef": reference},
            "kthreesConfigSpec": inner,
        },
    }


def test_what_was_just_made_is_current() -> None:
    owner = control_plane()
    assert state.is_current(*made(owner), owner, RKE2)


def test_machines_of_k3s_are_made_of_one_object_of_the_control_plane() -> None:
    inner = {"serverConfig": {"tlsSan": ["a"]}, "files": FILES}
    owner = of_k3s(inner)
    machine, infrastructure, config = made(owner, K3S)
    assert config["spec"] == inner
    assert config["kind"] == machine["spec"]["bootstrap"]["configRef"]["kind"] == K3S.configs.kind
    assert K3S.server_spec(owner) == {"tlsSan": ["a"]}
    assert state.is_current(machine, infrastructure, config, owner, K3S)
    assert not state.is_current(machine, infrastructure, config, of_k3s({"files": []}), K3S)


@pytest.mark.parametrize(
    ("strategy", "surge"), [({}, 1), ({"rollingUpdate": {"maxSurge": 0}}, 0), ({"rollingUpdate": {"maxSurge": 3}}, 1)]
)
def test_a_roll_out_surges_by_one_machine_at_most(strategy: Obj, surge: int) -> None:
    assert RKE2.max_surge(control_plane(rolloutStrategy=strategy)) == surge
    assert K3S.max_surge(of_k3s({})) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": "v1.36.3+rke2r1"},
        {"serverConfig": {"cni": "cilium"}},
        {"files": []},
        {"preRKE2Commands": ["true"]},
        {"machineTemplate": {"spec": {"infrastructureRef": {"apiGroup": "g", "kind": "k", "name": "green"}}}},
    ],
)
def test_a_change_of_what_machines_are_made_of_makes_them_outdated(change: Obj) -> None:
    assert not state.is_current(*made(control_plane()), control_plane(**change), RKE2)


def test_a_change_of_replicas_or_of_labels_does_not() -> None:
    assert state.is_current(*made(control_plane()), control_plane(replicas=5), RKE2)


def test_a_machine_refers_to_its_two_objects_and_carries_the_labels_of_the_template() -> None:
    machine, harvester_machine, config = made(control_plane())
    assert machine["spec"]["infrastructureRef"]["name"] == harvester_machine["metadata"]["name"]
    assert machine["spec"]["bootstrap"]["configRef"]["name"] == config["metadata"]["name"]
    assert machine["spec"]["failureDomain"] == "zone-1"
    for obj in (machine, harvester_machine, config):
        assert obj["metadata"]["labels"]["team"] == "a"
        assert obj["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"] == "first"
    annotations = harvester_machine["metadata"]["annotations"]
    assert annotations["cluster.x-k8s.io/cloned-from-name"] == "blue"
    # Only the Machine may be controlled: the core takes the others over from their first owner.
    assert not any("controller" in owner for owner in config["metadata"]["ownerReferences"])


@pytest.mark.parametrize(
    ("statuses", "unhealthy"),
    [(("False", "False"), True), (("False", None), False), (("True", "False"), False), ((None, None), False)],
)
def test_a_machine_is_unhealthy_when_its_health_check_has_marked_it(
    statuses: tuple[str | None, str | None], unhealthy: bool
) -> None:
    owner = control_plane()
    machine, *others = made(owner)
    kinds = ("HealthCheckSucceeded", "OwnerRemediated")
    pairs = zip(kinds, statuses, strict=True)
    machine["status"] = {"conditions": [{"type": kind, "status": status} for kind, status in pairs if status]}
    assert state.member_of(machine, *others, owner, RKE2, known=(), ready=()).unhealthy is unhealthy


def reported(owner: Obj, machines: list[Obj], step: Wait | Delete, *, joinable: bool) -> Obj:
    return rke2_status(observed_state(owner, machines, step, joinable=joinable))


def observed_state(owner: Obj, machines: list[Obj], step: Wait | Delete, *, joinable: bool) -> Observation:
    members = [
        state.member_of(machine, None, None, owner, RKE2, known=("id",), ready=("id",) if joinable else ())
        for machine in machines
    ]
    return Observation(owner, machines, members, step, joinable=joinable)


def conditions(status: Obj) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status["conditions"]}


def with_conditions(machine: Obj, **statuses: str) -> Obj:
    conditions = [{"type": kind, "status": status} for kind, status in statuses.items()]
    return {**machine, "status": {"conditions": conditions}}


def test_status_has_no_version_before_a_machine_is_ready_and_remains_initialized() -> None:
    owner = control_plane()
    machine, *_ = made(owner)
    before = reported(owner, [machine], Wait(), joinable=False)
    assert not {"version", "initialization"} & before.keys()
    assert conditions(before)["EtcdClusterHealthy"] == "Unknown"
    assert "Available" not in conditions(before)

    waiting = reported(owner, [machine], Wait(), joinable=True)
    assert "version" not in waiting
    assert conditions(waiting)["Available"] == "False"

    after = reported(owner, [with_conditions(machine, Ready="True")], Wait(), joinable=True)
    assert after["version"] == "v1.36.2+rke2r1"
    assert conditions(after)["Available"] == "True"
    owner["status"] = after
    assert reported(owner, [machine], Wait(), joinable=False)["initialization"]["controlPlaneInitialized"]


def test_status_version_is_the_lowest_until_the_roll_out_has_ended() -> None:
    owner = control_plane(version="v1.36.10+rke2r1")
    new, *_ = made(owner)
    old, *_ = made(control_plane(version="v1.36.9+rke2r1"))
    machines = [
        with_conditions(new, Ready="True", UpToDate="True"),
        with_conditions(old, Ready="True", UpToDate="False"),
    ]
    status = reported(owner, machines, Wait(), joinable=True)
    assert status["version"] == "v1.36.9+rke2r1"
    assert (status["replicas"], status["upToDateReplicas"]) == (2, 1)
    assert conditions(status)["RollingOut"] == "True"
    assert conditions(status)["ScalingUp"] == "True"
    assert conditions(status)["MachinesUpToDate"] == "False"


def test_versions_of_one_kubernetes_are_ordered_by_their_rke2_release() -> None:
    versions = ["v1.36.3+rke2r2", "v1.36.3+rke2r1", "v1.35.10+rke2r1"]
    assert sorted(versions, key=version_order) == versions[::-1]


def test_a_condition_keeps_its_time_for_as_long_as_its_status() -> None:
    owner = control_plane()
    first = reported(owner, [], Wait(), joinable=True)
    for entry in first["conditions"]:
        entry["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    owner["status"] = first
    assert reported(owner, [], Wait(), joinable=True) == first


def test_the_older_contract_has_other_words_for_the_same_status() -> None:
    owner = control_plane()
    machine, *_ = made(owner)
    machine = with_conditions(machine, Ready="True", Available="True", UpToDate="True")
    found = v1beta1_status(observed_state(owner, [machine], Wait(), joinable=True))
    assert {name: found[name] for name in ("initialized", "ready", "replicas", "updatedReplicas")} == {
        "initialized": True,
        "ready": True,
        "replicas": 1,
        "updatedReplicas": 1,
    }
    assert found["unavailableReplicas"] == 0
    assert not {"initialization", "availableReplicas", "upToDateReplicas"} & found.keys()
    # Once initialized, always initialized, whatever a later look finds.
    owner["status"] = found
    assert v1beta1_status(observed_state(owner, [], Wait(), joinable=False))["initialized"]


def test_rke2_machines_join_at_addresses_of_the_registration_method() -> None:
    cluster: Obj = {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}
    addresses = [{"type": "ExternalIP", "address": "10.1.0.1"}, {"type": "InternalIP", "address": "10.2.0.1"}]
    status = {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]}
    machines = [{"status": status}, {"status": {"addresses": addresses}}]
    expected = {
        "": ["10.0.0.1"],
        "control-plane-endpoint": ["10.0.0.1"],
        "internal-first": ["10.1.0.1"],
        "internal-only-ips": ["10.2.0.1"],
        "external-only-ips": ["10.1.0.1"],
        "address": ["rke2.example.com"],
    }
    for method, hosts in expected.items():
        owner = control_plane(registrationMethod=method, registrationAddress="rke2.example.com")
        assert registration_addresses(owner, cluster, machines) == hosts, method


def test_before_the_control_plane_is_initialized_only_its_oldest_machine_gets_data() -> None:
    def named(name: str, created: str, *, control_plane: bool = True) -> Obj:
        labels = {"cluster.x-k8s.io/control-plane": ""} if control_plane else {}
        return {"metadata": {"name": name, "namespace": "x", "creationTimestamp": created, "labels": labels}}

    first, second = named("b", "2026-01-01T00:00:00Z"), named("a", "2026-01-01T00:01:00Z")
    worker = named("w", "2026-01-01T00:00:00Z", control_plane=False)
    cluster: Obj = {"status": {}}
    roles = [role_of(cluster, machine, [second, first]) for machine in (first, second, worker)]
    assert roles == [Role.FIRST, None, None]

    cluster["status"]["conditions"] = [{"type": "ControlPlaneInitialized", "status": "True"}]
    roles = [role_of(cluster, machine, [second, first]) for machine in (first, second, worker)]
    assert roles == [Role.SERVER, Role.SERVER, Role.WORKER]
