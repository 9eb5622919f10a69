"""A management cluster on which a cluster is deleted: its objects, and every write."""

from __future__ import annotations

from dataclasses import dataclass, field

from caphv.api.object import Obj, Resource
from caphv.runtime.errors import Forbidden, NotFound
from tests.support.clusters import Builder


@dataclass
class Server:
    """Stands in for the management cluster: its objects, and every write."""

    builder: Builder
    writes: list[str] = field(default_factory=list)
    refuses: bool = False
    absent: str = ""

    async def patch(self, kind: Resource, name: str, _namespace: str, body: Obj) -> None:
        assert body == {"metadata": {"annotations": {"caphv.io/force-delete": "true"}}}
        if name == self.absent:
            raise NotFound(404, "NotFound", "no such object")
        self.writes.append(f"annotate {kind.kind} {name}")

    async def delete(self, kind: Resource, name: str, _namespace: str, *, uid: str) -> None:
        if self.refuses:
            raise Forbidden(403, "Forbidden", f"no right to delete {uid}")
        self.writes.append(f"delete {kind.kind} {name}")
