"""Harvester's LoadBalancer controller: address, Service, backends, health and data path.

Like Harvester, it takes over an address that the pool has for its name in both `allocated` and
`allocatedHistory`. An address that is only in `allocated` is a "duplicate allocation". Harvester
1.5 and later release it, report the error, and ask again. In between the address is free; if
another holder reserves it, the controller takes the next free one. Harvester 1.4
(load-balancer-harvester 0.4) releases nothing, so the LoadBalancer never gets an address.

The controller writes the Service before it has recorded the address of the LoadBalancer. For a
moment, the Service asks for no address, and kube-vip ignores it. A LoadBalancer whose `ipPool`
changes loses its address and gets an address of the other pool. docs/simulators.md has the sources.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from caphv.api.conditions import current_time
from caphv.api.object import Key, Obj, being_deleted, dict_at, key_of, labels_of, list_at
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import guestbalancers, ippools, kinds, kubevip, poolselection
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.prober import HealthCheck, Prober
from sandbox.harvester.vmguards import is_balancer_controller_running

log = logging.getLogger(__name__)

FINALIZER = "wrangler.cattle.io/harvester-lb-controller"
SERVICE_LABEL = "loadbalancer.harvesterhci.io/servicelb"
# The time until another attempt to release an address.
_RETRY_SECONDS = 1.0


class LoadBalancers:
    """The controller of LoadBalancers and pools.

    :param answers: returns whether a guest listens on an address and port
    """

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
        self._controller = Controller("loadbalancers", self._reconcile, concurrency=8)
        self._prober = Prober(answers, self._controller.enqueue, config.probe_scale)
        self._pool_controller = Controller("ippools", self._reconcile_pool, concurrency=2)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.load_balancers.add_handler(
            lambda change: self._controller.enqueue(change.key)
        )
        self._informers.services.add_handler(self._enqueue_for_service)
        self._informers.vmis.add_handler(self._enqueue_for_instance)
        self._informers.pools.add_handler(self._enqueue_for_pool)
        # The controller reconciles nothing while it is stopped, and everything when it starts.
        self._informers.deployments.add_handler(self._enqueue_all)
        try:
            await asyncio.gather(self._controller.run(), self._pool_controller.run())
        finally:
            self._prober.close()

    # What to reconcile

    def _enqueue_for_service(self, change: Change) -> None:
        # The Service of a LoadBalancer has the same name.
        if self._informers.load_balancers.get(*change.key):
            self._controller.enqueue(change.key)

    def _enqueue_for_instance(self, change: Change) -> None:
        # Check the old labels as well, because a change of labels may end the selection.
        vmis = [vmi for vmi in (change.old, change.new) if vmi is not None]
        for load_balancer in self._informers.load_balancers.store.by_index(
            "namespace", change.key.namespace
        ):
            if any(_selects(load_balancer, vmi) for vmi in vmis):
                self._controller.enqueue(key_of(load_balancer))

    def _enqueue_for_pool(self, change: Change) -> None:
        # Harvester recounts when the ranges change, not when addresses are allocated.
        old = change.old
        new = change.new
        if new is not None and (old is None or old["spec"] != new["spec"]):
            self._pool_controller.enqueue(change.key)

        for load_balancer in self._informers.load_balancers.store:
            waits = not _allocated_address(load_balancer) and not being_deleted(load_balancer)
            if waits and load_balancer["spec"].get("ipPool") in (None, "", change.key.name):
                self._controller.enqueue(key_of(load_balancer))

    def _enqueue_all(self, _change: Change) -> None:
        for load_balancer in self._informers.load_balancers.store:
            self._controller.enqueue(key_of(load_balancer))

    # Reconcile

    async def _reconcile_pool(self, key: Key) -> None:
        pool = self._informers.pools.get(*key)
        if pool is None or being_deleted(pool):
            return

        status = ippools.recounted_status(pool)
        if status != pool.get("status"):
            await self._write_pool(pool, status)

    async def _reconcile(self, key: Key) -> Result | None:
        if not is_balancer_controller_running(self._informers):
            return None

        load_balancer = self._informers.load_balancers.get(*key)
        if load_balancer is None or being_deleted(load_balancer):
            self._prober.ensure(key, None, ())
            await self._data_path.set(key, {})
            return await self._finish_deletion(load_balancer) if load_balancer else None

        finalizers = kinds.finalizers_of(load_balancer)
        if FINALIZER not in finalizers:
            patch = kinds.finalizers_patch(load_balancer, [*finalizers, FINALIZER])
            load_balancer = await self._patch(load_balancer, patch)

        if _changes_pool(load_balancer):
            return await self._leave_pool(load_balancer)

        try:
            allocated = await self._allocate(load_balancer)
        except ippools.AllocationError as error:
            return await self._report_allocation_error(load_balancer, error)

        # The guest of a `cluster` balancer has its own Service and data path.
        if guestbalancers.is_guest(load_balancer):
            await self._write_ready(load_balancer, "", {"allocatedAddress": allocated})
            return None
        service = await self._adopt_service(load_balancer)
        await self._serve(load_balancer, allocated, kubevip.ingress_of(service))
        return None

    async def _finish_deletion(self, load_balancer: Obj) -> Result | None:
        """Release the address and remove the finalizer; the Service stays.

        Without its pool, the LoadBalancer stays as well. Harvester releases nothing unless the spec
        has `ipam: pool`, the default of which it applies to allocations only.
        """
        key = key_of(load_balancer)
        uses_pool = load_balancer["spec"].get("ipam") == "pool"
        if uses_pool and (problem := await self._release(load_balancer)):
            log.warning("load balancer %s stays: %s", key, problem)
            return Result(requeue_after=_RETRY_SECONDS)

        finalizers = [name for name in kinds.finalizers_of(load_balancer) if name != FINALIZER]
        patch = kinds.finalizers_patch(load_balancer, finalizers)
        with contextlib.suppress(NotFound):
            await self._informers.client.patch(kinds.LOAD_BALANCERS, key.name, key.namespace, patch)
        return None

    # Address

    async def _allocate(self, load_balancer: Obj) -> Obj:
        """Return the address of the LoadBalancer, reserved if it has none.

        Raise `AllocationError`.
        """
        if allocated := _allocated_address(load_balancer):
            return allocated
        spec = load_balancer["spec"]
        if spec.get("ipam") == "dhcp":
            return {"ip": kubevip.BY_DHCP}

        name = spec.get("ipPool") or self._select_pool(load_balancer)
        pool = self._informers.pools.get("", name)
        if pool is None or "status" not in pool:
            raise ippools.AllocationError(f"fail to get allocator {name}")
        try:
            address = await self._reserve(pool, str(key_of(load_balancer)))
        except ippools.AllocationError as error:
            # Keep the type of the error, by which the controller decides whether to ask again.
            raise type(error)(f"fail to get ip from pool {name}, error: {error}") from None
        return {"ip": address, "ipPool": name, **ippools.network_of(pool["spec"], address)}

    def _select_pool(self, load_balancer: Obj) -> str:
        release = self._config.release
        name = poolselection.select_pool(load_balancer, self._informers.pools.store, release)
        if not name:
            need = poolselection.requirement_of(load_balancer, release)
            # Go prints a struct in this form: `&{Network:… Project:…}`.
            raise ippools.AllocationError(
                f"no matched IPPool with requirement &{{Network:{need.network} "
                f"Project:{need.project} Namespace:{need.namespace} Cluster:{need.cluster}}}"
            )
        return name

    async def _reserve(self, pool: Obj, holder: str) -> str:
        """Reserve an address, or release it if it is a duplicate. Raise `AllocationError`."""
        try:
            status, address = ippools.reserve(pool, holder)
        except ippools.DuplicateAllocationError:
            if self._config.releases_duplicates:
                released_status = ippools.release(pool, holder)
                if released_status is not None:
                    await self._write_pool(pool, released_status)
            raise

        if status != pool["status"]:
            await self._write_pool(pool, status)
        return address

    async def _leave_pool(self, load_balancer: Obj) -> Result | None:
        """Release the address in the former pool. The next reconcile allocates another one."""
        if problem := await self._release(load_balancer):
            await self._write_ready(load_balancer, problem)
            return Result(requeue_after=_RETRY_SECONDS)
        await self._patch(load_balancer, {"status": {"allocatedAddress": None}})
        return None

    async def _release(self, load_balancer: Obj) -> str:
        """Release the address of the LoadBalancer in the pool that it is from.

        Return the problem if the pool does not exist, else an empty text.
        """
        allocated = _allocated_address(load_balancer)
        name = allocated.get("ipPool")
        if not name:
            return ""
        pool = self._informers.pools.get("", name)
        if pool is None or "status" not in pool:
            return f"fail to release ip {allocated['ip']}, error: fail to get allocator {name}"
        status = ippools.release(pool, str(key_of(load_balancer)))
        if status is not None:
            await self._write_pool(pool, status)
        return ""

    async def _write_pool(self, pool: Obj, status: Obj) -> None:
        """Write the status of a pool as it was read.

        Raise Conflict if the pool was modified meanwhile; the whole step is then retried.
        """
        answer = await self._informers.client.replace(kinds.IP_POOLS, {**pool, "status": status})
        self._informers.pools.observe(answer)

    async def _report_allocation_error(
        self, load_balancer: Obj, error: ippools.AllocationError
    ) -> Result | None:
        log.warning("no address for load balancer %s: %s", key_of(load_balancer), error)
        await self._write_ready(load_balancer, str(error))

        # Retry after the release of a duplicate. Other errors are retried when a pool changes.
        is_duplicate = isinstance(error, ippools.DuplicateAllocationError)
        if is_duplicate and self._config.releases_duplicates:
            return Result(requeue_after=self._config.takeover_seconds)
        return None

    # Service

    async def _adopt_service(self, load_balancer: Obj) -> Obj:
        """Create the Service, or overwrite the ports and address of an existing Service.

        An existing Service gets no owner reference. The address is read from the status, which is
        written later, so a new Service asks for no address.
        """
        key = key_of(load_balancer)
        listeners = load_balancer["spec"].get("listeners") or ()
        spec = {
            "type": "LoadBalancer",
            "loadBalancerIP": _allocated_address(load_balancer).get("ip", ""),
            "ports": [_service_port(listener) for listener in listeners],
        }

        service = self._informers.services.get(*key)
        if service is not None:
            if _differs(service["spec"], spec):
                return await self._informers.patch(self._informers.services, key, {"spec": spec})
            return service

        owner = {name: load_balancer["metadata"][name] for name in ("name", "uid")}
        metadata: Obj = {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {SERVICE_LABEL: "true"},
            "ownerReferences": [kinds.typed(kinds.LOAD_BALANCERS, owner)],
        }
        body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        try:
            return await self._informers.create(self._informers.services, body)
        except AlreadyExists:
            # The cache is out of date. Its next event enqueues the LoadBalancer again.
            return {}

    # Backends

    async def _serve(self, load_balancer: Obj, allocated: Obj, address: str) -> None:
        """Send traffic from the address to the healthy backends, and report the state."""
        if not address:
            fields = {"allocatedAddress": allocated, "address": ""}
            await self._write_ready(load_balancer, "service is waiting for external IP", fields)
            return

        vmis = self._select_instances(load_balancer)
        backends = []
        for vmi in vmis:
            interfaces = list_at(vmi, "status", "interfaces")
            if interfaces and interfaces[0].get("ipAddress"):
                backends.append(interfaces[0]["ipAddress"])

        key = key_of(load_balancer)
        healthy = self._prober.ensure(key, HealthCheck.of(load_balancer), backends)
        # Without a healthy backend nothing listens, so that clients are refused at once.
        endpoints = {}
        if healthy:
            for listener in load_balancer["spec"].get("listeners") or ():
                backend_port = listener["backendPort"]
                endpoints[address, listener["port"]] = [(ip, backend_port) for ip in healthy]
        await self._data_path.set(key, endpoints)

        reason = ""
        if not backends and vmis and self._config.release.missing_addresses:
            reason = "running backend servers have no IP"
        elif not backends:
            reason = "no running backend servers"
        elif not healthy:
            count = f"total:{len(backends)}, healthy:0"
            reason = f"running backend servers are not probed as healthy {count}"
        fields = {"allocatedAddress": allocated, "address": address, "backendServers": backends}
        await self._write_ready(load_balancer, reason, fields)

    def _select_instances(self, load_balancer: Obj) -> list[Obj]:
        namespace = load_balancer["metadata"]["namespace"]
        vmis = self._informers.vmis.store.by_index("namespace", namespace)
        return [vmi for vmi in vmis if _selects(load_balancer, vmi) and not being_deleted(vmi)]

    # Status

    async def _write_ready(
        self, load_balancer: Obj, reason: str, fields: Obj | None = None
    ) -> None:
        """Write condition Ready and these fields of the status, if they differ.

        Ready is True without a `reason`.
        """
        fields = fields or {}
        ready = {"type": "Ready", "status": str(not reason), "message": reason}
        status = load_balancer.get("status") or {}

        # A missing field counts as an empty one.
        current = [
            {name: entry.get(name) for name in ready} for entry in status.get("conditions") or ()
        ]
        same_fields = all(
            status.get(name, type(value)()) == value for name, value in fields.items()
        )
        if current == [ready] and same_fields:
            return

        condition = {**ready, "lastUpdateTime": current_time()}
        await self._patch(load_balancer, {"status": {**fields, "conditions": [condition]}})

    async def _patch(self, load_balancer: Obj, patch: Obj) -> Obj:
        balancers = self._informers.load_balancers
        return await self._informers.patch(balancers, key_of(load_balancer), patch)


def _allocated_address(load_balancer: Obj) -> Obj:
    return dict_at(load_balancer, "status", "allocatedAddress")


def _changes_pool(load_balancer: Obj) -> bool:
    """Return whether the spec asks for another pool than the pool of the address.

    Modelled after `pkg/controller/loadbalancer/controller.go`.
    """
    spec = load_balancer["spec"]
    target = spec.get("ipPool")
    current = _allocated_address(load_balancer).get("ipPool")
    return spec.get("ipam") != "dhcp" and bool(target and current) and target != current


def _selects(load_balancer: Obj, vmi: Obj) -> bool:
    # A missing selector selects no backend, unlike a label selector of Kubernetes.
    selector = load_balancer["spec"].get("backendServerSelector") or {}
    labels = labels_of(vmi)
    return bool(selector) and all(labels.get(name) in values for name, values in selector.items())


def _service_port(listener: Obj) -> Obj:
    port = {
        "port": listener["port"],
        "protocol": listener["protocol"],
        "targetPort": listener["backendPort"],
    }
    return port | ({"name": listener["name"]} if listener.get("name") else {})


def _differs(current: Obj, spec: Obj) -> bool:
    """Return whether a Service differs from a spec, without the fields that the server adds."""
    if len(current["ports"]) != len(spec["ports"]):
        return True
    ports = [
        {name: port.get(name) for name in expected}
        for port, expected in zip(current["ports"], spec["ports"], strict=True)
    ]
    return ports != spec["ports"] or any(
        current.get(name) != spec[name] for name in ("type", "loadBalancerIP")
    )
