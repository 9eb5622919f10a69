"""Identities that expire, and the metric that says when."""

from __future__ import annotations

from caphv.api.object import Obj, Resource
from tests.support.reconciler.case import (
    Case,
)

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


EXPIRY = "caphv_identity_expiry_seconds"


async def account_identity(case: Case) -> Obj:
    """A kubeconfig of an account of its own, whose token expires in an hour."""
    harvester, name = case.harvester, f"{case.name}-identity"
    await harvester.create(ACCOUNTS, {"metadata": {"name": name, "namespace": "default"}})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": BINDINGS.group, "kind": "ClusterRole", "name": "cluster-admin"}
    await harvester.create(BINDINGS, {"metadata": {"name": name}, "subjects": [subject], "roleRef": role})
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
    answer = await harvester.request("POST", path, body={"spec": {"expirationSeconds": 3600}})
    return case.environment.identity(token=answer["status"]["token"])


async def series(case: Case, name: str, **labels: str) -> float | None:
    return (await case.environment.provider.metrics()).get((name, frozenset(labels.items())))
