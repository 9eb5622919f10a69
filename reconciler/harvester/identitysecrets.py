"""The objects on the management cluster that make an account on Harvester an identity. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api.object import Obj
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES

MOVE_LABEL = "clusterctl.cluster.x-k8s.io/move"


def identity_secret(name: str, namespace: str, content: str) -> Obj:
    """Return the identity Secret for the management cluster (contract: key `kubeconfig`)."""
    # The label makes `clusterctl move` move the Secret, too.
    metadata = {"name": name, "namespace": namespace, "labels": {MOVE_LABEL: ""}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": {"kubeconfig": content},
    }


def shared_identity(name: str, namespace: str, content: str, allowed: Iterable[str]) -> list[Obj]:
    """Return a HarvesterClusterIdentity with its Secret, both with the same name.

    :param namespace: namespace of the provider
    :param content: the kubeconfig for Harvester
    :param allowed: namespaces that may use it
    """
    secret = identity_secret(name, namespace, content)
    # `clusterctl move` would delete it on the source, where clusters of other namespaces use it.
    del secret["metadata"]["labels"]
    kind = HARVESTER_CLUSTER_IDENTITIES
    identity = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name},
        "spec": {
            "secretRef": {"name": name, "namespace": namespace},
            "allowedNamespaces": {"list": list(allowed)},
        },
    }
    return [secret, identity]
