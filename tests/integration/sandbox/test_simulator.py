"""The simulated Harvester does to objects what the real one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from caphv.api.object import NODES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Invalid, NotFound
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.harvester import fault_actions, ippools, kinds, vmbackups
from sandbox.harvester.config import Pool
from sandbox.processes import network, pki
from sandbox.processes.apiserver import ApiServer
from tests.support import harvesterui
from tests.support.simulation import Place, Simulation, joining, simulation, virtual_machine

pytestmark = pytest.mark.integration

CONTROL_PLANE = {"harvestercluster/machinetype": "controlplane-one"}
POOL = "load-balancers"


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module: the webhooks of the simulation stay on it."""
    server = ApiServer(etcd_folder, "simulated-harvester")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


async def test_vm_runs_and_its_disk_is_deleted_only_when_asked_for(place: Place) -> None:
    async with simulation(place, "life") as sim:
        for name in ("kept", "removed"):
            await sim.create_vm(name)
        for name in ("kept", "removed"):
            vmi = await sim.until(kinds.INSTANCES, name, lambda vmi: vmi["status"].get("interfaces"))
            assert vmi["status"]["phase"] == "Running"
            assert vmi["status"]["nodeName"] in {host.name for host in sim.world.hosts}
            assert vmi["metadata"]["ownerReferences"][0]["kind"] == "VirtualMachine"
            interface = vmi["status"]["interfaces"][0]
            assert interface["name"] == "nic-1"
            assert interface["mac"]
            assert interface["ipAddress"].startswith(f"{sim.prefix}.32.")
            vm = await sim.client.get(kinds.VIRTUAL_MACHINES, name, "life")
            assert vm["status"]["printableStatus"] == "Running"
            claim = await sim.client.get(PERSISTENT_VOLUME_CLAIMS, f"{name}-disk-0-x7k2p", "life")
            assert claim["status"]["phase"] == "Bound"
        patch = {"metadata": {"annotations": {kinds.REMOVED_CLAIMS: "removed-disk-0-x7k2p"}}}
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "removed", "life", patch)
        for name in ("kept", "removed"):
            await sim.client.delete(kinds.VIRTUAL_MACHINES, name, "life")
            await sim.until_gone(kinds.VIRTUAL_MACHINES, name)
            with pytest.raises(NotFound):
                await sim.client.get(kinds.INSTANCES, name, "life")
        assert await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "kept-disk-0-x7k2p", "life")
        with pytest.raises(NotFound):
            await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "removed-disk-0-x7k2p", "life")


async def test_vm_stops_and_starts_with_a_new_instance(place: Place) -> None:
    async with simulation(place, "restart") as sim:
        await sim.create_vm("one")
        first = await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"].get("interfaces"))
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "restart", {"spec": {"runStrategy": "Halted"}})
        await sim.until(kinds.VIRTUAL_MACHINES, "one", lambda vm: vm["status"]["printableStatus"] == "Stopped")
        vm = await sim.client.patch(
            kinds.VIRTUAL_MACHINES, "one", "restart", {"spec": {"runStrategy": "RerunOnFailure"}}
        )
        assert vm["spec"]["runStrategy"] == "Always", "Harvester has recorded the strategy before the stop"
        again = await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"].get("interfaces"))
        assert again["metadata"]["uid"] != first["metadata"]["uid"]
        assert again["status"]["interfaces"] == first["status"]["interfaces"]


