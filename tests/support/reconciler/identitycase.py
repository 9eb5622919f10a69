"""A cluster of the reconciler in memory whose session is about to be opened, and what stands for sessions."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest
import yaml

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError
from reconciler.cluster.identity import Identities, ensure_session
from reconciler.cluster.scope import ClusterScope
from reconciler.statusdraft import StatusDraft
from tests.support import kubeconfigs
from tests.support.reconciler.memorycase import MemoryCase

SERVER = "https://harvester"


def secret(
    namespace: str = "team", *, server: str = SERVER, allowed: str = "", token: str = "t", ca: bytes = b""
) -> Obj:
    authority = {"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}
    config = kubeconfigs.with_cluster(server=server, **authority)
    config["users"][0]["user"] = {"token": token}
    metadata: Obj = {"name": "identity", "namespace": namespace}
    if allowed:
        metadata["annotations"] = {names.ALLOWED_NAMESPACES_ANNOTATION: allowed}
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


class Assignments:
    """Stands for `Sessions`: remembers what was assigned and released."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.assigned: list[tuple[Key, Kubeconfig, str, str, str]] = []
        self.released: list[Key] = []
        self.identity = ""
        self.error: KubeconfigError | None = None

    async def assign(
        self, cluster: Key, access: Kubeconfig, namespace: str, *, identity: str, harvester_uid: str
    ) -> Any:
        if self.error:
            raise self.error
        self.assigned.append((cluster, access, namespace, identity, harvester_uid))
        self.identity = identity
        return self.session

    def identity_of(self, _cluster: Key) -> str:
        return self.identity

    async def release(self, cluster: Key) -> None:
        self.released.append(cluster)
        self.identity = ""

    def accept(self, _cluster: Key) -> bool:
        return True


class Protection:
    """Whether Secrets can be protected by finalizers."""

    def __init__(self) -> None:
        self.may = True
        self.asked: list[Key] = []

    async def ensure(self, where: Key) -> bool:
        self.asked.append(where)
        return self.may


class Case(MemoryCase):
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        super().__init__(monkeypatch, **spec)
        self.assignments = Assignments(self.session)
        self.context.sessions = cast("Any", self.assignments)
        self.identities = Identities(allow_insecure=False)
        self.protection = Protection()
        self.management.put(secret())

    def unconnected(self, *, read_only: bool = False) -> ClusterScope:
        return ClusterScope(self.context, self.obj, self.cluster, StatusDraft(self.obj), read_only=read_only)

    async def ensure(self, *, read_only: bool = False) -> ClusterScope:
        scope = self.unconnected(read_only=read_only)
        await ensure_session(scope, self.identities, cast("Any", self.protection))
        return scope

    def change(self, **fields: Any) -> None:
        self.management.put({**self.obj, **fields})


def condition(scope: ClusterScope, name: str) -> tuple[str, str, str]:
    found = next((each for each in scope.draft.fields.get("conditions") or () if each["type"] == name), {})
    return str(found.get("status")), str(found.get("reason")), str(found.get("message"))
