"""Talos's stand-ins: machine configurations, the next step of a control plane, and its status."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from reconciler.machine.talos import is_machine_config
from sandbox.capi.nodeconfig import UnusableConfigError
from sandbox.capi.plan import Create, Delete, Wait
from sandbox.capi.talos.machineconfig import authority, client_config, machine_config, merge, new_bundle
from sandbox.capi.talos.plan import NO_LAST, Bootstrap, Member, next_step
from sandbox.capi.talos.status import Observation, talos_status
from sandbox.guest.cloudinit import GuestError
from sandbox.guest.join import CONTROL_PLANE, WORKER
from sandbox.guest.talos import parse_machine_config

pytestmark = pytest.mark.unit

BUNDLE = new_bundle("demo")
CLUSTER: Obj = {
    "metadata": {"name": "demo", "namespace": "team-a"},
    "spec": {
        "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
        "controlPlaneEndpoint": {"host": "172.16.0.5", "port": 6443},
    },
}
MACHINE: Obj = {
    "metadata": {"name": "demo-cp-xyz"},
    "spec": {"version": "v1.36.2", "infrastructureRef": {"name": "demo-vm-abc"}},
}


def config(kind: str = "controlplane", **spec: Any) -> str:
    return machine_config({"generateType": kind, "talosVersion": "v1.12", **spec}, CLUSTER, MACHINE, BUNDLE)


def test_a_control_plane_gets_the_keys_of_the_cluster() -> None:
    text = config()
    assert is_machine_config(text)
    machine = parse_machine_config(text)
    assert machine.join.role == CONTROL_PLANE
    assert machine.join.server == "https://172.16.0.5:6443"
    assert machine.join.version == "v1.36.2"
    assert machine.join.sans == ("172.16.0.5",)
    assert machine.join.cni
    assert machine.join.authority == authority(BUNDLE, "k8s")
    assert machine.authority == authority(BUNDLE, "os")
    assert yaml.safe_load(text)["cluster"]["network"]["podSubnets"] == ["10.42.0.0/16"]


def test_a_worker_gets_no_key() -> None:
    text = config("worker")
    assert is_machine_config(text)
    machine = parse_machine_config(text)
    assert (machine.join.role, machine.join.authority, machine.authority) == (WORKER, None, None)
    assert machine.join.ca.encode() == authority(BUNDLE, "k8s").certificate
    assert machine.join.token == parse_machine_config(config()).join.token


@pytest.mark.parametrize(
    ("version", "source", "name"),
    [
        ("v1.12", "MachineName", "demo-cp-xyz"),
        ("v1.12", "InfrastructureName", "demo-vm-abc"),
        ("v1.11", "InfrastructureName", "demo-vm-abc"),
        ("v1.12", "", ""),
    ],
)
def test_the_hostname_comes_from_its_source(version: str, source: str, name: str) -> None:
    text = config(talosVersion=version, hostname={"source": source})
    documents = list(yaml.safe_load_all(text))
    assert len(documents) == (2 if name and version == "v1.12" else 1)
    assert parse_machine_config(text).hostname == name


def test_patches_are_merged_by_document() -> None:
    patches = [
        "machine: {install: {disk: /dev/vda}}\ncluster: {network: {cni: {name: none}, podSubnets: [10.9.0.0/16]}}\n",
        "apiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: 172.16.0.5\nlink: eth0\n",
        "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: other\n",
    ]
    text = config(strategicPatches=patches, hostname={"source": "MachineName"})
    main, hostname, address = yaml.safe_load_all(text)
    assert main["machine"]["install"] == {"disk": "/dev/vda", "wipe": False}
    assert main["cluster"]["network"]["podSubnets"] == ["10.9.0.0/16"]
    assert (hostname["kind"], hostname["hostname"]) == ("HostnameConfig", "other")
    assert address["kind"] == "Layer2VIPConfig"
    assert not parse_machine_config(text).join.cni


def test_a_patch_appends_to_lists() -> None:
    assert merge({"a": [1], "b": {"c": 1}}, {"a": [2], "b": {"d": 2}}) == {"a": [1, 2], "b": {"c": 1, "d": 2}}


def test_data_of_a_user_are_taken_as_they_are() -> None:
    text = config()
    assert yaml.safe_load(config("none", data=text)) == yaml.safe_load(text)
    with pytest.raises(UnusableConfigError, match="failed to specify config data"):
        config("none")
    with pytest.raises(UnusableConfigError, match="unknown generate type"):
        config("join")


def test_the_client_has_a_certificate_of_the_machine_api() -> None:
    found = client_config("demo", BUNDLE)
    context = found["contexts"][found["context"]]
    assert context["ca"] == BUNDLE["certs"]["os"]["crt"]
    assert context["crt"] != context["ca"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: v1alpha1\nmachine: {type: init}\n", "machine.type"),
        ("version: v1alpha1\nmachine: {type: worker}\n", "machine.token"),
        ("version: v1alpha1\nmachine: [\n", "invalid YAML"),
    ],
)
def test_a_guest_reports_a_configuration_that_it_cannot_use(text: str, problem: str) -> None:
    with pytest.raises(GuestError, match=problem):
        parse_machine_config(text)


def test_a_control_plane_without_its_key_is_refused() -> None:
    document = yaml.safe_load(config())
    document["machine"]["ca"]["key"] = ""
    with pytest.raises(GuestError, match=r"machine\.ca\.key"):
        parse_machine_config(yaml.safe_dump(document))


@given(
    count=st.integers(0, 5),
    outdated=st.sets(st.integers(0, 4)),
    replicas=st.sampled_from((1, 3, 5)),
    surge=st.sampled_from((0, 1)),
)
def test_a_control_plane_comes_to_what_is_wanted(count: int, outdated: set[int], replicas: int, surge: int) -> None:
    members = [Member(f"old-{n}", f"{n:03}", current=n not in outdated) for n in range(count)]
    bootstrapped = False
    for number in range(40):
        step = next_step(members, replicas, surge, bootstrapped=bootstrapped, etcd_problem="")
        match step:
            case Create():
                members.append(Member(f"new-{number}", f"{100 + number}"))
            case Delete(name):
                members = [member for member in members if member.name != name]
            case Bootstrap():
                assert len(members) == replicas
                bootstrapped = True
            case Wait():
                break
        assert len(members) <= max(count, replicas + 1)
    assert isinstance(step, Wait)
    if step.reason == NO_LAST:
        # With one machine and no surge, the provider waits without end.
        assert (replicas, surge) == (1, 0)
        return
    assert len(members) == replicas
    assert all(member.current for member in members)


def test_no_machine_is_deleted_while_etcd_or_a_machine_is_not_ready() -> None:
    members = [Member(f"cp-{n}", str(n)) for n in range(4)]

    def step(members: list[Member], problem: str = "") -> object:
        return next_step(members, 3, 1, bootstrapped=True, etcd_problem=problem)

    assert step(members) == Delete("cp-0")
    assert step([*members[:3], Member("cp-3", "3", preferred=True)]) == Delete("cp-3")
    assert step(members, "no quorum") == Wait("no quorum")
    assert isinstance(step([*members[:3], Member("cp-3", joined=False)]), Wait)
    assert isinstance(step([*members[:3], Member("cp-3", deleting=True)]), Wait)


def machine(name: str, ready: str = "True") -> Obj:
    return {
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"version": "v1.36.2"},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def states(status: Obj) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status["conditions"]}


def test_status_from_the_first_machine_to_a_cluster_that_works() -> None:
    control_plane: Obj = {"metadata": {"name": "cp", "namespace": "team-a"}, "spec": {"replicas": 1}}
    before = talos_status(Observation("demo", control_plane, [], etcd_problem="no etcd"))
    assert (before["ready"], before["initialized"], before["bootstrapped"]) == (False, False, False)
    assert before["replicas"] is None
    assert states(before)["Ready"] == "False"

    after = talos_status(
        Observation("demo", control_plane, [machine("one")], bootstrapped=True, answers=True, ready_nodes=1)
    )
    assert (after["ready"], after["initialized"], after["version"]) == (True, True, "v1.36.2")
    assert (after["replicas"], after["readyReplicas"], after["unavailableReplicas"]) == (1, 1, None)
    assert set(states(after).values()) == {"True"}

    deleted = {**control_plane, "status": after}
    deleted["metadata"] = {**control_plane["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    last = talos_status(Observation("demo", deleted, [machine("one", "False")], bootstrapped=True))
    assert (last["ready"], last["initialized"], last["unavailableReplicas"]) == (False, True, 1)
    assert states(last)["Resized"] == "False"