async def test_vm_without_room_starts_when_there_is_some(place: Place) -> None:
    async with simulation(place, "room") as sim:
        term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        await sim.create_vm("one", affinity={"nodeAffinity": required})
        await sim.until(
            kinds.VIRTUAL_MACHINES,
            "one",
            lambda vm: vm.get("status", {}).get("printableStatus") == "ErrorUnschedulable",
        )
        host = sim.world.hosts[1].name
        await sim.client.patch(NODES, host, "", {"metadata": {"labels": {"disk": "fast"}}})
        vmi = await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["phase"] == "Running")
        assert vmi["status"]["nodeName"] == host


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network_name": "default/nowhere"}, "network default/nowhere not found"),
        ({"name": "two"}, "storage insufficient resources due to resource quota"),
    ],
)
async def test_vm_is_refused(place: Place, changes: Obj, message: str) -> None:
    namespace = f"refused-{next(iter(changes)).replace('_', '-')}"
    async with simulation(place, namespace) as sim:
        await sim.quota("requests.storage", "15Gi")
        await sim.create_vm("one")
        await sim.until(PERSISTENT_VOLUME_CLAIMS, "one-disk-0-x7k2p", lambda claim: claim["status"]["phase"] == "Bound")
        with pytest.raises(Invalid, match=message) as refused:
            await sim.client.create(kinds.VIRTUAL_MACHINES, virtual_machine(namespace, **{"name": "two", **changes}))
        assert (refused.value.status, refused.value.reason) == (500, "InternalError")


async def test_claim_of_an_unknown_class_stays_pending(place: Place) -> None:
    async with simulation(place, "unknown-class") as sim:
        await sim.create_vm("one", storage_class="nothing")
        await sim.until(
            kinds.VIRTUAL_MACHINES,
            "one",
            lambda vm: vm.get("status", {}).get("printableStatus") == "ErrorUnschedulable",
        )
        claim = await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "one-disk-0-x7k2p", "unknown-class")
        assert claim["status"]["phase"] == "Pending"


async def test_deletion_of_a_stopped_vm_needs_room_in_the_quota_or_a_halted_vm(place: Place) -> None:
    """Harvester checks the quota also when KubeVirt removes its finalizer."""
    async with simulation(place, "full") as sim:
        await sim.create_vm("one")
        await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["phase"] == "Running")
        await sim.quota("limits.cpu", "1")
        await sim.client.delete(kinds.VIRTUAL_MACHINES, "one", "full")
        await sim.until_gone(kinds.INSTANCES, "one")
        lacking = "cpu insufficient resources due to resource quota"
        with pytest.raises(Invalid, match=lacking):
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "full", {"metadata": {"labels": {"a": "b"}}})
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "full", {"spec": {"runStrategy": "Halted"}})
        await sim.until_gone(kinds.VIRTUAL_MACHINES, "one")


@pytest.mark.parametrize(("name", "short", "enough"), [("cpu", "3", "4"), ("memory", "6Gi", "8Gi")])
async def test_new_vm_over_a_quota_is_halted_and_starts_when_asked_after_it_was_raised(
    place: Place, name: str, short: str, enough: str
) -> None:
    namespace, lacking = f"halted-{name}", f"{name} insufficient resources due to resource quota"
    start = {"spec": {"runStrategy": "Always"}}
    async with simulation(place, namespace) as sim:
        await sim.quota(f"limits.{name}", short)
        await sim.create_vm("one")
        await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["phase"] == "Running")
        await sim.create_vm("two")
        vm = await sim.until(kinds.VIRTUAL_MACHINES, "two", lambda vm: vm["spec"]["runStrategy"] == "Halted")
        assert vm["metadata"]["annotations"][kinds.INSUFFICIENT_QUOTA] == lacking
        await sim.until(kinds.VIRTUAL_MACHINES, "two", lambda vm: vm.get("status", {}).get("printableStatus"))
        with pytest.raises(Invalid, match=lacking):
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "two", namespace, start)
        await sim.client.patch(
            kinds.RESOURCE_QUOTAS, "small", namespace, {"spec": {"hard": {f"limits.{name}": enough}}}
        )
        await sim.heard(kinds.RESOURCE_QUOTAS)
        assert (await sim.client.get(kinds.VIRTUAL_MACHINES, "two", namespace))["spec"]["runStrategy"] == "Halted"
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "two", namespace, start)
        await sim.until(kinds.INSTANCES, "two", lambda vmi: vmi["status"]["phase"] == "Running")
        await sim.until(
            kinds.VIRTUAL_MACHINES, "two", lambda vm: kinds.INSUFFICIENT_QUOTA not in vm["metadata"]["annotations"]
        )


