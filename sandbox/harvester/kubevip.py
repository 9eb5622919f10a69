"""kube-vip: assigns addresses to Services of type LoadBalancer and carries the load balancers' traffic.

A Service with `0.0.0.0` gets its address by DHCP on the first network. A Service that asks for no address any more
keeps the one it has. A Service without a LoadBalancer of the same name has no backends, so nothing listens on its
address yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from caphv.api.object import SERVICES, Key, Obj, being_deleted
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.informers import Informers
from sandbox.processes.proxy import Endpoint, TcpProxy

log = logging.getLogger(__name__)

BY_DHCP = "0.0.0.0"


def ingress_of(service: Obj | None) -> str:
    """The address assigned to a Service; empty if none yet."""
    ingress = ((service or {}).get("status", {}).get("loadBalancer") or {}).get("ingress") or ()
    return str(ingress[0].get("ip", "")) if ingress else ""


class KubeVip:
    """Assigns addresses to Services; `dhcp` is the range for those without a fixed address."""

    def __init__(self, informers: Informers, addresses: Addresses, dhcp: str) -> None:
        self._informers = informers
        self._addresses = addresses
        self._dhcp = dhcp
        self._controller = Controller("kube-vip", self._reconcile, concurrency=4)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.services.add_handler(self._changed)
        await self._controller.run()

    def _changed(self, change: Change) -> None:
        self._controller.enqueue(change.key)

    async def _reconcile(self, key: Key) -> None:
        service, holder = self._informers.services.get(*key), f"service {key}"
        wanted = "" if service is None else self._wanted(service)
        if service is None or not wanted:
            self._addresses.release(holder)
            return
        present = ingress_of(service)
        address = wanted
        if wanted == BY_DHCP:
            address = present or self._addresses.lease(self._dhcp, holder)
        if present and present != address:
            self._addresses.release(holder)
        other = self._addresses.claim(address, holder)
        if other:
            # A real kube-vip does not notice: two machines answer on one address.
            log.warning("address %s of Service %s is also used by %s", address, key, other)
        if present != address:
            status = {"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}}
            answer = await self._informers.client.patch(SERVICES, key.name, key.namespace, status, subresource="status")
            self._informers.services.observe(answer)

    def _wanted(self, service: Obj) -> str:
        spec = service["spec"]
        if spec.get("type") != "LoadBalancer" or being_deleted(service):
            return ""
        return str(spec.get("loadBalancerIP") or ingress_of(service))


class DataPath:
    """The listeners of load balancers, by the key of the LoadBalancer."""

    def __init__(self) -> None:
        self._proxies: dict[Key, dict[Endpoint, TcpProxy]] = {}

    async def set(self, key: Key, wanted: Mapping[Endpoint, Iterable[Endpoint]]) -> None:
        """Set the listeners and their backends."""
        proxies = self._proxies.setdefault(key, {})
        for listen in proxies.keys() - wanted.keys():
            await proxies.pop(listen).close()
        for listen, backends in wanted.items():
            if listen in proxies:
                proxies[listen].set_backends(backends)
                continue
            proxy = TcpProxy(listen, backends)
            try:
                await proxy.start()
            except OSError as error:
                log.warning("load balancer %s cannot listen on %s:%d: %s", key, *listen, error.strerror)
                continue
            proxies[listen] = proxy
        if not proxies:
            del self._proxies[key]

    async def close(self) -> None:
        """Close all listeners."""
        await asyncio.gather(*(self.set(key, {}) for key in list(self._proxies)))
