"""The stand-ins do what CAPRKE2 and CAPK3s did: names, conditions, status and data, record by record."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from caphv.api.object import Key, Obj, annotations_of, key_of, labels_of
from sandbox.capi import bootstrapstatus, state
from sandbox.capi.controlplane import registration_addresses
from sandbox.capi.distribution import K3S, RKE2, Distribution
from sandbox.capi.hooks import HookStep, handled_machines, next_hook_step, removal_annotations
from sandbox.capi.machineconditions import conditions_of
from sandbox.capi.nodeconfig import Node, Role, UnusableConfigError, registries, rke2_config
from sandbox.capi.plan import Member, Wait
from sandbox.capi.status import Observation, k3s_status, rke2_status
from sandbox.capi.userdata import Guest, authority_files, registries_file, render
from sandbox.guest.cloudinit import GuestError, parse_user_data
from sandbox.processes import pki
from tests.support import observed

pytestmark = pytest.mark.unit

FOLDERS = {"rancher-cluster-api-provider-rke2": RKE2, "k3s-io-cluster-api-k3s": K3S}
AUTHORITY = pki.CA.create("first")


def records(file: str, *names: str) -> list[Any]:
    found = [
        pytest.param(distribution, record, id=f"{distribution.title}-{record.name}")
        for folder, distribution in FOLDERS.items()
        if (observed.FOLDER / folder / f"{file}.yaml").exists()
        for record in observed.records(f"{folder}/{file}.yaml")
        if not names or record.name.startswith(names)
    ]
    assert found
    return found


def control_plane(distribution: Distribution, name: str, template: str, replicas: int = 3) -> Obj:
    """A control plane object whose machines are made of a template."""
    reference = {"kind": "HarvesterMachineTemplate", "name": template}
    inner = {"infrastructureRef": reference}
    return {
        "apiVersion": distribution.control_planes.api_version,
        "kind": distribution.control_planes.kind,
        "metadata": {"name": name, "namespace": "clusters", "uid": "1", "generation": 1},
        "spec": {
            "replicas": replicas,
            "version": f"v1.36.2+{'k3s1' if distribution.is_k3s else 'rke2r1'}",
            "machineTemplate": inner if distribution.is_k3s else {"spec": inner},
        },
    }


def made(distribution: Distribution, owner: Obj) -> tuple[Obj, Obj, Obj]:
    template = {
        "metadata": {"name": distribution.template_name(owner), "namespace": "clusters"},
        "spec": {"template": {"spec": {}}},
    }
    infrastructure = state.new_harvester_machine(owner, distribution, Key("clusters", "first"), template)
    config = state.new_config(owner, distribution, Key("clusters", "first"))
    machine = state.new_machine(owner, distribution, Key("clusters", "first"), (infrastructure, config))
    return machine, infrastructure, config


# Names


def base(name: str) -> str:
    """A generated name without what is random."""
    return name.rpartition("-")[0]


@pytest.mark.parametrize(("distribution", "record"), records("objects", "control-plane-machine"))
def test_a_machine_and_its_objects_are_named_like_the_real_ones(
    distribution: Distribution, record: observed.Record
) -> None:
    outcome = record.outcome
    owner = control_plane(distribution, record.input["controlPlane"], record.input["infrastructureTemplate"])
    machine, infrastructure, config = made(distribution, owner)
    names = {"machine": machine, "harvesterMachine": infrastructure, "config": config}
    for field, obj in names.items():
        assert base(key_of(obj).name) == base(outcome[field]), field
        assert len(key_of(obj).name) == len(outcome[field]), field
    assert len({key_of(obj).name for obj in names.values()}) == len({outcome[field] for field in names}) == 3
    assert machine["spec"]["infrastructureRef"]["name"] == key_of(infrastructure).name
    # The VM, and by it the Node, has the name of the HarvesterMachine.
    assert outcome["node"] == outcome["harvesterMachine"]

    assert sorted(annotations_of(machine)) == sorted(outcome["annotations"])
    for label, value in outcome.get("labels", {}).items():
        for obj in names.values():
            assert labels_of(obj)[label] == value


@pytest.mark.parametrize(("distribution", "record"), records("objects", "control-plane-machine"))
def test_the_provider_sets_these_conditions_of_a_machine(distribution: Distribution, record: observed.Record) -> None:
    types = ["AgentHealthy", "EtcdMemberHealthy", "NodeMetadataUpToDate", "UpToDate"]
    # The controller asks for none of a machine of K3s.
    assert ([] if distribution.is_k3s else types) == sorted(record.outcome["conditions"])


# Status of a control plane


def seen(distribution: Distribution, replicas: int, *, current: int, addresses: tuple[str, ...] = ()) -> Observation:
    owner = control_plane(distribution, "first", "blue", 3)
    machines = [made(distribution, owner)[0] for _ in range(replicas)]
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "Available", "UpToDate")]
    machines = [{**machine, "status": {"conditions": conditions}} for machine in machines]
    members = [Member(key_of(machine).name, current=n < current) for n, machine in enumerate(machines)]
    return Observation(owner, machines, members, Wait(), joinable=True, ready_nodes=replicas, addresses=addresses)


def test_the_status_of_rke2_is_the_real_one() -> None:
    (record,) = (
        each
        for each in observed.records("rancher-cluster-api-provider-rke2/objects.yaml")
        if each.name == "control-plane-status"
    )
    replicas = record.input["replicas"]
    status = rke2_status(seen(RKE2, replicas, current=replicas, addresses=("ENDPOINT",)))
    assert {name: status.get(name) for name in record.outcome} == record.outcome


@pytest.mark.parametrize(
    "record",
    [
        record
        for record in observed.records("k3s-io-cluster-api-k3s/objects.yaml")
        if record.name.startswith("control-plane-status")
    ],
    ids=str,
)
def test_the_status_of_k3s_leaves_out_what_is_zero(record: observed.Record) -> None:
    expected = record.outcome["status"]
    status = k3s_status(seen(K3S, record.input["replicas"], current=expected.get("updatedReplicas", 0)))
    own = {name: value for name, value in status.items() if value is not None}
    conditions = {entry["type"]: entry["status"] for entry in own.pop("conditions")}
    del own["observedGeneration"]
    assert own == expected
    assert conditions == record.outcome["conditions"]
    # A patch removes them.
    assert "unavailableReplicas" in status


# Data


def node(distribution: Distribution, given: Obj) -> Node:
    host, _, port = str(given["endpoint"]).rpartition(":")
    server = given.get("serverConfig") or {}
    agent = given.get("agentConfig") or {}
    config = {"agentConfig": agent, "files": given.get("files") or ()}
    if distribution.is_k3s:
        config["serverConfig"] = server
    else:
        # The record's class has it for all of its nodes.
        server = {"cloudProviderName": "external", **server}
    network = {"pods": {"cidrBlocks": ["10.52.0.0/16"]}}
    return Node(
        Role(given["role"]), given["version"], f"{host}:{port}", config, server, network, "TOKEN", joins_at=host
    )


def shape(text: str) -> Obj:
    """User data in the form of the records, without contents of certificates."""
    header, _, rest = text.partition("\n")
    content = yaml.safe_load(rest)
    files, config = [], None
    for file in content["write_files"]:
        fields = {name: file[name] for name in ("path", "owner", "permissions", "encoding") if name in file}
        if file["path"].endswith(("rke2/config.yaml", "k3s/config.yaml")):
            config = yaml.safe_load(file["content"])
        elif (
            "CERTIFICATE" not in file["content"]
            and "KEY" not in file["content"]
            and "kind: DaemonSet" not in file["content"]
        ):
            fields["content"] = file["content"]
        files.append(fields)
    return {"header": header, "files": files, "config": config, "commands": content["runcmd"]}


@pytest.mark.parametrize(("distribution", "record"), records("userdata", "first-server", "joining-server", "worker"))
def test_a_guest_gets_the_data_of_the_real_provider(distribution: Distribution, record: observed.Record) -> None:
    own = node(distribution, record.input)
    folder = f"/var/lib/rancher/{distribution.title}/server/tls"
    pair = AUTHORITY.pair
    authorities = [
        file
        for name in distribution.authorities.values()
        for file in authority_files(folder, name, pair.certificate, pair.key)
    ]
    extra = [] if distribution.is_k3s else [registries_file(registries({}, {})[0])]
    guest = Guest(own, own.config["files"], extra, authorities if own.role is Role.FIRST else ())
    assert shape(render(distribution, guest)) == record.outcome


def test_contents_of_files_are_indented_and_not_quoted() -> None:
    (record,) = (
        each
        for each in observed.records("rancher-cluster-api-provider-rke2/userdata.yaml")
        if each.name == "files-are-indented-not-quoted"
    )
    guest = Guest(Node(Role.WORKER, "v1.36.2+rke2r1", "10.0.0.1:6443"), record.input["files"])
    text = render(RKE2, guest)
    assert record.outcome["text"].rstrip("\n") in text

    with pytest.raises(GuestError):
        parse_user_data(text.replace("{{ v1.x }}", ""), "first")
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(text)
    assert record.outcome["validYaml"] is False


def test_one_of_several_registry_configs_is_kept() -> None:
    (record,) = (
        each
        for each in observed.records("rancher-cluster-api-provider-rke2/userdata.yaml")
        if each.name == "only-one-of-two-registry-configs-is-kept"
    )
    spec = record.input["privateRegistriesConfig"]
    secrets = {
        f"b3/{name}": {field: value.encode() for field, value in data.items()}
        for name, data in record.input["secrets"].items()
    }
    content, _ = registries(spec, secrets)
    assert len(content["configs"]) == record.outcome["configs"]
    # Which one depends on the order of a map in Go.
    ((name, config),) = content["configs"].items()
    ((other, expected),) = record.outcome["registries"]["configs"].items()
    assert name in spec["configs"]
    assert other in spec["configs"]
    assert config["auth"].keys() == expected["auth"].keys()
    assert content["mirrors"] == record.outcome["registries"]["mirrors"]


# Conditions of bootstrap objects


def statuses(conditions: list[Obj]) -> dict[str, list[Any]]:
    return {entry["type"]: [entry["status"] == "True" or entry["status"], entry.get("reason")] for entry in conditions}


@pytest.mark.parametrize("record", observed.records("rancher-cluster-api-provider-rke2/bootstrap.yaml"), ids=str)
def test_values_that_cannot_be_used_are_in_the_log_only(record: observed.Record) -> None:
    config: Obj = {"metadata": {"name": "first-aaaaa", "generation": 1}}
    given = record.input
    node = Node(Role.FIRST, given.get("version", ""), "10.0.0.1:6443", {"agentConfig": given.get("agentConfig")})

    def use() -> None:
        registries(given.get("privateRegistriesConfig") or {}, {})
        rke2_config(node)

    if "log" in record.outcome:
        with pytest.raises(UnusableConfigError, match=f"^{re.escape(record.outcome['log'])}$"):
            use()
        status = bootstrapstatus.failed_status(config, Role.FIRST, "v1beta2")
    else:
        use()
        status = bootstrapstatus.done_status(config, Role.FIRST, "v1beta2")
        assert sorted(status) == sorted(record.outcome["status"])
    assert statuses(status["conditions"]) == record.outcome["conditions"]
    if "machine" in record.outcome:
        ready = next(entry for entry in status["conditions"] if entry["type"] == "Ready")
        # The core takes it over as the Machine's BootstrapConfigReady.
        assert {name: ready[name] for name in ("status", "reason", "message")} == {
            name: record.outcome["machine"][name] for name in ("status", "reason", "message")
        }


# Deletion


def awaiting(distribution: Distribution, *, node: str = "blue-aaaaa") -> Obj:
    """A deleted machine at its hook; K3s's has it only because the provider deletes the machine."""
    machine, *_ = made(distribution, control_plane(distribution, "first", "blue"))
    assert (distribution.hook in annotations_of(machine)) is not distribution.is_k3s
    machine["metadata"]["annotations"][distribution.hook] = distribution.hook_value
    machine["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    deleting = {"type": "Deleting", "status": "True", "reason": "WaitingForPreTerminateHook"}
    machine["status"] = {"nodeRef": {"name": node} if node else {}, "conditions": [deleting]}
    return machine


@pytest.mark.parametrize(
    ("distribution", "record"), [*records("deletion", "scale-down"), *records("objects", "scale-down")]
)
def test_a_hook_is_removed_in_the_order_of_the_real_provider(
    distribution: Distribution, record: observed.Record
) -> None:
    order: list[str] = record.outcome["order"]
    machine, count, prefix = awaiting(distribution), record.input["replicas"][0], distribution.program.etcd
    (waiting,) = (n for n, step in enumerate(order) if "WaitingForPreTerminateHook" in step)
    assert f"annotation {prefix}/remove of the Node is true" == order[waiting + 1]
    assert order[waiting + 2].startswith(f"annotation {prefix}/removed-node-name of the Node")
    assert order[waiting + 3] == f"annotation {distribution.hook} of the Machine is removed"

    before = {**machine, "status": {**machine["status"], "conditions": []}}
    steps = [
        next_hook_step(before, distribution, count, False),
        next_hook_step(machine, distribution, count, False),
        next_hook_step(machine, distribution, count, True),
    ]
    assert steps == [HookStep.WAIT, HookStep.REQUEST, HookStep.REMOVE]
    # Neither the only machine nor one without Node has a member that is removed.
    assert next_hook_step(machine, distribution, 1, False) is HookStep.REMOVE
    assert next_hook_step(awaiting(distribution, node=""), distribution, count, None) is HookStep.REMOVE

    annotations = {name: value for name, value in removal_annotations(distribution).items() if value is not None}
    assert annotations == record.outcome.get("annotations", {})
    if "message" in record.outcome:
        assert record.outcome["message"].endswith(f"(hooks: {distribution.hook})")
    # RKE2's machines have the hook from the beginning, K3s's from their deletion on.
    assert (f"{distribution.hook} of the Machine is {distribution.hook_value}" in order[0]) is distribution.is_k3s


def test_rke2_waits_without_end_for_a_node_that_was_deleted() -> None:
    (record,) = (
        each
        for each in observed.records("rancher-cluster-api-provider-rke2/deletion.yaml")
        if each.name == "node-deleted-before-the-machine"
    )
    assert record.outcome["annotations"] == {RKE2.hook: RKE2.hook_value}
    assert next_hook_step(awaiting(RKE2), RKE2, 3, None) is HookStep.WAIT
    # Read of CAPK3s v0.3.1.
    assert next_hook_step(awaiting(K3S), K3S, 3, None) is HookStep.REMOVE


def test_a_deleted_cluster_of_rke2_leaves_the_excluding_annotations() -> None:
    (record,) = (
        each
        for each in observed.records("rancher-cluster-api-provider-rke2/deletion.yaml")
        if each.name == "cluster-deleted"
    )
    assert {name: value for name, value in removal_annotations(RKE2).items() if value} == record.outcome["annotations"]


def test_machines_of_rke2_register_at_the_observed_addresses() -> None:
    (record,) = (
        each
        for each in observed.records("rancher-cluster-api-provider-rke2/objects.yaml")
        if each.name == "registration-by-internal-addresses"
    )
    owner = control_plane(RKE2, "first", "blue")
    owner["spec"]["registrationMethod"] = record.input["registrationMethod"]
    ready = [{"type": "Ready", "status": "True"}]
    machines = [
        {
            "status": {
                "conditions": ready,
                "addresses": [{"type": kind, "address": place} for kind, _ in record.input["addresses"]],
            }
        }
        for place in record.outcome["availableServerIPs"]
    ]
    hosts = registration_addresses(owner, {"spec": {}}, machines)
    assert hosts == record.outcome["availableServerIPs"]
    config = rke2_config(Node(Role.SERVER, "v1.36.2+rke2r1", "ENDPOINT:6443", token="TOKEN", joins_at=hosts[0]))
    assert config["server"] == record.outcome["server"]


# Conditions of machines in their deletion


@pytest.mark.parametrize(
    "record",
    [
        record
        for record in observed.records("rancher-cluster-api-provider-rke2/deletion.yaml")
        if record.name == "scale-down"
    ],
    ids=str,
)
def test_a_deleted_machine_has_these_conditions(record: observed.Record) -> None:
    machine, *_ = made(RKE2, control_plane(RKE2, "first", "blue"))
    machine["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    machine["status"] = {"nodeRef": {"name": "blue-aaaaa"}}
    found = conditions_of(
        machine, current=True, initialized=True, provisioning=False, nodes={"blue-aaaaa"}, ready={"blue-aaaaa"}
    )
    own = {entry["type"]: [entry["status"], entry["reason"]] for entry in found}
    assert {kind: own[kind] for kind in record.outcome["conditions"]} == record.outcome["conditions"]


def test_what_is_secret_is_not_in_a_representation() -> None:
    own = Node(Role.FIRST, "v1", "10.0.0.1:6443", token="t0")
    guest = Guest(own, authorities=authority_files("/x", "server", AUTHORITY.certificate, AUTHORITY.pair.key))
    assert "t0" not in repr(guest)
    assert "PRIVATE" not in repr(guest)


def deleted(distribution: Distribution, name: str, minute: int, **annotations: str) -> Obj:
    machine = awaiting(distribution)
    machine["metadata"] |= {"name": name, "deletionTimestamp": f"2026-01-01T00:0{minute}:00Z"}
    machine["metadata"]["annotations"] |= annotations
    return machine


def handled(distribution: Distribution, *machines: Obj) -> list[str]:
    return [key_of(machine).name for machine in handled_machines(machines, distribution)]


def test_rke2_handles_the_hook_of_the_machine_that_was_deleted_first() -> None:
    """It waits for machines without the hook, and for other hooks of the machine."""
    running, *_ = made(RKE2, control_plane(RKE2, "first", "blue"))
    late, early, same = deleted(RKE2, "a", 2), deleted(RKE2, "c", 1), deleted(RKE2, "d", 1)
    assert handled(RKE2, running) == []
    assert handled(RKE2, running, late, same, early) == ["c"]

    without = deleted(RKE2, "e", 3)
    del without["metadata"]["annotations"][RKE2.hook]
    assert handled(RKE2, late, early, without) == []
    backup = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup"
    assert handled(RKE2, late, deleted(RKE2, "b", 1, **{backup: ""})) == []
    assert handled(RKE2, deleted(RKE2, "b", 3, **{backup: ""}), late) == ["a"]


def test_k3s_handles_the_hook_of_each_machine() -> None:
    assert handled(K3S, deleted(K3S, "a", 2), deleted(K3S, "b", 1)) == ["a", "b"]