async def test_bare_network_is_refused(place: Place) -> None:
    async with simulation(place, "bare-network") as sim:
        network = await sim.client.get(kinds.NETWORKS, "production", "default")
        await sim.client.create(kinds.NETWORKS, {**network, "metadata": {"name": "own", "namespace": "bare-network"}})
        await sim.heard(kinds.NETWORKS)
        vm = virtual_machine("bare-network", "one", network_name="own")
        with pytest.raises(Invalid, match="network own not found"):
            await sim.client.create(kinds.VIRTUAL_MACHINES, vm)
        (found,) = vm["spec"]["template"]["spec"]["networks"]
        found["multus"]["networkName"] = "bare-network/own"
        await sim.client.create(kinds.VIRTUAL_MACHINES, vm)
        ranges = [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.4", "rangeEnd": "10.0.0.6"}]
        for bad, message in (("own", "invalid network own"), ("bare-network/other", "bare-network/other not found")):
            spec = {"ranges": ranges, "selector": {"network": bad}}
            pool = kinds.typed(kinds.IP_POOLS, {"metadata": {"name": "bare"}, "spec": spec})
            with pytest.raises(Invalid, match=message):
                await sim.client.create(kinds.IP_POOLS, pool)


async def test_claim_in_use_and_pool_with_allocations_are_not_deleted(place: Place) -> None:
    async with simulation(place, "in-use") as sim:
        await sim.create_vm("one")
        await sim.addresses("one")
        with pytest.raises(Invalid, match="is used by VirtualMachine in-use/one"):
            await sim.client.delete(PERSISTENT_VOLUME_CLAIMS, "one-disk-0-x7k2p", "in-use")
        ranges = [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.4", "rangeEnd": "10.0.0.6"}]
        own = kinds.typed(kinds.IP_POOLS, {"metadata": {"name": "own"}, "spec": {"ranges": ranges}})
        await sim.client.create(kinds.IP_POOLS, own)
        pool = await sim.until(kinds.IP_POOLS, "own", lambda pool: pool.get("status"))
        assert (pool["status"]["total"], pool["status"]["available"]) == (3, 3)
        status, _ = ippools.reserve(pool, "ns/one")
        await sim.client.replace(kinds.IP_POOLS, {**pool, "status": status})
        with pytest.raises(Invalid, match="has allocated addresses"):
            await sim.client.delete(kinds.IP_POOLS, "own")
        narrower = [{**ranges[0], "rangeStart": "10.0.0.5"}]
        with pytest.raises(Invalid, match="outside the ranges"):
            await sim.client.patch(kinds.IP_POOLS, "own", "", {"spec": {"ranges": narrower}})


async def test_simulator_starts_again_when_other_pools_have_addresses_of_its_own(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def pool(name: str, first: int, last: int) -> Obj:
        bounds = {"rangeStart": f"10.7.0.{first}", "rangeEnd": f"10.7.0.{last}"}
        metadata = {"name": name}
        return kinds.typed(
            kinds.IP_POOLS, {"metadata": metadata, "spec": {"ranges": [{"subnet": "10.7.0.0/24", **bounds}]}}
        )

    pools = [Pool(name, "10.7.0.0/24", f"10.7.0.{n}1", f"10.7.0.{n}9", "10.7.0.1") for n, name in enumerate("xyz", 1)]
    async with simulation(place, "split", pools=tuple(pools)) as sim:
        await sim.client.patch(kinds.IP_POOLS, "x", "", {"spec": pool("x", 11, 15)["spec"]})
        await sim.client.delete(kinds.IP_POOLS, "y", "")
        await sim.heard(kinds.IP_POOLS)
        await sim.client.create(kinds.IP_POOLS, pool("other-x", 16, 19))
        await sim.client.create(kinds.IP_POOLS, pool("other-y", 21, 29))
        await sim.heard(kinds.IP_POOLS)
        await sim.restart()
        assert "IPPool y is missing: " in caplog.text
        names = {found["metadata"]["name"] for found in (await sim.client.list(kinds.IP_POOLS))["items"]}
        assert {"x", "z", "other-x", "other-y"} <= names
        assert "y" not in names
        assert (await sim.client.get(kinds.IP_POOLS, "x"))["spec"]["ranges"][0]["rangeEnd"] == "10.7.0.15"


async def test_vm_whose_volume_another_vm_has_takes_no_update_and_stays_when_it_is_deleted(place: Place) -> None:
    async with simulation(place, "occupied") as sim:
        await sim.client.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume("occupied", "shared"))
        for name in ("one", "two"):
            await sim.create_vm(name)
            await sim.addresses(name)
        await harvesterui.hot_plug_twice(sim.client, "occupied", "shared", "one", "two")
        await sim.heard(kinds.VIRTUAL_MACHINES)
        with pytest.raises(Invalid, match="the volume shared is already used by VM occupied/two") as refused:
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "occupied", {"metadata": {"annotations": {"a": "b"}}})
        assert (refused.value.status, refused.value.reason) == (422, "Invalid")
        await sim.client.delete(kinds.VIRTUAL_MACHINES, "one", "occupied")
        await sim.until_gone(kinds.INSTANCES, "one")
        await asyncio.sleep(0.5)
        vm = await sim.client.get(kinds.VIRTUAL_MACHINES, "one", "occupied")
        with pytest.raises(Invalid, match="already used"):
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "occupied", {"metadata": {"finalizers": None}})
        left = [each for each in vm["spec"]["template"]["spec"]["volumes"] if each["name"] != "shared"]
        await sim.client.patch(
            kinds.VIRTUAL_MACHINES, "one", "occupied", {"spec": {"template": {"spec": {"volumes": left}}}}
        )
        await sim.until_gone(kinds.VIRTUAL_MACHINES, "one")
        assert await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "shared", "occupied")


