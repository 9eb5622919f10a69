"""A management cluster and a Harvester in one, on which the token of an identity is rotated."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from caphv.api.object import SECRETS, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES, HARVESTER_CLUSTERS
from caphv.runtime.kubeconfig import Kubeconfig
from operations.change.rotation import run
from operations.doctor import rights
from tests.support import kubeconfigs


def token(secret: str, **more: Any) -> str:
    claims = {"sub": "system:serviceaccount:caphv-system:caphv", "kubernetes.io/serviceaccount/secret.name": secret}
    claims |= more
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "c2ln"])


def identity(secret: str = "caphv-token", **claims: Any) -> Obj:
    config = kubeconfigs.valid()
    config["users"][0]["user"]["token"] = token(secret, **claims)
    content = base64.b64encode(yaml.safe_dump(config).encode()).decode()
    metadata = {"name": "identity", "namespace": "team-a", "resourceVersion": "1"}
    return {"kind": "Secret", "metadata": metadata, "data": {"kubeconfig": content}}


class Server:
    """A management cluster and a Harvester in one; `fail` raises what a request meets."""

    server = "https://harvester.example.com:6443"
    budget = None

    def __init__(self) -> None:
        condition = {"type": "HarvesterConnectionReady", "status": "True"}
        self.cluster: Obj = {
            "kind": "HarvesterCluster",
            "metadata": {"name": "shop", "namespace": "team-a"},
            "spec": {"identitySecret": {"namespace": "team-a", "name": "identity"}, "targetNamespace": "shop"},
            "status": {"conditions": [condition]},
        }
        self.identity = identity()
        self.others: dict[str, Obj] = {}
        self.shared: list[Obj] = []
        self.deleted: list[str] = []
        self.uid = "u"
        self.connections = 0
        """Clients that are not closed."""
        self.fail: Callable[[str, Resource, str], None] = lambda *_: None

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        self.fail("get", resource, name)
        if resource is HARVESTER_CLUSTER_IDENTITIES:
            return next(obj for obj in self.shared if obj["metadata"]["name"] == name)
        if resource is SECRETS and namespace == "team-a":
            return self.others.get(name, self.identity)
        if resource is SECRETS:
            note = {"kubernetes.io/service-account.name": "caphv"}
            value = base64.b64encode(token(name).encode()).decode()
            metadata = {"name": name, "namespace": namespace, "uid": name, "annotations": note}
            data = {"token": value, "ca.crt": value}
            return {"metadata": metadata, "type": "kubernetes.io/service-account-token", "data": data}
        return self.cluster if resource is HARVESTER_CLUSTERS else {"metadata": {"name": name, "uid": self.uid}}

    async def list(self, resource: Resource, *_: object, **__: object) -> Obj:
        others = [
            self.cluster | {"metadata": {"name": name, "namespace": "team-a"}, "spec": self._spec(name)}
            for name in self.others
        ]
        items = {HARVESTER_CLUSTERS: [self.cluster, *others], HARVESTER_CLUSTER_IDENTITIES: self.shared}
        return {"metadata": {}, "items": items.get(resource, [])}

    def _spec(self, identity: str) -> Obj:
        return self.cluster["spec"] | {"identitySecret": {"namespace": "team-a", "name": identity}}

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        self.fail("create", resource, obj["metadata"]["name"])
        return obj

    async def patch(self, resource: Resource, name: str, _namespace: str, patch: Obj) -> Obj:
        self.fail("write" if "data" in patch else "note", resource, name)
        annotations = self.identity["metadata"].get("annotations", {}) | patch["metadata"]["annotations"]
        self.identity["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value}
        self.identity["data"] |= patch.get("data", {})
        return self.identity

    async def delete(self, resource: Resource, name: str, *_: object, **__: object) -> None:
        self.fail("delete", resource, name)
        self.deleted.append(name)

    def client(self, *_: object, **__: object) -> Server:
        self.connections += 1
        return self

    async def close(self) -> None:
        self.connections -= 1


def failing(verb: str, resource: Resource, error: Exception, name: str = "") -> Callable[[str, Resource, str], None]:
    def fail(asked: str, of: Resource, named: str) -> None:
        if (asked, of) == (verb, resource) and name in ("", named):
            raise error

    return fail


def replace_servers(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Replace the servers that a rotation asks, and return what stands for them."""
    server = Server()

    async def denied(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(run, "_SETTLE_SECONDS", 0)
    monkeypatch.setattr(Kubeconfig, "client", server.client)
    monkeypatch.setattr(rights, "find_denied", denied)
    return server
