"""A Harvester in memory that issues tokens."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from caphv.api.object import Obj, Resource
from tests.support.memoryserver import MemoryServer

CA = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"


def encoded(text: str) -> str:
    """Return text in base64."""
    return base64.b64encode(text.encode()).decode()


class TokenServer(MemoryServer):
    """Fills Secrets for tokens, and answers TokenRequests, as kube-controller-manager and an API server do."""

    def __init__(self, *objs: Obj, **options: Any) -> None:
        super().__init__(*objs, **options)
        self.issued: list[tuple[str, int]] = []
        self.probes = 0
        self.longest = 10**9
        self.fills = True

    async def create(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        return await super().create(resource, self._filled(obj), **options)

    async def apply(self, resource: Resource, obj: Obj, **options: Any) -> Obj:
        return await super().apply(resource, self._filled(obj), **options)

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        self.probes += options.get("limit") == 1
        return await super().list(resource, namespace, **options)

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if method == "POST":
            self.issued.append((path, options["body"]["spec"]["expirationSeconds"]))
            seconds = min(options["body"]["spec"]["expirationSeconds"], self.longest)
            ends = datetime.now(UTC) + timedelta(seconds=seconds)
            return {"status": {"token": f"expiring-{len(self.issued)}", "expirationTimestamp": ends.isoformat()}}
        return await super().request(method, path, **options)

    def _filled(self, obj: Obj) -> Obj:
        if obj.get("type") != "kubernetes.io/service-account-token" or not self.fills:
            return obj
        return {**obj, "data": {"token": encoded(f"token of {obj['metadata']['name']}"), "ca.crt": encoded(CA)}}