async def test_vm_stays_while_a_claim_that_it_lists_is_used_by_another_vm(place: Place) -> None:
    def lists(claims: str) -> Obj:
        return {"metadata": {"annotations": {kinds.REMOVED_CLAIMS: claims}}}

    async with simulation(place, "listed") as sim:
        for name in ("one", "two"):
            await sim.create_vm(name)
            await sim.addresses(name)
        vm = await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "listed", lists("two-disk-0-x7k2p"))
        assert kinds.VM_CLEANUP in vm["metadata"]["finalizers"]
        await sim.client.delete(kinds.VIRTUAL_MACHINES, "one", "listed")
        await sim.until(kinds.VIRTUAL_MACHINES, "one", lambda vm: vm["metadata"]["finalizers"] == [kinds.VM_CLEANUP])
        await sim.until_gone(kinds.INSTANCES, "one")
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "listed", lists("one-disk-0-x7k2p"))
        await sim.until_gone(kinds.VIRTUAL_MACHINES, "one")
        await sim.until_gone(PERSISTENT_VOLUME_CLAIMS, "one-disk-0-x7k2p")
        assert await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "two-disk-0-x7k2p", "listed")


async def test_vm_is_neither_stopped_nor_restarted_until_its_backup_is_ready(place: Place) -> None:
    def duration(seconds: int) -> Obj:
        return {"metadata": {"annotations": {vmbackups.SECONDS: str(seconds)}}}

    async with simulation(place, "backed-up") as sim:
        await sim.create_vm("one")
        await sim.addresses("one")
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "backed-up", duration(600))
        await sim.heard(kinds.VIRTUAL_MACHINES)
        source = {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "one"}
        backup = {"metadata": {"name": "nightly", "namespace": "backed-up"}, "spec": {"source": source}}
        await sim.client.create(kinds.VM_BACKUPS, kinds.typed(kinds.VM_BACKUPS, backup))
        await sim.until(kinds.VM_BACKUPS, "nightly", lambda backup: backup.get("status"))
        await sim.heard(kinds.VM_BACKUPS)

        stop = {"spec": {"runStrategy": "Halted"}}
        with pytest.raises(Invalid, match="there is vmbackup in progress for vm backed-up/one") as refused:
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "backed-up", stop)
        assert (refused.value.status, refused.value.reason) == (400, "BadRequest")
        with pytest.raises(Invalid, match="there is vmbackup in progress for vm backed-up/one"):
            await fault_actions.restart(sim.client, "backed-up/one")

        await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "backed-up", duration(0))
        await sim.until(kinds.VM_BACKUPS, "nightly", lambda backup: backup["status"]["readyToUse"])
        await sim.heard(kinds.VM_BACKUPS)
        await fault_actions.restart(sim.client, "backed-up/one")
        await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "backed-up", stop)
        await sim.until_gone(kinds.INSTANCES, "one")


