"""What the stand-ins for bootstrap and control plane providers read from objects and write into them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from caphv.api.object import Key, Obj
from sandbox.capi import state
from sandbox.capi.bootstrap import missing_prerequisite
from sandbox.capi.cloudconfig import Guest, render
from sandbox.capi.distribution import ALL, K3S, RKE2, Distribution, Node
from sandbox.capi.plan import Delete, Wait
from sandbox.capi.status import in_contract_v1beta1, status_of, version_order
from sandbox.guest.cloudinit import parse_user_data
from sandbox.guest.join import CA_FILES, CONTROL_PLANE, WORKER, join_of
from sandbox.processes import pki

pytestmark = pytest.mark.unit

CLUSTER = Key("clusters", "first")
AUTHORITY = pki.CA.create("first")
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


def made(owner: Obj, name: str = "first-cp-aaaaa", distribution: Distribution = RKE2) -> tuple[Obj, Obj, Obj]:
    """Machine, HarvesterMachine and bootstrap object as they are made."""
    template = {"metadata": {"name": "blue", "namespace": "clusters"}, "spec": {"template": {"spec": {"cpu": 2}}}}
    return (
        state.new_machine(owner, distribution, CLUSTER, name, "zone-1"),
        state.new_harvester_machine(owner, CLUSTER, name, template),
        state.new_config(owner, distribution, CLUSTER, name),
    )


def guest(config: Obj | None = None, server: Obj | None = None) -> Guest:
    node = Node("10.0.0.1:6443", config or {}, server, "t0")
    return Guest(node, "v1.36.2+rke2r1", AUTHORITY, [*FILES, *node.config.get("files", ())])


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
    machine, infrastructure, config = made(owner, distribution=K3S)
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


def test_a_control_plane_guest_gets_all_it_needs_to_join_and_the_files_of_its_config() -> None:
    config = {"agentConfig": {"kubelet": {"extraArgs": ["cloud-provider=external"]}}, "preRKE2Commands": ["true"]}
    server = {"cni": "cilium", "tlsSan": ["api.example.com"], "cloudProviderName": "external"}
    text = render(RKE2, guest(config, server))
    data = parse_user_data(text, "first-cp-aaaaa")
    join = join_of(data)
    assert join is not None
    assert (join.role, join.server, join.token, join.cni) == (CONTROL_PLANE, "https://10.0.0.1:9345", "t0", True)
    assert join.sans == ("api.example.com", "10.0.0.1")
    assert data.files["/etc/motd"].content == "welcome\n"
    rke2 = yaml.safe_load(data.files[RKE2.file].content)
    assert rke2["kubelet-arg"] == ["cloud-provider=external"]
    assert (rke2["cni"], rke2["cloud-provider-name"]) == ("cilium", "external")
    assert yaml.safe_load(text)["runcmd"][0] == "true"


@pytest.mark.parametrize("distribution", ALL, ids=lambda each: each.name)
def test_a_worker_guest_gets_no_key_of_the_authority(distribution: Distribution) -> None:
    data = parse_user_data(render(distribution, guest()), "first-md-0")
    join = join_of(data)
    assert join is not None
    # RKE2's register at a port of their own.
    port = 9345 if distribution is RKE2 else 6443
    assert (join.role, join.server, join.port) == (WORKER, f"https://10.0.0.1:{port}", port)
    assert not set(CA_FILES) & set(data.files)


def test_without_a_cni_nodes_do_not_become_ready() -> None:
    no_flannel = {"path": f"{K3S.file}.d/10-cni.yaml", "content": "flannel-backend: none\n"}
    for distribution, config, server in ((RKE2, {}, {"cni": "none"}), (K3S, {"files": [no_flannel]}, {})):
        join = join_of(parse_user_data(render(distribution, guest(config, server)), "first-cp"))
        assert join is not None
        assert not join.cni


@pytest.mark.parametrize("distribution", [RKE2, K3S])
def test_further_names_of_the_api_server_are_found(distribution: Distribution) -> None:
    join = join_of(parse_user_data(render(distribution, guest({}, {"tlsSan": ["a"]})), "first-cp"))
    assert join is not None
    assert join.sans == ("a", "10.0.0.1")


def test_nothing_secret_is_in_the_representation_of_a_guest() -> None:
    assert "t0" not in repr(guest())
    assert "PRIVATE" not in repr(guest())


def test_bootstrap_data_waits_for_infrastructure_endpoint_control_plane_and_secrets() -> None:
    worker, leader = {"metadata": {}}, {"metadata": {"labels": {"cluster.x-k8s.io/control-plane": ""}}}
    cluster: Obj = {"spec": {}}
    assert missing_prerequisite(cluster, leader, has_credentials=True) == "the infrastructure of the cluster"
    cluster["status"] = {"initialization": {"infrastructureProvisioned": True}}
    assert missing_prerequisite(cluster, leader, has_credentials=True) == "the endpoint of the control plane"
    cluster["spec"]["controlPlaneEndpoint"] = {"host": "10.0.0.1", "port": 6443}
    assert missing_prerequisite(cluster, leader, has_credentials=False) == "the CA and token of the cluster"
    assert not missing_prerequisite(cluster, leader, has_credentials=True)
    assert missing_prerequisite(cluster, worker, has_credentials=True) == "the control plane"
    cluster["status"]["conditions"] = [{"type": "ControlPlaneInitialized", "status": "True"}]
    assert not missing_prerequisite(cluster, worker, has_credentials=True)


def reported(owner: Obj, machines: list[Obj], step: Wait | Delete, *, joinable: bool) -> Obj:
    members = [
        state.member_of(machine, None, None, owner, RKE2, known=("id",), ready=("id",) if joinable else ())
        for machine in machines
    ]
    return status_of(owner, machines, members, step, joinable)


def conditions(status: Obj) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status["conditions"]}


def test_status_has_no_version_before_the_control_plane_is_initialized_and_keeps_it_after() -> None:
    owner = control_plane()
    machine, *_ = made(owner)
    machine["spec"]["providerID"] = "id"
    before = reported(owner, [machine], Wait(), joinable=False)
    assert "version" not in before
    assert "initialization" not in before
    assert conditions(before)["Available"] == "False"
    after = reported(owner, [machine], Wait(), joinable=True)
    assert after["version"] == "v1.36.2+rke2r1"
    assert conditions(after)["Available"] == "True"
    owner["status"] = after
    assert reported(owner, [machine], Wait(), joinable=False)["initialization"]["controlPlaneInitialized"]


def test_status_version_is_the_lowest_until_the_roll_out_has_ended() -> None:
    owner = control_plane(version="v1.36.10+rke2r1")
    new, *_ = made(owner)
    old, *_ = made(control_plane(version="v1.36.9+rke2r1"))
    status = reported(owner, [new, old], Wait(), joinable=True)
    assert status["version"] == "v1.36.9+rke2r1"
    assert (status["replicas"], status["upToDateReplicas"]) == (2, 1)
    assert conditions(status)["RollingOut"] == "True"
    assert conditions(status)["ScalingUp"] == "True"


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
    machine["spec"]["providerID"] = "id"
    machine["status"] = {"conditions": [{"type": "Available", "status": "True"}]}
    found = in_contract_v1beta1(reported(owner, [machine], Wait(), joinable=True))
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
    assert in_contract_v1beta1(reported(owner, [], Wait(), joinable=False))["initialized"]
