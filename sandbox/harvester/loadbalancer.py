"""Harvester's LoadBalancer controller: address, Service, backends, health and data path of each LoadBalancer.

Like Harvester, it takes over an address that the pool has for its name in both `allocated` and `allocatedHistory`. An
address that is only in `allocated` is a "duplicate allocation". Harvester 1.5 and later release it, report the error,
and ask again. In between the address is free; if another holder reserves it, the controller takes the next free one.
Harvester 1.4 (load-balancer-harvester 0.4) releases nothing, so the LoadBalancer never gets an address.

The controller writes the Service before it has recorded the address of the LoadBalancer: for a moment a Service that
exists asks for no address, which kube-vip ignores. A LoadBalancer whose `ipPool` changes loses its address and gets one
of the other pool. docs/simulators.md has the sources.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from caphv.api.object import SERVICES, Key, Obj, being_deleted, key_of, labels_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import guestbalancers, ippools, kinds, kubevip
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.prober import HealthCheck, Prober
from sandbox.harvester.vmguards import balancers_run

log = logging.getLogger(__name__)

FINALIZER = "wrangler.cattle.io/harvester-lb-controller"
SERVICE_LABEL = "loadbalancer.harvesterhci.io/servicelb"


class LoadBalancers:
    """The controller of LoadBalancers and pools; `answers(address, port)` says whether a guest listens there."""

    def __init__(
        self,
        informers: Informers,
        config: SimulatorConfig,
        data_path: kubevip.DataPath,
        answers: Callable[[str, int], bool],
    ) -> None:
        self._informers = informers
        self._config = config
        self._data_path = data_path
        self._controller = Controller("loadbalancers", self._reconcile_if_running, concurrency=8)
        self._prober = Prober(answers, self._controller.enqueue, config.probe_scale)
        self._pool_controller = Controller("ippools", self._reconcile_pool, concurrency=2)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.load_balancers.add_handler(self._changed)
        self._informers.services.add_handler(self._changed)
        self._informers.vmis.add_handler(self._instance_changed)
        self._informers.pools.add_handler(self._pool_changed)
        self._informers.deployments.add_handler(self._deployment_changed)
        try:
            await asyncio.gather(self._controller.run(), self._pool_controller.run())
        finally:
            self._prober.close()

    def _changed(self, change: Change) -> None:
        # The Service of a LoadBalancer has the same name.
        if change.resource is kinds.LOAD_BALANCERS or self._informers.load_balancers.get(*change.key):
            self._controller.enqueue(change.key)

    def _deployment_changed(self, _change: Change) -> None:
        for load_balancer in self._informers.load_balancers.store:
            self._controller.enqueue(key_of(load_balancer))

    def _instance_changed(self, change: Change) -> None:
        for load_balancer in self._informers.load_balancers.store.by_index("namespace", change.key.namespace):
            if any(vmi is not None and _selects(load_balancer, vmi) for vmi in (change.old, change.new)):
                self._controller.enqueue(key_of(load_balancer))

    def _pool_changed(self, change: Change) -> None:
        # Harvester recounts when the ranges change, not when addresses are allocated.
        if change.new is not None and (change.old is None or change.old["spec"] != change.new["spec"]):
            self._pool_controller.enqueue(change.key)
        for load_balancer in self._informers.load_balancers.store:
            waits = not _allocated(load_balancer) and not being_deleted(load_balancer)
            if waits and load_balancer["spec"].get("ipPool") in (None, "", change.key.name):
                self._controller.enqueue(key_of(load_balancer))

    async def _reconcile_pool(self, key: Key) -> None:
        pool = self._informers.pools.get(*key)
        if pool is None or being_deleted(pool):
            return
        counted = ippools.recount(pool)
        if counted != pool.get("status"):
            await self._write_pool(pool, counted)

    async def _reconcile_if_running(self, key: Key) -> Result | None:
        return await self._reconcile(key) if balancers_run(self._informers) else None

    async def _reconcile(self, key: Key) -> Result | None:
        load_balancer = self._informers.load_balancers.get(*key)
        if load_balancer is None:
            await self._stop(key)
            return None
        if being_deleted(load_balancer):
            await self._release(load_balancer)
            return None
        if FINALIZER not in (load_balancer["metadata"].get("finalizers") or ()):
            load_balancer = await self._patch(load_balancer, _with_finalizer(load_balancer))
        if _moves(load_balancer):
            await self._free(load_balancer)
            # Until the next reconcile it has no address, as on Harvester.
            await self._patch(load_balancer, {"status": {"allocatedAddress": None}})
            return None

        try:
            allocated = await self._allocate(load_balancer)
        except ippools.AllocationError as error:
            log.warning("no address for load balancer %s: %s", key, error)
            await self._write_ready(load_balancer, str(error))
            again = isinstance(error, ippools.DuplicateAllocationError) and self._config.releases_duplicates
            return Result(requeue_after=self._config.takeover_seconds) if again else None
        if guestbalancers.is_guest(load_balancer):
            await self._write_ready(load_balancer, "", allocatedAddress=allocated)
            return None

        service = await self._adopt_service(load_balancer)
        await self._report(load_balancer, allocated, kubevip.ingress_of(service))
        return None

    async def _stop(self, key: Key) -> None:
        self._prober.ensure(key, None, ())
        await self._data_path.set(key, {})

    # Address

    async def _allocate(self, load_balancer: Obj) -> Obj:
        """Return the address of the LoadBalancer, reserved if it has none. Raises `AllocationError`."""
        if allocated := _allocated(load_balancer):
            return allocated
        spec, key = load_balancer["spec"], key_of(load_balancer)
        if spec.get("ipam") == "dhcp":
            return {"ip": kubevip.BY_DHCP}

        name = spec.get("ipPool") or self._matching_pool(load_balancer)
        pool = self._informers.pools.get("", name)
        if pool is None or "status" not in pool:
            raise ippools.AllocationError(f"fail to get allocator {name}")
        try:
            address = await self._take(pool, str(key))
        except ippools.AllocationError as error:
            raise type(error)(f"fail to get ip from pool {name}, error: {error}") from None
        return {"ip": address, "ipPool": name, **ippools.network_of(pool["spec"], address)}

    def _matching_pool(self, load_balancer: Obj) -> str:
        release = self._config.release
        name = guestbalancers.select_pool(load_balancer, self._informers.pools.store, release)
        if not name:
            wanted = guestbalancers.requirement_of(load_balancer, release)
            text = f"Network:{wanted.network} Project:{wanted.project} Namespace:{wanted.namespace}"
            raise ippools.AllocationError(f"no matched IPPool with requirement &{{{text} Cluster:{wanted.cluster}}}")
        return name

    async def _take(self, pool: Obj, holder: str) -> str:
        """Reserve an address, or release it if it is a duplicate. Raises `AllocationError`."""
        try:
            status, address = ippools.reserve(pool, holder)
        except ippools.DuplicateAllocationError:
            if self._config.releases_duplicates:
                released = ippools.release(pool, ippools.address_of(pool["status"], holder), holder)
                if released is not None:
                    await self._write_pool(pool, released)
            raise
        if status != pool["status"]:
            await self._write_pool(pool, status)
        return address

    async def _release(self, load_balancer: Obj) -> None:
        """Release only the recorded address; the Service and unrecorded addresses stay."""
        key = key_of(load_balancer)
        await self._stop(key)
        await self._free(load_balancer)
        finalizers = load_balancer["metadata"].get("finalizers") or []
        left = [name for name in finalizers if name != FINALIZER]
        version = load_balancer["metadata"]["resourceVersion"]
        patch = {"metadata": {"finalizers": left, "resourceVersion": version}}
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(kinds.LOAD_BALANCERS, key.name, key.namespace, patch)

    async def _free(self, load_balancer: Obj) -> None:
        allocated = _allocated(load_balancer)
        pool = self._informers.pools.get("", allocated.get("ipPool", ""))
        status = ippools.release(pool, allocated["ip"], str(key_of(load_balancer))) if pool is not None else None
        if pool is not None and status is not None:
            await self._write_pool(pool, status)

    async def _write_pool(self, pool: Obj, status: Obj) -> None:
        """Raises Conflict if the pool was modified concurrently; the whole step is then retried."""
        self._informers.pools.observe(await self._informers.client.replace(kinds.IP_POOLS, {**pool, "status": status}))

    # Service

    async def _adopt_service(self, load_balancer: Obj) -> Obj:
        """Create the Service, or overwrite ports and address of an existing one, without owning that.

        The address is that of the status, which is written later: at first the Service asks for none.
        """
        key, spec = key_of(load_balancer), load_balancer["spec"]
        ports = [_service_port(listener) for listener in spec.get("listeners") or ()]
        address = _allocated(load_balancer).get("ip", "")
        wanted = {"type": "LoadBalancer", "loadBalancerIP": address, "ports": ports}
        service = self._informers.services.get(*key)
        if service is None:
            metadata: Obj = {"name": key.name, "namespace": key.namespace, "labels": {SERVICE_LABEL: "true"}}
            metadata["ownerReferences"] = [_owner(load_balancer)]
            body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": wanted}
            with contextlib.suppress(AlreadyExists):
                service = await self._informers.client.create(SERVICES, body)
        elif _differs(service["spec"], wanted):
            service = await self._informers.client.patch(SERVICES, key.name, key.namespace, {"spec": wanted})
        if service is None:
            return {}
        self._informers.services.observe(service)
        return service

    # Backends

    async def _report(self, load_balancer: Obj, allocated: Obj, address: str) -> None:
        key = key_of(load_balancer)
        if not address:
            await self._write_ready(
                load_balancer, "service is waiting for external IP", allocatedAddress=allocated, address=""
            )
            return
        instances = self._instances(load_balancer)
        nics = [(vmi.get("status", {}).get("interfaces") or [{}])[0] for vmi in instances]
        backends = [nic["ipAddress"] for nic in nics if nic.get("ipAddress")]
        healthy = self._prober.ensure(key, HealthCheck.of(load_balancer), backends)
        listeners = load_balancer["spec"].get("listeners") or ()
        await self._data_path.set(
            key,
            {
                (address, listener["port"]): [(ip, listener["backendPort"]) for ip in healthy]
                for listener in listeners
                if healthy
            },
        )
        reason = ""
        if not backends:
            missing = instances and self._config.release.missing_addresses
            reason = "running backend servers have no IP" if missing else "no running backend servers"
        elif not healthy:
            reason = f"running backend servers are not probed as healthy total:{len(backends)}, healthy:0"
        await self._write_ready(
            load_balancer, reason, allocatedAddress=allocated, address=address, backendServers=backends
        )

    async def _write_ready(self, load_balancer: Obj, reason: str, **now: Any) -> None:
        """Write condition Ready, which is True without a `reason`, and these fields of the status, if they differ."""
        ready = {"type": "Ready", "status": str(not reason), "message": reason}
        status = load_balancer.get("status") or {}
        known = [{name: entry.get(name) for name in ready} for entry in status.get("conditions") or ()]
        if known != [ready] or any(status.get(name, type(value)()) != value for name, value in now.items()):
            await self._patch(
                load_balancer, {"status": {**now, "conditions": [{**ready, "lastUpdateTime": kinds.now()}]}}
            )

    def _instances(self, load_balancer: Obj) -> list[Obj]:
        namespace = load_balancer["metadata"]["namespace"]
        vmis = self._informers.vmis.store.by_index("namespace", namespace)
        return [vmi for vmi in vmis if _selects(load_balancer, vmi) and not being_deleted(vmi)]

    async def _patch(self, load_balancer: Obj, patch: Obj) -> Obj:
        key = key_of(load_balancer)
        answer = await self._informers.client.patch(kinds.LOAD_BALANCERS, key.name, key.namespace, patch)
        self._informers.load_balancers.observe(answer)
        return answer


def _allocated(load_balancer: Obj) -> Obj:
    return (load_balancer.get("status") or {}).get("allocatedAddress") or {}


def _with_finalizer(load_balancer: Obj) -> Obj:
    metadata = load_balancer["metadata"]
    finalizers = [*(metadata.get("finalizers") or ()), FINALIZER]
    return {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}


def _owner(load_balancer: Obj) -> Obj:
    owner = {name: load_balancer["metadata"][name] for name in ("name", "uid")}
    return kinds.typed(kinds.LOAD_BALANCERS, owner)


def _moves(load_balancer: Obj) -> bool:
    """Whether the spec asks for another pool than the address is from (`pkg/controller/loadbalancer/controller.go`)."""
    wanted, pool = load_balancer["spec"].get("ipPool"), _allocated(load_balancer).get("ipPool")
    return load_balancer["spec"].get("ipam") != "dhcp" and bool(wanted and pool) and wanted != pool


def _selects(load_balancer: Obj, vmi: Obj) -> bool:
    selector = load_balancer["spec"].get("backendServerSelector") or {}
    return bool(selector) and all(labels_of(vmi).get(name) in values for name, values in selector.items())


def _service_port(listener: Obj) -> Obj:
    port = {"port": listener["port"], "protocol": listener["protocol"], "targetPort": listener["backendPort"]}
    return port | ({"name": listener["name"]} if listener.get("name") else {})


def _differs(spec: Obj, wanted: Obj) -> bool:
    ports = [
        {name: port.get(name) for name in want} for port, want in zip(spec["ports"], wanted["ports"], strict=False)
    ]
    same = len(spec["ports"]) == len(wanted["ports"]) and ports == wanted["ports"]
    return not same or any(spec.get(name) != wanted[name] for name in ("type", "loadBalancerIP"))
