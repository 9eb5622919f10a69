"""Harvester's LoadBalancer controller: address, Service, backends, health and data path of each LoadBalancer.

Like Harvester, it takes over an address that the pool has for its name in both `allocated` and `allocatedHistory`. An
address that is only in `allocated`, as for a placeholder Service, is a "duplicate allocation". Harvester 1.5 and later
release it and reserve it again (`tryReleaseDuplicatedIPToPool` in pkg/controller/loadbalancer/controller.go of
load-balancer-harvester). In between the address is free; if another holder reserves it, the controller takes the next
free one. Harvester 1.4 (load-balancer-harvester 0.4) releases nothing, so the LoadBalancer never gets an address.

A LoadBalancer whose `ipPool` changes loses its address and gets one of the other pool, which the controller writes to
the Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from caphv.api.object import SERVICES, Key, Obj, being_deleted, key_of, labels_of
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import ippools, kinds, kubevip
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers

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
        self._answers = answers
        self._controller = Controller("loadbalancers", self._reconcile, concurrency=8)
        self._pool_controller = Controller("ippools", self._reconcile_pool, concurrency=2)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.load_balancers.add_handler(self._changed)
        self._informers.services.add_handler(self._changed)
        self._informers.vmis.add_handler(self._instance_changed)
        self._informers.pools.add_handler(self._pool_changed)
        await asyncio.gather(self._controller.run(), self._pool_controller.run())

    def health_changed(self) -> None:
        """React to a guest that started or stopped listening."""
        for load_balancer in self._informers.load_balancers.store:
            self._controller.enqueue(key_of(load_balancer))

    def _changed(self, change: Change) -> None:
        # The Service of a LoadBalancer has the same name.
        if change.resource is kinds.LOAD_BALANCERS or self._informers.load_balancers.get(*change.key):
            self._controller.enqueue(change.key)

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
            if waits and load_balancer["spec"].get("ipPool") == change.key.name:
                self._controller.enqueue(key_of(load_balancer))

    async def _reconcile_pool(self, key: Key) -> None:
        pool = self._informers.pools.get(*key)
        if pool is None or being_deleted(pool):
            return
        counted = ippools.recount(pool)
        if counted != pool.get("status"):
            await self._write_pool(pool, counted)

    async def _reconcile(self, key: Key) -> None:
        load_balancer = self._informers.load_balancers.get(*key)
        if load_balancer is None:
            await self._data_path.set(key, {})
            return
        if being_deleted(load_balancer):
            await self._release(load_balancer)
            return
        if _moves(load_balancer):
            await self._free(load_balancer)
            # Until the next reconcile it has no address, as on Harvester.
            await self._patch(load_balancer, {"status": {"allocatedAddress": None}})
            return
        if not _allocated(load_balancer):
            taken = await self._allocate(load_balancer)
            if taken is None:
                return
            load_balancer = taken
        service = await self._adopt_service(load_balancer)
        await self._report(load_balancer, kubevip.ingress_of(service))

    # Address

    async def _allocate(self, load_balancer: Obj) -> Obj | None:
        """Write finalizer and allocated address, or why there is none; None without one, until the pool changes."""
        spec, key = load_balancer["spec"], key_of(load_balancer)
        allocated: Obj = {"ip": kubevip.BY_DHCP}
        if spec.get("ipam") != "dhcp":
            name = spec.get("ipPool", "")
            pool = self._informers.pools.get("", name)
            try:
                if pool is None or "status" not in pool:
                    raise ippools.AllocationError(f"fail to get allocator {name}")
                address = await self._take(pool, str(key))
            except ippools.AllocationError as error:
                log.warning("no address for load balancer %s in pool %r: %s", key, name, error)
                await self._write_ready(load_balancer, str(error))
                return None
            gateway = pool["spec"]["ranges"][0].get("gateway", "")
            allocated = {"ip": address, "ipPool": name, "gateway": gateway, "mask": "255.255.255.255"}
        others = [name for name in load_balancer["metadata"].get("finalizers") or () if name != FINALIZER]
        finalizers = [*others, FINALIZER]
        patch = {"metadata": {"finalizers": finalizers}, "status": {"allocatedAddress": allocated}}
        return await self._patch(load_balancer, patch)

    async def _take(self, pool: Obj, holder: str) -> str:
        """Reserve an address. Raises `AllocationError`."""
        try:
            status, address = ippools.reserve(pool, holder)
        except ippools.DuplicateAllocationError:
            if not self._config.releases_duplicates:
                raise
            released = ippools.release(pool, ippools.address_of(pool["status"], holder), holder)
            if released is not None:
                await self._write_pool(pool, released)
            await asyncio.sleep(self._config.takeover_seconds)
            pool = self._informers.pools.get("", pool["metadata"]["name"]) or pool
            status, address = ippools.reserve(pool, holder)
        if status != pool["status"]:
            await self._write_pool(pool, status)
        return address

    async def _release(self, load_balancer: Obj) -> None:
        """Release only the recorded address; the Service and unrecorded addresses stay."""
        key = key_of(load_balancer)
        await self._data_path.set(key, {})
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
        """Create the Service, or overwrite ports and address of an existing one, without owning it."""
        key, spec = key_of(load_balancer), load_balancer["spec"]
        ports = [_service_port(listener) for listener in spec.get("listeners") or ()]
        wanted = {"type": "LoadBalancer", "loadBalancerIP": _allocated(load_balancer)["ip"], "ports": ports}
        service = self._informers.services.get(*key)
        if service is None:
            metadata = {"name": key.name, "namespace": key.namespace, "labels": {SERVICE_LABEL: "true"}}
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

    async def _report(self, load_balancer: Obj, address: str) -> None:
        backends = self._backends(load_balancer)
        port = (load_balancer["spec"].get("healthCheck") or {}).get("port")
        healthy = [ip for ip in backends if not port or self._answers(ip, port)]
        await self._data_path.set(
            key_of(load_balancer),
            {
                (address, listener["port"]): [(ip, listener["backendPort"]) for ip in healthy]
                for listener in load_balancer["spec"].get("listeners") or ()
                if address and healthy
            },
        )
        reason = "" if healthy else "no VMI matching the selector passes the health check"
        await self._write_ready(load_balancer, reason, address=address, backendServers=backends)

    async def _write_ready(self, load_balancer: Obj, reason: str, **now: Any) -> None:
        """Write condition Ready, which is True without a `reason`, and these fields of the status, if they differ."""
        ready = {"type": "Ready", "status": str(not reason), "message": reason}
        status = load_balancer.get("status") or {}
        known = [{name: entry.get(name) for name in ready} for entry in status.get("conditions") or ()]
        if known != [ready] or any(status.get(name, type(value)()) != value for name, value in now.items()):
            await self._patch(
                load_balancer, {"status": {**now, "conditions": [{**ready, "lastUpdateTime": kinds.now()}]}}
            )

    def _backends(self, load_balancer: Obj) -> list[str]:
        namespace = load_balancer["metadata"]["namespace"]
        found = [
            vmi for vmi in self._informers.vmis.store.by_index("namespace", namespace) if _selects(load_balancer, vmi)
        ]
        interfaces = [(vmi.get("status", {}).get("interfaces") or [{}])[0] for vmi in found]
        return [nic["ipAddress"] for nic in interfaces if nic.get("ipAddress")]

    async def _patch(self, load_balancer: Obj, patch: Obj) -> Obj:
        key = key_of(load_balancer)
        answer = await self._informers.client.patch(kinds.LOAD_BALANCERS, key.name, key.namespace, patch)
        self._informers.load_balancers.observe(answer)
        return answer


def _allocated(load_balancer: Obj) -> Obj:
    return (load_balancer.get("status") or {}).get("allocatedAddress") or {}


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