async def test_network_of_a_vm_is_checked_with_each_update_until_it_is_deleted(place: Place) -> None:
    async with simulation(place, "no-network") as sim:
        found = await sim.client.get(kinds.NETWORKS, "production", "default")
        await sim.client.create(kinds.NETWORKS, {**found, "metadata": {"name": "own", "namespace": "default"}})
        await sim.heard(kinds.NETWORKS)
        await sim.create_vm("one", network_name="default/own")
        await sim.client.delete(kinds.NETWORKS, "own", "default")
        await sim.heard(kinds.NETWORKS)
        patch = {"metadata": {"annotations": {"a": "b"}}}
        with pytest.raises(Invalid, match="network default/own not found"):
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "one", "no-network", patch)
        await sim.client.delete(kinds.VIRTUAL_MACHINES, "one", "no-network")
        await sim.until_gone(kinds.VIRTUAL_MACHINES, "one")


@pytest.mark.parametrize(
    ("user_data", "address", "message"),
    [
        ("#cloud-config\npackages: [qemu-guest-agent\n", "", "userdata: invalid YAML"),
        ("#cloud-config\npackages: [iptables]\n", "", "guest agent not installed"),
        ({"packages": ["qemu-guest-agent"]}, "10.0.0.9", "is outside the network"),
    ],
)
async def test_guest_with_broken_data_reports_nothing(
    place: Place, user_data: Obj | str, address: str, message: str
) -> None:
    async with simulation(place, f"broken-{message.rpartition(' ')[2].lower()}") as sim:
        await sim.create_vm("one", user_data, address)
        vmi = await sim.until(
            kinds.INSTANCES,
            "one",
            lambda vmi: any(entry["type"] == "AgentConnected" for entry in vmi["status"].get("conditions") or ()),
        )
        reported = next(entry for entry in vmi["status"]["conditions"] if entry["type"] == "AgentConnected")
        assert reported["status"] == "False"
        assert message in reported["message"]
        assert "interfaces" not in vmi["status"]


async def test_address_of_another_guest_is_refused(place: Place) -> None:
    async with simulation(place, "taken") as sim:
        address = f"{sim.prefix}.9.7"
        await sim.create_vm("first", address=address)
        assert await sim.addresses("first") == [address]
        await sim.create_vm("second", address=address)
        await sim.until(kinds.INSTANCES, "second", lambda vmi: "is used by VM taken/first" in str(vmi["status"]))


