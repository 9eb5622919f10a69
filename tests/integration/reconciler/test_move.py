"""`caphv move`: a cluster changes its management cluster while both providers run, and no VM notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, annotations_of, at, key_of, uid_of
from caphv.runtime.errors import NotFound
from commands.main import cli
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support import ipam
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import is_ready, is_true
from tests.support.reconciler.environment import Environment, elsewhere
from tests.support.reconciler.ownership import CLUSTER
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def there(environment: Environment) -> Iterator[Environment]:
    """A second management cluster with a provider, for the same Harvester."""
    with elsewhere(environment, "target") as found:
        asyncio.run(found.provider.start())
        yield found


def caphv(source: Environment, target: Environment, *arguments: str) -> Result:
    files = []
    for name, environment in (("source", source), ("target", target)):
        files.append(source.folder / f"move-{name}.kubeconfig")
        private_file(files[-1], pki.to_yaml(environment.management.kubeconfig()))
    words = ["move", *arguments, "--kubeconfig", str(files[0]), "--to-kubeconfig", str(files[1])]
    return CliRunner().invoke(cli, words)


async def has_address(case: Case, claim: str) -> bool:
    """Whether the provider of addresses has answered a claim."""
    return bool(at(await case.management.get(ipam.CLAIMS, claim, case.name), "status", "addressRef"))


async def on_harvester(case: Case) -> dict[str, Obj]:
    found = {}
    for kind in (kinds.VIRTUAL_MACHINES, kinds.INSTANCES, PERSISTENT_VOLUME_CLAIMS):
        found |= {f"{kind.kind} {key_of(obj)}": obj for obj in (await case.harvester.list(kind, case.target))["items"]}
    return found


async def core_of_the_target(there: Environment, old: Case) -> Case:
    """Play the core on the target, once the Cluster is there and not paused any more."""
    case = old.on(there)
    await case.open(create_namespace=False)

    async def runs() -> bool:
        try:
            cluster = await case.get(CLUSTERS, case.name)
        except NotFound:
            return False
        return not cluster["spec"].get("paused")

    await until(runs, "the Cluster of the target is not paused")
    await case.ready()
    return case


async def test_a_moved_cluster_keeps_its_vms_and_leaves_nothing_on_the_source(
    environment: Environment, there: Environment
) -> None:
    old = Case(environment, environment.next_case())
    await old.open()
    pool, storage = await old.pool("pool", 1, 9), await old.storage_pool("storage", 1, 9)
    await old.ready_cluster(vmNetworkConfig=old.vm_network(pool))
    reference = {"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": storage}
    fields = {
        "networks": ["default/production", "default/storage"],
        "networkInterfaces": [{"network": "default/storage", "addressesFromPools": [reference]}],
    }
    for name in ("cp", "worker"):
        await old.ready_machine(name, control_plane=name == "cp", **fields)
    # As the core does: by it everything that was moved is found again on the source.
    cluster = await old.get(CLUSTERS, old.name)
    owner = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster", "name": old.name, "uid": uid_of(cluster)}
    for name in ("cp", "worker"):
        await old.patch(MACHINES, name, {"metadata": {"ownerReferences": [owner]}})
    before, addresses = await on_harvester(old), await old.allocated(pool)
    of_interfaces = await old.allocated(storage)
    assert set(of_interfaces.values()) == {f"{old.name}/cp.1-0", f"{old.name}/worker.1-0"}
    ref = f"{old.name}/{old.name}"

    result = await asyncio.to_thread(caphv, environment, there, ref, "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["objects"]["HarvesterMachine"] == 2
    assert not (await old.get(CLUSTERS, old.name))["spec"].get("paused")

    since = there.audit_position(there.harvester)
    moving = asyncio.create_task(asyncio.to_thread(caphv, environment, there, ref, "--yes"))
    core = asyncio.create_task(core_of_the_target(there, old))
    await asyncio.wait([moving, core], return_when=asyncio.FIRST_COMPLETED)
    assert core.done() or moving.result().exit_code == 0, moving.result().output
    new = await core
    result = await moving
    assert result.exit_code == 0, result.output
    assert "the target has adopted 2 VMs; none was restarted" in result.output

    for name in ("cp", "worker"):
        await new.until(HARVESTER_MACHINES, name, is_ready)
    await new.until(HARVESTER_CLUSTERS, new.name, is_ready)
    after = await on_harvester(new)
    assert {name: uid_of(obj) for name, obj in after.items()} == {name: uid_of(obj) for name, obj in before.items()}
    assert await new.allocated(pool) == addresses
    assert await new.allocated(storage) == of_interfaces
    marks = annotations_of(await new.harvester.get(kinds.IP_POOLS, storage))
    ours = uid_of(await new.management.get(NAMESPACES, "kube-system"))
    assert {marks[f"addresses.caphv.io/{address}"] for address in of_interfaces} == {ours[:8]}
    ours = uid_of(await new.management.get(NAMESPACES, "kube-system"))
    vms = [obj for name, obj in after.items() if name.startswith("VirtualMachine ")]
    assert {annotations_of(obj)[CLUSTER] for obj in vms} == {ours}
    assert {line.partition(" ")[0] for line in await new.writes(since)} == {"patch"}
    # The source has nothing left but what it may share.
    for resource in (CLUSTERS, MACHINES, HARVESTER_CLUSTERS, HARVESTER_MACHINES):
        assert (await old.management.list(resource, old.name))["items"] == [], resource.kind
    assert await old.management.get(SECRETS, "identity", old.name)
    annotations = annotations_of(await new.get(CLUSTERS, new.name))
    assert "caphv.io/moving-to" not in annotations
    assert await new.remove() == []
    await old.close()
    await new.close()


async def test_an_interrupted_move_is_completed(environment: Environment, there: Environment) -> None:
    old = Case(environment, environment.next_case())
    await old.open()
    await old.ready_cluster()
    await old.ready_machine("only")
    cluster = await old.get(CLUSTERS, old.name)
    owner = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster", "name": old.name, "uid": uid_of(cluster)}
    await old.patch(MACHINES, "only", {"metadata": {"ownerReferences": [owner]}})
    ref = f"{old.name}/{old.name}"
    # No core makes the target adopt anything: the command gives up, and nothing is deleted.
    result = await asyncio.to_thread(caphv, environment, there, ref, "--yes", "--timeout", "3s")
    assert (result.exit_code, "nothing was lost" in result.output) == (1, True)
    assert (await old.get(CLUSTERS, old.name))["spec"]["paused"]
    assert await old.get(HARVESTER_MACHINES, "only")
    new = await core_of_the_target(there, old)
    result = await asyncio.to_thread(caphv, environment, there, ref, "--yes")
    assert result.exit_code == 0, result.output
    assert "an interrupted move is completed" in result.output
    assert (await old.management.list(CLUSTERS, old.name))["items"] == []
    await new.until(HARVESTER_MACHINES, "only", is_ready)
    assert await new.remove() == []
    await old.close()
    await new.close()


async def test_a_moved_machine_keeps_the_claims_of_its_addresses(environment: Environment, there: Environment) -> None:
    old = Case(environment, environment.next_case())
    await old.open()
    await ipam.install(old.management)
    async with there.management.client() as target:
        await ipam.install(target)
    await old.ready_cluster()
    pool = ipam.Pool([f"{old.subnet}.{host}" for host in (1, 2)], 17, old.gateway)
    async with ipam.IpamProvider(old.management, old.name, v4=pool).running():
        before = await old.ready_machine("only", networkInterfaces=[ipam.interface("v4")])
        # Another cluster has an address of the pool.
        await old.create(ipam.CLAIMS, "other-0-0", {"clusterName": "other", "poolRef": ipam.pool_reference("v4")})
        await until(lambda: has_address(old, "other-0-0"), "the other claim is not answered")
    cluster = await old.get(CLUSTERS, old.name)
    owner = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster", "name": old.name, "uid": uid_of(cluster)}
    await old.patch(MACHINES, "only", {"metadata": {"ownerReferences": [owner]}})
    ref = f"{old.name}/{old.name}"
    core = asyncio.create_task(core_of_the_target(there, old))
    result = await asyncio.to_thread(caphv, environment, there, ref, "--yes")
    assert result.exit_code == 0, result.output
    new = await core

    machine = await new.until(HARVESTER_MACHINES, "only", is_ready)
    assert machine["status"]["addresses"] == before["status"]["addresses"]
    (claim,) = (await ipam.claims_of(new.management, new.name)).values()
    assert [owner["uid"] for owner in claim["metadata"]["ownerReferences"]] == [uid_of(machine)]
    address = await new.management.get(ipam.ADDRESSES, "only-0-0", new.name)
    assert address["spec"]["address"] == f"{old.subnet}.1"
    assert list(await ipam.claims_of(old.management, old.name)) == ["other-0-0"]
    for management, name in ((old.management, "other-0-0"), (new.management, "only-0-0")):
        addresses = (await management.list(ipam.ADDRESSES, old.name))["items"]
        assert [obj["metadata"]["name"] for obj in addresses] == [name]
    async with ipam.IpamProvider(new.management, new.name, v4=pool).running():
        await new.until(HARVESTER_MACHINES, "only", is_true("VMIPAllocated"))
        await new.delete_machine("only")
        await until(lambda: list(pool.used.values()) == ["other-0-0"], "the address stays in use")
        assert await new.remove() == []
    await old.close()
    await new.close()


async def test_a_move_onto_itself_and_without_a_target_is_refused(environment: Environment, case: Case) -> None:
    await case.ready_cluster()
    ref = f"{case.name}/{case.name}"
    result = await asyncio.to_thread(caphv, environment, environment, ref, "--yes")
    assert (result.exit_code, "source and target are the same" in result.output) == (1, True)
    assert not (await case.get(CLUSTERS, case.name))["spec"].get("paused")
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["move", ref])
    assert (result.exit_code, "name the target management cluster" in result.output) == (2, True)
