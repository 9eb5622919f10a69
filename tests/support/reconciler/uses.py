"""All that a provider does in its life, one use after the other, for tests of its rights."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from caphv.api.names import (
    ADOPT_ANNOTATION,
    ENDPOINT_HOOK,
    OWNER_UID_ANNOTATION,
    PARK_ANNOTATION,
    UPDATE_IN_PROGRESS_ANNOTATION,
    identity_finalizer,
)
from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Key, Obj, annotations_of, uid_of
from caphv.api.resources import FLEET_CLUSTERS
from caphv.runtime.errors import NotFound
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from sandbox.harvester import kinds
from tests.support import ipam, rancher
from tests.support.images import declared
from tests.support.metrics import bind, scrape, token
from tests.support.reconciler.case import (
    CLUSTER_LABEL,
    CLUSTERS,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINE_TEMPLATES,
    HARVESTER_MACHINES,
    MACHINES,
    Case,
    machine_spec,
)
from tests.support.reconciler.cloudconfig import ACCOUNTS, BINDINGS, config_map, connect, until_workload_secret
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.reconciler.fleet import LABELS
from tests.support.reconciler.loadbalancer import place
from tests.support.reconciler.ownership import left_behind, recorded
from tests.support.reconciler.renewedtoken import kept, until_revoked
from tests.support.reconciler.sharedidentity import change, share, unshare
from tests.support.waiting import until


async def watched(case: Case, port: int) -> None:
    """Prometheus gets metrics with the shipped role, another account does not."""
    assert (await scrape(port, await token(case.management, "stranger")))[0] == 403
    await bind(case.management, "prometheus")
    bearer = await token(case.management, "prometheus")

    # The API server learns of the binding by a watch, and the provider asks again after a refusal.
    async def is_answered() -> bool:
        return (await scrape(port, bearer))[0] == 200

    await until(is_answered, "Prometheus gets no metrics")


async def update_in_place(case: Case, name: str) -> None:
    """Have Cluster API update a machine in place, although nothing changes."""
    for value in ("", None):
        progress = {"metadata": {"annotations": {UPDATE_IN_PROGRESS_ANNOTATION: value}}}
        await case.patch(HARVESTER_MACHINES, name, progress)

        def is_reported(machine: Obj, *, wanted: bool = value is not None) -> bool:
            message = condition_of(machine, "VMUpToDate").get("message") or ""
            return message.startswith("the VM has ") is wanted

        await case.until(HARVESTER_MACHINES, name, is_reported)


async def live(case: Case) -> None:
    """A cluster with everything: created pools, load balancer, and the cloud config in two of its places."""

    def described(first: int, last: int) -> Obj:
        bounds = {"rangeStart": f"{case.subnet}.{first}", "rangeEnd": f"{case.subnet}.{last}"}
        network = {"vmNetwork": "default/production", "gateway": case.gateway}
        return {"subnet": f"{case.environment.prefix}.0.0/17", **network, **bounds}

    await connect(case)
    await case.ready_cluster(
        loadBalancerConfig={"ipamType": "pool", "ipPool": described(1, 2)},
        vmNetworkConfig={"ipPool": described(11, 14), "gateway": case.gateway, "subnetMask": "255.255.128.0"},
        updateCloudProviderConfig=await config_map(case),
        cloudConfig={"delivery": "Secret"},
        images=[declared(f"default/{case.name}-image")],
    )
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("CloudProviderConfigReady"))
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("ImagesReady"))
    await until_workload_secret(case, lambda _: True)
    template = {"template": {"spec": machine_spec()}}
    await case.create(HARVESTER_MACHINE_TEMPLATES, "machines", template, labels={CLUSTER_LABEL: case.name})
    await case.until(HARVESTER_MACHINE_TEMPLATES, "machines", lambda obj: obj.get("status"))
    await case.ready_machine("cp", control_plane=True)
    await update_in_place(case, "cp")
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("InitMachineCreated"))
    await claimed(case)
    await handed_over(case)
    await repaired(case)
    await parked(case)
    await rotated(case)


async def shared(case: Case) -> None:
    """The credentials come from a HarvesterClusterIdentity that labels permit, and from the Secret again."""
    selector = {"selector": {"matchLabels": {"harvester": case.name}}}
    label = {"metadata": {"labels": {"harvester": case.name}}}
    name = await share(case, selector, case.environment.identity())
    both = ("HarvesterConnectionReady", "ReferencesAllowed")
    try:
        reference = {"spec": {"identitySecret": None, "identityRef": {"name": name}}}
        await case.patch(HARVESTER_CLUSTERS, case.name, reference)
        await case.until(HARVESTER_CLUSTERS, case.name, is_false("ReferencesAllowed", "ReferenceNotAllowed"))
        await case.management.patch(NAMESPACES, case.name, "", label)
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: all(is_true(name)(obj) for name in both))
        # Its token is renewed for a while, and then revoked.
        await change(case, tokenRenewal={})
        access = await kept(case)
        await change(case, tokenRenewal=None)
        await until_revoked(access)
        secret = {"identitySecret": {"name": "identity", "namespace": case.name}, "identityRef": None}
        await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": secret})
        await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    finally:
        await unshare(case)


async def claimed(case: Case) -> None:
    """A machine has an address of an IPAM provider until it is deleted."""
    await ipam.install(case.management)
    pool = ipam.Pool([f"{case.subnet}.31"], 17, case.gateway)
    async with ipam.IpamProvider(case.management, case.name, v4=pool).running():
        await case.ready_machine("claimed", networkInterfaces=[ipam.interface("v4")])
        await case.delete_machine("claimed")


async def handed_over(case: Case) -> None:
    """The older of two control plane machines is held, until it is the only one again."""
    await asyncio.sleep(1.1)  # creation timestamps have seconds
    await case.ready_machine("cp2", control_plane=True)
    await case.until(MACHINES, "cp", lambda obj: ENDPOINT_HOOK in annotations_of(obj))
    await case.delete_machine("cp2")
    await case.until(MACHINES, "cp", lambda obj: ENDPOINT_HOOK not in annotations_of(obj))


async def parked(case: Case) -> None:
    """The cluster is parked, which pauses it, and resumed."""
    await case.patch(CLUSTERS, case.name, {"metadata": {"annotations": {PARK_ANNOTATION: "true"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Parked"))
    await case.patch(CLUSTERS, case.name, {"metadata": {"annotations": {PARK_ANNOTATION: None}}})
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, "Parked") and is_ready(obj))


async def rotated(case: Case) -> None:
    """The identity is replaced by deletion and creation, which its finalizer does not delay."""
    before = await case.management.get(SECRETS, "identity", case.name)
    assert before["metadata"]["finalizers"] == [identity_finalizer()]
    await case.management.delete(SECRETS, "identity", case.name)

    async def released() -> bool:
        with contextlib.suppress(NotFound):
            return uid_of(await case.management.get(SECRETS, "identity", case.name)) != uid_of(before)
        return True

    await until(released, "the Secret is released")
    await case.identity()
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def repaired(case: Case) -> None:
    """Listeners of the spec reach load balancer and Service."""
    listener = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"loadBalancerConfig": {"listeners": [listener]}}})
    await case.until(kinds.LOAD_BALANCERS, case.balancer, lambda obj: len(obj["spec"]["listeners"]) == 2)
    await case.until(SERVICES, case.balancer, lambda obj: len(obj["spec"]["ports"]) == 2)


async def imported(case: Case) -> None:
    """Rancher imports the cluster, in the older way that needs all three of its kinds."""
    name = rancher.managed_name(Key(case.name, case.name))
    await case.management.create(NAMESPACES, {"metadata": {"name": "fleet-default"}})
    task = asyncio.create_task(rancher.Rancher(case.management, turtles=False).run())
    try:
        await case.patch(CLUSTERS, case.name, {"metadata": {"labels": LABELS}})
        await case.until(HARVESTER_CLUSTERS, case.name, is_true("FleetIntegrationReady"), timeout=60)
        fleet = await case.management.get(FLEET_CLUSTERS, name, "fleet-default")
        assert fleet["metadata"]["labels"]["cni"] == LABELS["cni"]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def backed_up(case: Case) -> None:
    """A control plane machine is replaced with a backup; then the cluster adopts another one, of which none is kept."""
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"controlPlaneBackups": {"keep": 1}}})
    await case.ready_machine("new", control_plane=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("ControlPlaneBackupsReady"))
    await case.ready_machine("old", control_plane=True)
    await outdate(case, "old")
    await case.delete_machine("old")
    assert await case.names(kinds.VM_BACKUPS) == ["old-replaced"]

    annotations = recorded(case, case.name, kind="HarvesterCluster")
    former = await case.get(kinds.VM_BACKUPS, "old-replaced")
    metadata = {"labels": former["metadata"]["labels"], "annotations": annotations}
    source = {"source": {"kind": "VirtualMachine", "name": "new"}}
    place = {"name": "former-replaced", "namespace": case.target}
    adopted = kinds.typed(kinds.VM_BACKUPS, {"metadata": {**metadata, **place}, "spec": source})
    await case.harvester.create(kinds.VM_BACKUPS, adopted)
    adopt = {"metadata": {"annotations": {ADOPT_ANNOTATION: "true"}}, "spec": {"controlPlaneBackups": {"keep": 2}}}
    await case.patch(HARVESTER_CLUSTERS, case.name, adopt)

    def is_adopted(backup: Obj) -> bool:
        return annotations_of(backup)[OWNER_UID_ANNOTATION] == annotations_of(former)[OWNER_UID_ANNOTATION]

    await case.until(kinds.VM_BACKUPS, "former-replaced", is_adopted)
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"controlPlaneBackups": {"keep": 1}}})
    await case.until_gone(kinds.VM_BACKUPS, "old-replaced")


async def outdate(case: Case, machine: str) -> None:
    """Report that a rollout replaces a Machine, as control plane providers do, and wait until the provider knows."""
    moment = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    condition = {"type": "UpToDate", "status": "False", "reason": "NotUpToDate", **moment}
    status = {"status": {"conditions": [condition]}}
    await case.management.patch(MACHINES, machine, case.name, status, subresource="status")

    # The provider hears of the rollout before it hears of a later Machine.
    await case.create_machine("later", bootstrap=None)
    await case.until(HARVESTER_MACHINES, "later", lambda obj: obj["metadata"].get("finalizers"))
    await case.delete_machine("later")


async def recreated_after_quota(case: Case) -> None:
    """A VM that a quota refuses leaves its Secret; it is created with newer bootstrap data once the quota is raised."""
    await case.quota("requests.storage", "1Gi")
    await case.write_secret("late-data", {"value": "#cloud-config\nruncmd: [echo]\n"})
    await case.create_machine("late", bootstrap="late-data")
    await case.until(HARVESTER_MACHINES, "late", is_false("VMProvisioningReady", "QuotaExhausted", "used up"))
    await case.write_secret("late-data", {"value": "#cloud-config\nruncmd: [echo newer]\n"})

    async def renewed() -> bool:
        user_data, _ = await case.user_data("late")
        return bool(user_data["runcmd"][-1] == "echo newer")

    # Before the quota is raised: an attempt that has read the older data may be under way.
    await until(renewed, "Secret of the VM holds the older bootstrap data")
    await case.raise_quota()
    await case.until(HARVESTER_MACHINES, "late", is_ready)
    assert await renewed()


async def started_after_quota(case: Case) -> None:
    """A VM that a quota halted is started once the quota is raised."""
    await case.quota("limits.cpu", "1")
    await case.create_machine("halted")
    await case.until(HARVESTER_MACHINES, "halted", is_false("VMProvisioningReady", "QuotaExhausted", "used up"))
    # The quota refuses the instance before it halts the VM.
    await case.until(kinds.VIRTUAL_MACHINES, "halted", lambda vm: vm["spec"]["runStrategy"] == "Halted")
    await case.raise_quota()
    await case.until(HARVESTER_MACHINES, "halted", is_ready)


async def take_over(case: Case, account: Account) -> None:
    """A machine and an account that another owner left; then a user deletes the VM, and the machine.

    The provider's account on Harvester may delete the guests' former binding once its command has run again.
    """
    await case.identity("not a kubeconfig")
    await case.write_secret("bootstrap", {"value": "#cloud-config\nruncmd: [echo]\n"})
    pool = await case.pool("pool", 1, 5)
    vm = await left_behind(case, "one", recorded(case, "one"))
    await pair_without_record(case)
    await may_give_cloud_configs(case, account)
    await place(case, case.balancer, {})
    await case.create_cluster(vmNetworkConfig=case.vm_network(pool), updateCloudProviderConfig=await config_map(case))
    await case.until_event(case.name, "Warning", "HarvesterConnectionFailed")
    await case.identity()
    await case.ready()
    # The same problem again is the same Event again.
    await case.identity("not a kubeconfig")
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("HarvesterConnectionReady", "HarvesterConnectionFailed"))
    await case.identity()
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("HarvesterConnectionReady"))
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("CloudProviderConfigReady"))
    await case.ready_machine("one", providerID=f"harvester://{uid_of(vm)}")
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "one")
    await case.delete_machine("one")
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == []


async def may_give_cloud_configs(case: Case, account: Account) -> None:
    """What `caphv identity create --target-namespace` adds to an account for all namespaces."""
    await identityaccount.create(
        case.harvester, replace(account, targets=(case.target,)), case.environment.harvester.url
    )


async def stay_in(case: Case, account: Account) -> None:
    """A cluster by an account that has its rights in this target namespace only."""
    assert account.targets == (case.target,)
    identity = await identityaccount.create(case.harvester, account, case.environment.harvester.url)
    await case.identity(identity)
    await case.write_secret("bootstrap", {"value": "#cloud-config\nruncmd: [echo]\n"})
    await case.create_cluster(cloudConfig={"delivery": "File"})
    await case.ready()
    await case.ready_machine("one")


async def pair_without_record(case: Case) -> None:
    """ServiceAccount and binding of a cloud provider as the Go provider leaves them."""
    place = {"name": case.name, "namespace": case.target}
    await case.harvester.create(ACCOUNTS, {"metadata": place})
    role = {"apiGroup": BINDINGS.group, "kind": "ClusterRole", "name": "harvesterhci.io:cloudprovider"}
    subjects = [{"kind": "ServiceAccount", **place}]
    await case.harvester.create(BINDINGS, {"metadata": {"name": case.name}, "roleRef": role, "subjects": subjects})
