"""kube-vip: assigns addresses to Services of type LoadBalancer and carries their traffic.

A Service with `0.0.0.0` gets its address by DHCP on the first network. A Service that no longer
asks for an address keeps the one it has. A Service without a LoadBalancer of the same name has no
backends, so nothing listens on its address yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from caphv.api.object import Key, Obj, being_deleted, list_at
from caphv.runtime.controller import Controller
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.informers import Informers
from sandbox.processes.proxy import Endpoint, TcpProxy

log = logging.getLogger(__name__)

BY_DHCP = "0.0.0.0"


def ingress_of(service: Obj | None) -> str:
    """Return the address assigned to a Service; empty if none yet."""
    ingress = list_at(service, "status", "loadBalancer", "ingress")
    return str(ingress[0].get("ip", "")) if ingress else ""


class KubeVip:
    """Assigns addresses to Services. `dhcp` is the range for Services without a fixed address."""

    def __init__(self, informers: Informers, addresses: Addresses, dhcp: str) -> None:
        self._informers = informers
        self._addresses = addresses
        self._dhcp = dhcp
        self._controller = Controller("kube-vip", self._reconcile, concurrency=4)

    async def run(self) -> None:
        """Run until cancelled; the informers must be synced."""
        self._informers.services.add_handler(lambda change: self._controller.enqueue(change.key))
        await self._controller.run()

    async def _reconcile(self, key: Key) -> None:
        service = self._informers.services.get(*key)
        holder = f"service {key}"
        request = "" if service is None else _requested_address(service)
        if service is None or not request:
            self._addresses.release(holder)
            return

        current = ingress_of(service)
        address = request
        if request == BY_DHCP:
            address = current or self._addresses.lease(self._dhcp, holder)
        if current and current != address:
            self._addresses.release(holder)

        other = self._addresses.claim(address, holder)
        if other:
            # A real kube-vip does not notice the conflict. Two machines then answer on one address.
            log.warning("address %s of Service %s is also used by %s", address, key, other)

        if current != address:
            status = {"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}}
            await self._informers.patch(self._informers.services, key, status, subresource="status")


def _requested_address(service: Obj) -> str:
    spec = service["spec"]
    if spec.get("type") != "LoadBalancer" or being_deleted(service):
        return ""
    return str(spec.get("loadBalancerIP") or ingress_of(service))


class DataPath:
    """The listeners of all load balancers."""

    def __init__(self) -> None:
        self._proxies: dict[Key, dict[Endpoint, TcpProxy]] = {}

    async def set(self, key: Key, listeners: Mapping[Endpoint, Iterable[Endpoint]]) -> None:
        """Set the listeners of a load balancer and their backends."""
        proxies = self._proxies.setdefault(key, {})
        for endpoint in proxies.keys() - listeners.keys():
            await proxies.pop(endpoint).close()

        for endpoint, backends in listeners.items():
            if endpoint in proxies:
                proxies[endpoint].set_backends(backends)
                continue

            proxy = TcpProxy(endpoint, backends)
            try:
                await proxy.start()
            except OSError as error:
                log.warning(
                    "load balancer %s cannot listen on %s:%d: %s", key, *endpoint, error.strerror
                )
                continue
            proxies[endpoint] = proxy

        if not proxies:
            del self._proxies[key]

    async def close(self) -> None:
        """Close all listeners."""
        await asyncio.gather(*(self.set(key, {}) for key in list(self._proxies)))
