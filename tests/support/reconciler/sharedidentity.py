"""HarvesterClusterIdentities of tests, with their Secrets in the provider's namespace."""

from __future__ import annotations

import contextlib
from typing import Any

from caphv.api.names import GROUP
from caphv.api.object import NAMESPACES, SECRETS, Obj
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.processes import pki
from tests.support.reconciler.case import Case

PROVIDER = "caphv-system"


def shared_identity(name: str, allowed: Obj | None, namespace: str = PROVIDER, **secret: str) -> Obj:
    """A HarvesterClusterIdentity; its Secret has the same name unless `secret` says otherwise."""
    spec: Obj = {"secretRef": {"name": name, "namespace": namespace, **secret}}
    if allowed is not None:
        spec["allowedNamespaces"] = allowed
    resource = HARVESTER_CLUSTER_IDENTITIES
    return {"apiVersion": f"{GROUP}/v1beta1", "kind": resource.kind, "metadata": {"name": name}, "spec": spec}


async def share(case: Case, allowed: Obj | None, kubeconfig: Obj | None = None) -> str:
    """Create an identity and its Secret, as an administrator does; answer its name, which is that of the case."""
    with contextlib.suppress(AlreadyExists):
        await case.management.create(NAMESPACES, {"metadata": {"name": PROVIDER}})
    text = pki.to_yaml(kubeconfig or case.environment.identity()).decode()
    secret: Obj = {"metadata": {"name": case.name}, "stringData": {"kubeconfig": text}}
    await case.management.create(SECRETS, {**secret, "metadata": {"name": case.name, "namespace": PROVIDER}})
    await case.management.create(HARVESTER_CLUSTER_IDENTITIES, shared_identity(case.name, allowed))
    return case.name


async def change(case: Case, **spec: Any) -> None:
    """Change the identity of the case; null removes a field."""
    await case.management.patch(HARVESTER_CLUSTER_IDENTITIES, case.name, "", {"spec": spec})


async def unshare(case: Case) -> None:
    """Delete the identity and its Secret."""
    with contextlib.suppress(NotFound):
        await case.management.delete(HARVESTER_CLUSTER_IDENTITIES, case.name)
    with contextlib.suppress(NotFound):
        await case.management.delete(SECRETS, case.name, PROVIDER)
