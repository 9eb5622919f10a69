"""A person who runs the command that is printed, unchanged, ends the fault that it is printed for."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from caphv.api import remedies
from caphv.api.names import FORCE_DELETE_ANNOTATION, HEARTBEAT_LEASE, PAUSED_ANNOTATION, ZONE_LABEL
from caphv.api.object import (
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Obj,
    Resource,
    annotations_of,
    labels_of,
)
from caphv.runtime.kubeconfig import parse_kubeconfig, token_claims
from commands.main import cli
from sandbox.harvester import kinds
from sandbox.processes.pki import CA
from tests.support.printed import Person
from tests.support.reconciler.case import (
    CLUSTER_LABEL,
    CLUSTERS,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINES,
    MACHINES,
    Case,
    machine_spec,
)
from tests.support.reconciler.conditions import is_false, is_ready, is_true
from tests.support.waiting import until

pytestmark = pytest.mark.integration

TOPOLOGY = {"classRef": {"name": "class"}, "version": "v1.36.2"}
WITH_AND_WITHOUT_TOPOLOGY = pytest.mark.parametrize("topology", [False, True], ids=["objects", "topology"])


@pytest.fixture
def person(case: Case, tmp_path: Path) -> Person:
    return Person(tmp_path, case.environment.management, case.environment.harvester)


def reference(case: Case) -> str:
    return f"{case.name}/{case.name}"


async def with_topology(case: Case) -> None:
    await case.patch(CLUSTERS, case.name, {"spec": {"topology": TOPOLOGY}})


# The management cluster


@WITH_AND_WITHOUT_TOPOLOGY
async def test_a_paused_cluster_is_resumed(case: Case, person: Person, topology: bool) -> None:
    await case.ready_cluster()
    if topology:
        await with_topology(case)
    await case.pause(paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    output = await person.sees(f"caphv delete {reference(case)} --dry-run")
    await person.follows(remedies.RESUME_CLUSTER, output)
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("Paused", "NotPaused"))


@pytest.mark.parametrize("resource", [CLUSTERS, HARVESTER_CLUSTERS], ids=lambda kind: kind.kind)
async def test_an_annotation_that_pauses_a_cluster_is_removed(case: Case, person: Person, resource: Resource) -> None:
    """On a Cluster it stops the core, not the provider."""
    await case.ready_cluster()
    await case.pause_object(resource, case.name, paused=True)
    if resource == HARVESTER_CLUSTERS:
        await case.until(resource, case.name, is_true("Paused"))
    output = await person.sees(f"caphv delete {reference(case)} --dry-run")
    await person.follows(remedies.REMOVE_ANNOTATION, output)
    assert PAUSED_ANNOTATION not in annotations_of(await case.get(resource, case.name))
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("Paused", "NotPaused"))
    assert "paused" not in await person.sees(f"caphv delete {reference(case)} --dry-run")


async def test_an_annotation_that_holds_up_the_deletion_of_a_machine_is_removed(case: Case, person: Person) -> None:
    await case.ready_cluster()
    await case.ready_machine("held")
    await case.pause_object(HARVESTER_MACHINES, "held", paused=True)
    await case.until(HARVESTER_MACHINES, "held", is_true("Paused"))
    await case.ask_deletion(HARVESTER_MACHINES, "held")
    await case.ask_deletion(MACHINES, "held")
    output = await person.sees(f"caphv delete {reference(case)} --explain", status=1)
    await person.follows(remedies.REMOVE_ANNOTATION, output)
    await case.until_gone(HARVESTER_MACHINES, "held")


async def test_an_annotation_that_would_leave_vms_behind_is_removed(case: Case, person: Person) -> None:
    await case.ready_cluster()
    dangerous = {"metadata": {"annotations": {FORCE_DELETE_ANNOTATION: "true"}}}
    await case.patch(HARVESTER_CLUSTERS, case.name, dangerous)
    output = await person.sees(f"caphv doctor {reference(case)}")
    await person.follows(remedies.REMOVE_ANNOTATION, output)
    assert "force-delete" not in await person.sees(f"caphv doctor {reference(case)}")


def webhook_configuration(name: str) -> Obj:
    """Sends nothing: no object has the label."""
    service = {"namespace": "caphv-system", "name": "caphv-webhook-service"}
    webhook = {
        "name": "vharvestermachine.kb.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service, "caBundle": base64.b64encode(CA.create(name).certificate).decode()},
        "objectSelector": {"matchLabels": {"none": "none"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
        "sideEffects": "None",
    }
    resource = VALIDATING_WEBHOOK_CONFIGURATIONS
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**head, "metadata": {"name": name}, "webhooks": [webhook]}


async def test_webhooks_that_another_installation_left_are_deleted(case: Case, person: Person) -> None:
    await case.ready_cluster()
    own, left = "caphv-validating-webhook-configuration", "validating-webhook-configuration"
    try:
        for name in (own, left):
            await case.management.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook_configuration(name))
        output = await person.sees(f"caphv doctor {reference(case)}", status=1)
        await person.follows(remedies.DELETE_WEBHOOKS, output)
        assert "another installation" not in await person.sees(f"caphv doctor {reference(case)}")
        await case.management.get(VALIDATING_WEBHOOK_CONFIGURATIONS, own)
    finally:
        await case.management.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, own)


async def test_what_a_deleted_cluster_left_behind_is_deleted(case: Case, person: Person) -> None:
    await case.identity()
    labels = {CLUSTER_LABEL: case.name}
    await case.create(HARVESTER_MACHINES, "lone", machine_spec(), labels=labels)
    output = await person.sees(f"caphv delete {reference(case)} --explain", status=1)
    await person.follows(remedies.DELETE_OBJECT, output)
    await case.until_gone(HARVESTER_MACHINES, "lone")
    output = await person.sees(f"caphv delete {reference(case)} --explain")
    assert "lone" not in output


async def test_a_machine_without_a_node_is_replaced_by_its_owner(case: Case, person: Person) -> None:
    """The test is the core here, which tests/e2e runs for real. The provider of RKE2 names a Machine as it likes."""
    await case.ready_cluster()
    await case.ready_machine("lost", machine_name="lost-machine")
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "lost")
    await case.until(HARVESTER_MACHINES, "lost", is_false("VMProvisioningReady", "MachineNotFound"))
    output = await person.sees(f"caphv status {reference(case)}", status=1)
    follows = asyncio.create_task(person.follows(remedies.DELETE_MACHINE, output))
    await case.until(MACHINES, "lost-machine", lambda obj: obj["metadata"].get("deletionTimestamp"))
    await case.delete_machine("lost", "lost-machine")
    await follows
    assert "lost" not in await person.sees(f"caphv status {reference(case)}")


async def test_a_wrong_variable_of_a_topology_is_corrected(case: Case, person: Person) -> None:
    """The core, which tests/e2e runs, makes another machine of the corrected variable."""
    await case.ready_cluster()
    variables = [{"name": "vmImage", "value": "default/absent"}]
    await case.patch(CLUSTERS, case.name, {"spec": {"topology": {**TOPOLOGY, "variables": variables}}})
    absent = {"volumeType": "image", "imageName": "default/absent", "volumeSize": "40Gi", "bootOrder": 0}
    await case.create_machine("wrong", volumes=[absent])
    await case.until(HARVESTER_MACHINES, "wrong", is_false("VMProvisioningReady", "VMProvisioningFailed"))
    output = await person.sees(f"caphv status {reference(case)}", status=1)
    await person.follows(remedies.EDIT_CLUSTER, output, editor="sed -i s/absent/sles-15/")
    cluster = await case.get(CLUSTERS, case.name)
    assert cluster["spec"]["topology"]["variables"] == [{"name": "vmImage", "value": "default/sles-15"}]
    follows = asyncio.create_task(person.follows(remedies.DELETE_MACHINE, output))
    await case.until(MACHINES, "wrong", lambda obj: obj["metadata"].get("deletionTimestamp"))
    await case.delete_machine("wrong")
    await follows
    assert "wrong" not in await person.sees(f"caphv status {reference(case)}")


async def test_a_wrong_pool_of_a_cluster_without_topology_is_corrected(case: Case, person: Person) -> None:
    pool = await case.pool("right", 1, 5)
    await case.cluster(vmNetworkConfig=case.vm_network("absent"))
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("VMIPPoolReady", "VMIPPoolNotFound"))
    output = await person.sees(f"caphv status {reference(case)}", status=1)
    await person.follows(remedies.EDIT_OBJECT, output, editor=f"sed -i 's/- absent/- {pool}/'")
    cluster = await case.ready()
    assert cluster["spec"]["vmNetworkConfig"]["ipPoolRefs"] == [pool]


async def test_a_cluster_whose_harvester_is_lost_is_deleted(
    case: Case, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the deletion had waited for a quarter of an hour.
    monkeypatch.setattr("operations.change.deletionreport.PATIENCE", timedelta(0))
    await case.ready_cluster()
    await case.identity(case.environment.identity("no-such-token"))
    refused = is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed")
    await case.until(HARVESTER_CLUSTERS, case.name, refused)
    await case.ask_deletion(CLUSTERS, case.name)
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    explain = ["delete", reference(case), "--explain", "--kubeconfig", str(person.kubeconfig("management"))]
    explained = await asyncio.to_thread(CliRunner().invoke, cli, explain)
    await person.follows(remedies.FORCE_DELETION, explained.output)
    await case.until_gone(HARVESTER_CLUSTERS, case.name)
    await case.ask_deletion(SERVICES, case.balancer)


async def test_a_provider_that_would_set_finalizers_again_is_stopped(case: Case, person: Person) -> None:
    await case.ready_cluster()
    labels = {"app": "caphv"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "manager", "image": "caphv"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "caphv-controller-manager", "namespace": case.name}
    await case.management.create(DEPLOYMENTS, {"metadata": metadata, "spec": spec})
    lease = {"holderIdentity": "one", "leaseDurationSeconds": 600, "renewTime": "2126-01-01T00:00:00.000000Z"}
    place = {"name": HEARTBEAT_LEASE, "namespace": case.name}
    await case.management.create(LEASES, {"metadata": place, "spec": lease})
    # That of the environment has a Lease, too, once a test has created its namespace.
    await case.environment.provider.stop()
    try:
        output = await person.sees(f"caphv identity remove-finalizers -n {case.name} --dry-run")
        await person.follows(remedies.STOP_PROVIDER, output)
        stopped = await case.management.get(DEPLOYMENTS, metadata["name"], case.name)
        assert stopped["spec"]["replicas"] == 0
    finally:
        await case.environment.provider.start()
        await case.management.delete(LEASES, HEARTBEAT_LEASE, case.name)


async def test_a_backup_that_names_only_its_cluster_names_the_whole_command(case: Case, person: Person) -> None:
    (person.folder / "passphrase").write_text("correct horse battery staple\n")
    person.words = {"DIR": str(person.folder / "backup")}
    await case.ready_cluster()
    output = await person.sees(f"caphv backup {reference(case)}", status=2)
    await person.follows(remedies.BACK_UP, output, options="--passphrase-file passphrase")
    assert list((person.folder / "backup").iterdir())


# Identities


async def test_an_identity_without_a_kubeconfig_is_replaced(case: Case, person: Person) -> None:
    await case.ready_cluster()
    await case.write_secret("identity", {"kubeconfig": ""})
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("HarvesterConnectionReady", "HarvesterConnectionFailed"))
    output = await person.sees(f"caphv doctor {reference(case)}", status=1)
    await person.follows(remedies.NEW_IDENTITY, output)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def account(case: Case, person: Person, options: str) -> None:
    """Have the cluster use an account of its own."""
    metadata = {"name": case.target}
    await case.harvester.apply(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, manager="test"
    )
    harvester = person.folder / "harvester.kubeconfig"
    words = f"--name {case.name} --target-namespace {case.target} -o kubeconfig {options}"
    code, content = await person.runs(f"caphv identity create --harvester-kubeconfig {harvester} {words} 2>/dev/null")
    assert code == 0, content
    await case.cluster()
    await case.identity(content)
    await case.ready()


async def token_of(case: Case) -> str:
    secret = await case.management.get(SECRETS, "identity", case.name)
    return parse_kubeconfig(base64.b64decode(secret["data"]["kubeconfig"])).token


async def test_a_token_that_ends_soon_is_replaced(case: Case, person: Person) -> None:
    await account(case, person, "--expires-in 10")
    before = await token_of(case)
    output = await person.sees(f"caphv doctor {reference(case)}")
    await person.follows(remedies.ROTATE_IDENTITY, output)
    after = await token_of(case)
    assert token_claims(after)["exp"] >= token_claims(before)["exp"]
    assert after != before
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_a_token_that_was_revoked_is_replaced(case: Case, person: Person) -> None:
    await account(case, person, "")
    listed = (await case.harvester.list(SECRETS, "caphv-system"))["items"]
    for secret in listed:
        if secret["metadata"]["name"].startswith(f"{case.name}-token"):
            await case.harvester.delete(SECRETS, secret["metadata"]["name"], "caphv-system")

    async def rejected() -> str:
        output = await person.sees(f"caphv doctor {reference(case)}")
        return output if "caphv identity rotate" in output else ""

    # The API server caches its verdict for some seconds, which may end while a doctor asks: then its check of the
    # identity has passed, and others are rejected.
    output = await until(rejected, "the token is still valid")
    await person.follows(remedies.ROTATE_IDENTITY, output)
    assert "rejects" not in await person.sees(f"caphv doctor {reference(case)}")
    await case.ready_machine("after")


# Harvester


async def test_leaked_addresses_are_released(case: Case, person: Person) -> None:
    pool = await case.pool("leaky", 1, 5)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    machine = await case.ready_machine("one")
    mark = annotations_of(await case.get(kinds.IP_POOLS, pool))
    held = f"addresses.caphv.io/{machine['status']['allocatedIPAddress']}"
    leaked = f"{case.subnet}.4"
    await case.reserve(pool, leaked, f"{case.name}/lost")
    annotations = {f"addresses.caphv.io/{leaked}": mark[held]}
    await case.harvester.patch(kinds.IP_POOLS, pool, "", {"metadata": {"annotations": annotations}})
    output = await person.sees(f"caphv doctor {reference(case)}")
    await person.follows(remedies.RELEASE_ADDRESSES, output)
    assert leaked not in await case.allocated(pool)
    assert "pools release" not in await person.sees(f"caphv doctor {reference(case)}")


async def test_a_host_without_a_zone_and_one_that_is_cordoned(case: Case, person: Person) -> None:
    person.words = {"ZONE": "zone-1"}
    await case.ready_cluster()
    hosts = (await case.harvester.list(NODES))["items"]
    host = next(host for host in hosts if labels_of(host).get(ZONE_LABEL) == "zone-1")["metadata"]["name"]
    await case.harvester.patch(NODES, host, "", {"metadata": {"labels": {ZONE_LABEL: None}}})
    await case.harvester.patch(NODES, host, "", {"spec": {"unschedulable": True}})
    output = await person.sees(f"caphv doctor {reference(case)}")
    await person.follows(remedies.UNCORDON_HOST, output, on_harvester=True)
    await person.follows(remedies.LABEL_ZONE, output, on_harvester=True)
    after = await case.harvester.get(NODES, host)
    assert labels_of(after)[ZONE_LABEL] == "zone-1"
    assert not after["spec"].get("unschedulable")
    output = await person.sees(f"caphv doctor {reference(case)}")
    assert "take no VMs" not in output
    assert "no zone label" not in output


# Commands that only show something

LOOKS = {name: command for name, command in remedies.all_commands().items() if isinstance(command, remedies.Look)}
ENDLESS = {"FOLLOW", "FOLLOW_ALL", "WAIT_FOR_UPGRADE"}
# The management cluster of these tests has no ClusterClasses.
FOR_CLASSES = {"RENDER_BUNDLES", "TRACE_BUNDLES"}
ABSENT = ("NotFound", "No resources found", "not found", "no resources found", "doesn't have a resource type")


async def test_each_command_that_shows_something_is_understood(case: Case, person: Person, tmp_path: Path) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    definition = tmp_path / "production.yaml"
    definition.write_text(DEFINITION.format(name=case.name))
    fields: dict[str, Any] = {"kind": "harvestermachine", "name": "one", "machine": "one", "namespace": case.name}
    fields |= {"ref": reference(case), "resource": "keypairs.harvesterhci.io", "provider": "bootstrap-rke2"}
    fields |= {"path": definition, "pool": "none", "cluster": case.name}
    wrong = {}
    for name in sorted(LOOKS.keys() - ENDLESS - FOR_CLASSES):
        command = LOOKS[name](**fields)
        code, output = await person.runs(command, on_harvester=name == "GET_ON_HARVESTER")
        if command.startswith("kubectl"):
            understood = code == 0 or any(text in output for text in ABSENT)
        else:  # 1 is a finding; 2 is that the command line is wrong, or that nothing can be read
            understood = code in (0, 1) and "Usage:" not in output
        if not understood:
            wrong[name] = (code, output)
    assert wrong == {}


DEFINITION = """\
apiVersion: caphv.io/v1alpha1
kind: ClusterDefinition
metadata: {{name: another, namespace: {name}}}
spec:
  kubernetesVersion: v1.36.2
  identitySecret: {{name: identity}}
  targetNamespace: {name}-vms
  machines:
    image: default/sles-15
    diskSize: 40Gi
    sshKeyPair: default/caphv
    networks: [default/production]
  addons: {{cni: {{name: calico}}}}
"""