async def test_load_balancer_keeps_the_address_of_the_placeholder(place: Place) -> None:
    async with simulation(place, "takeover") as sim:
        address = await _reserve(sim, "takeover/one-lb")
        await sim.client.create(SERVICES, _placeholder("takeover", "one-lb", address))
        service = await sim.until(SERVICES, "one-lb", lambda obj: obj["status"]["loadBalancer"])
        assert service["status"]["loadBalancer"]["ingress"][0]["ip"] == address
        await sim.client.create(kinds.LOAD_BALANCERS, _load_balancer("takeover", "one-lb"))
        taken = await sim.until(kinds.LOAD_BALANCERS, "one-lb", lambda obj: obj.get("status", {}).get("address"))
        assert taken["status"]["address"] == address
        assert taken["status"]["allocatedAddress"]["ip"] == address
        pool = await sim.client.get(kinds.IP_POOLS, POOL)
        assert pool["status"]["allocated"][address] == "takeover/one-lb"
        assert pool["status"]["available"] == pool["status"]["total"] - len(pool["status"]["allocated"])
        await sim.client.delete(kinds.LOAD_BALANCERS, "one-lb", "takeover")
        await sim.until_gone(kinds.LOAD_BALANCERS, "one-lb")
        pool = await sim.client.get(kinds.IP_POOLS, POOL)
        assert address not in pool["status"].get("allocated", {})
        assert pool["status"]["allocatedHistory"][address] == "takeover/one-lb"
        assert await sim.client.get(SERVICES, "one-lb", "takeover")


async def test_harvester_1_4_takes_over_only_an_address_with_history(place: Place) -> None:
    async with simulation(place, "duplicate", releases_duplicates=False) as sim:
        address = await _reserve(sim, "duplicate/one-lb")
        await sim.client.create(kinds.LOAD_BALANCERS, _load_balancer("duplicate", "one-lb"))
        text = f"{address} has been allocated to duplicate/one-lb, duplicate allocation is not allowed"
        failed = await sim.until(kinds.LOAD_BALANCERS, "one-lb", lambda obj: text in str(obj.get("status")))
        assert not failed["status"].get("allocatedAddress")
        assert (await sim.client.get(kinds.IP_POOLS, POOL))["status"]["allocated"] == {address: "duplicate/one-lb"}
        history = {"status": {"allocatedHistory": {address: "duplicate/one-lb"}}}
        await sim.client.patch(kinds.IP_POOLS, POOL, "", history)
        await sim.until(kinds.LOAD_BALANCERS, "one-lb", lambda obj: "allocatedAddress" in obj["status"])
        pool = await sim.client.get(kinds.IP_POOLS, POOL)
        assert pool["status"]["allocated"] == {address: "duplicate/one-lb"}
        assert pool["status"]["available"] == pool["status"]["total"] - 1
        await sim.client.delete(kinds.LOAD_BALANCERS, "one-lb", "duplicate")


async def test_load_balancer_of_another_pool_gets_another_address(place: Place) -> None:
    async with simulation(place, "moved") as sim:
        pool, other = await sim.until(kinds.IP_POOLS, POOL, lambda pool: pool.get("status")), f"{POOL}-other"
        await sim.client.create(kinds.LOAD_BALANCERS, _load_balancer("moved", "one-lb"))
        before = await sim.until(kinds.LOAD_BALANCERS, "one-lb", lambda obj: obj.get("status", {}).get("address"))
        span = {**pool["spec"]["ranges"][0], "rangeStart": f"{sim.prefix}.120.1", "rangeEnd": f"{sim.prefix}.120.9"}
        made = {
            "metadata": {"name": other},
            "spec": {"ranges": [span]},
            "status": ippools.recounted_status({"spec": {"ranges": [span]}}),
        }
        await sim.client.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, made))
        try:
            await sim.client.patch(kinds.LOAD_BALANCERS, "one-lb", "moved", {"spec": {"ipPool": other}})
            await sim.until(kinds.LOAD_BALANCERS, "one-lb", lambda obj: obj["status"]["address"] == span["rangeStart"])
            service = await sim.client.get(SERVICES, "one-lb", "moved")
            assert service["spec"]["loadBalancerIP"] == span["rangeStart"]
            pool = await sim.client.get(kinds.IP_POOLS, POOL)
            assert before["status"]["address"] not in pool["status"].get("allocated", {})
            with pytest.raises(Invalid, match="can't change the IPAM"):
                await sim.client.patch(kinds.LOAD_BALANCERS, "one-lb", "moved", {"spec": {"ipam": "dhcp"}})
        finally:
            await sim.client.delete(kinds.LOAD_BALANCERS, "one-lb", "moved")
            await sim.until_gone(kinds.LOAD_BALANCERS, "one-lb")
            await sim.client.delete(kinds.IP_POOLS, other)


