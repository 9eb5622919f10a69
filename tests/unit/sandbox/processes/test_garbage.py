"""What the garbage collector decides if its informers are out of date."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, key_of
from sandbox.processes.garbage import CORE, GarbageCollector
from tests.support.memoryserver import MemoryServer
from tests.support.waiting import in_background, until

pytestmark = pytest.mark.unit

NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"},
}


class Server(MemoryServer):
    """Notes in `requests` which namespaces end, and how many objects they have then."""

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if not path.endswith("/finalize"):
            return await super().request(method, path, **options)
        self.requests.append(f"finalize with {len(self.stored(CONFIG_MAPS))} objects")
        return {}

    def put_unnoticed(self, name: str) -> None:
        """Store a ConfigMap that no watch reports."""
        metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self._objs["", "ConfigMap"][key_of(obj)] = obj


async def test_a_namespace_ends_only_once_the_server_has_no_object_in_it() -> None:
    server = Server(served=[(resource.api_version, resource.kind) for resource in CORE])
    server.serve(CUSTOM_RESOURCE_DEFINITIONS.api_version, CUSTOM_RESOURCE_DEFINITIONS.kind)
    collector = GarbageCollector(cast("Any", server))
    async with in_background(collector.run()):
        await until(lambda: str(CORE[-1]) in collector._informers)
        await until(lambda: all(informer.synced for informer in collector._informers.values()))
        server.put_unnoticed("late")
        server.put(NAMESPACE)
        await until(lambda: any("finalize" in request for request in server.requests))
    assert server.requests == ["delete ConfigMap late", "finalize with 0 objects"]