async def test_address_is_released_in_the_pool_by_a_load_balancer_that_names_its_ipam(place: Place) -> None:
    async with simulation(place, "released") as sim:
        bounds = {"rangeStart": f"{sim.prefix}.121.1", "rangeEnd": f"{sim.prefix}.121.9"}
        spec = {"ranges": [{"subnet": f"{sim.prefix}.0.0/17", **bounds}]}
        pool = kinds.typed(kinds.IP_POOLS, {"metadata": {"name": "released"}, "spec": spec})
        await sim.client.create(kinds.IP_POOLS, pool)
        for name in ("named", "default"):
            load_balancer = _load_balancer("released", name)
            load_balancer["spec"]["ipPool"] = "released"
            if name == "default":
                del load_balancer["spec"]["ipam"]
            await sim.client.create(kinds.LOAD_BALANCERS, load_balancer)
            await sim.until(kinds.LOAD_BALANCERS, name, lambda obj: obj.get("status", {}).get("allocatedAddress"))

        await sim.client.delete(kinds.LOAD_BALANCERS, "default", "released")
        await sim.until_gone(kinds.LOAD_BALANCERS, "default")
        allocated = (await sim.client.get(kinds.IP_POOLS, "released"))["status"]["allocated"]
        assert sorted(allocated.values()) == ["released/default", "released/named"]

        # The pool can be deleted once a user has removed the entries.
        await sim.client.patch(kinds.IP_POOLS, "released", "", {"status": {"allocated": None}})
        await sim.client.delete(kinds.IP_POOLS, "released")
        await sim.heard(kinds.IP_POOLS)
        await sim.client.delete(kinds.LOAD_BALANCERS, "named", "released")
        await asyncio.sleep(0.5)
        assert await sim.client.get(kinds.LOAD_BALANCERS, "named", "released")
        await sim.client.create(kinds.IP_POOLS, pool)
        await sim.until_gone(kinds.LOAD_BALANCERS, "named")
        await sim.client.delete(kinds.IP_POOLS, "released")


@pytest.mark.parametrize("equal", ["name", "port", "backendPort"])
async def test_equal_listeners_are_refused(place: Place, equal: str) -> None:
    async with simulation(place, f"equal-{equal.lower()}") as sim:
        load_balancer = _load_balancer(f"equal-{equal.lower()}", "one-lb")
        (listener,) = load_balancer["spec"]["listeners"]
        other = {"name": "other", "port": 443, "protocol": "TCP", "backendPort": 8443, equal: listener[equal]}
        load_balancer["spec"]["listeners"] = [other, listener]
        with pytest.raises(Invalid, match=f"duplicate {equal}"):
            await sim.client.create(kinds.LOAD_BALANCERS, load_balancer, dry_run=True)
        other["protocol"] = "UDP"
        if equal != "name":
            await sim.client.create(kinds.LOAD_BALANCERS, load_balancer, dry_run=True)


async def test_service_without_address_gets_one_by_dhcp(place: Place) -> None:
    async with simulation(place, "dhcp") as sim:
        await sim.client.create(SERVICES, _placeholder("dhcp", "one-lb", "0.0.0.0"))
        service = await sim.until(SERVICES, "one-lb", lambda obj: obj["status"]["loadBalancer"])
        assert service["status"]["loadBalancer"]["ingress"][0]["ip"].startswith(f"{sim.prefix}.32.")


async def test_cluster_joins_through_the_load_balancer(place: Place) -> None:
    async with simulation(place, "joined", node_lost_seconds=0.1) as sim:
        ca, token = pki.CA.create("workload"), "sandbox-token"
        address = await _reserve(sim, "joined/one-lb")
        endpoint = f"https://{address}:6443"
        await sim.client.create(SERVICES, _placeholder("joined", "one-lb", address))
        await sim.create_vm("worker", joining("worker", endpoint, ca, token))
        await sim.create_vm("first", joining("control-plane", endpoint, ca, token), labels=CONTROL_PLANE)
        await sim.client.create(kinds.LOAD_BALANCERS, _load_balancer("joined", "one-lb"))
        await sim.until(kinds.LOAD_BALANCERS, "one-lb", _is_ready, timeout=60)
        access = Kubeconfig(server=endpoint, ca=ca.certificate.decode(), token=token)
        async with _closing(access.client(name="workload")) as workload:
            for name in ("first", "worker"):
                node = await sim.until(NODES, name, _is_ready, client=workload, timeout=30)
                assert [taint["key"] for taint in node["spec"]["taints"]] == [
                    "node.cloudprovider.kubernetes.io/uninitialized"
                ]
                assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
            await sim.client.delete(kinds.VIRTUAL_MACHINES, "worker", "joined")
            await sim.until(NODES, "worker", _is_unknown, client=workload)
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "first", "joined", {"spec": {"runStrategy": "Halted"}})
            await sim.until(kinds.LOAD_BALANCERS, "one-lb", lambda lb: not _is_ready(lb))
            assert not await _answers(workload)
            await sim.client.patch(kinds.VIRTUAL_MACHINES, "first", "joined", {"spec": {"runStrategy": "Always"}})
            await sim.until(kinds.LOAD_BALANCERS, "one-lb", _is_ready, timeout=60)
            await sim.until(NODES, "first", _is_ready, client=workload)
            assert _is_unknown(await workload.get(NODES, "worker"))


@asynccontextmanager
async def _closing(client: ApiClient) -> AsyncIterator[ApiClient]:
    try:
        yield client
    finally:
        await client.close()


async def _answers(client: ApiClient) -> bool:
    try:
        await client.get(NODES, "first")
    except Exception:
        return False
    return True


def _is_ready(obj: Obj) -> bool:
    conditions = obj.get("status", {}).get("conditions") or ()
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _is_unknown(node: Obj) -> bool:
    return [entry["status"] for entry in node["status"]["conditions"] if entry["type"] == "Ready"] == ["Unknown"]


async def _reserve(sim: Simulation, holder: str) -> str:
    pool = await sim.until(kinds.IP_POOLS, POOL, lambda pool: pool.get("status"))
    status, address = ippools.reserve(pool, holder)
    await sim.client.replace(kinds.IP_POOLS, {**pool, "status": status})
    return address


def _placeholder(namespace: str, name: str, address: str) -> Obj:
    spec = {"type": "LoadBalancer", "loadBalancerIP": address, "ports": [{"port": 6443, "targetPort": 6443}]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _load_balancer(namespace: str, name: str) -> Obj:
    listener = {"name": "api-server", "port": 6443, "protocol": "TCP", "backendPort": 6443}
    spec = {
        "workloadType": "vm",
        "ipam": "pool",
        "ipPool": POOL,
        "listeners": [listener],
        "healthCheck": {"port": 6443, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 30},
        "backendServerSelector": {name: [value] for name, value in CONTROL_PLANE.items()},
    }
    metadata = {"name": name, "namespace": namespace}
    return kinds.typed(kinds.LOAD_BALANCERS, {"metadata": metadata, "spec": spec})
