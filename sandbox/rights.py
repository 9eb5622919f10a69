"""The shipped, least-privilege rights of the provider on the management cluster and on Harvester.

Tests and demos run under these rights, so that a missing one is noticed.
"""

from __future__ import annotations

from caphv import data
from caphv.api.names import CLOUD_PROVIDER_ROLE
from caphv.api.object import Obj
from sandbox import manifests

# The account of the provider's Deployment, as a client certificate names it.
PROVIDER = "system:serviceaccount:caphv-system:caphv-controller-manager"
PROVIDER_GROUPS = ("system:serviceaccounts", "system:serviceaccounts:caphv-system")
IDENTITY = "caphv-identity"
# Accounts of the Go provider have these rights. The sandbox has them, because no command binds the
# guests in each of its target namespaces.
_FORMER: Obj = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "caphv-sandbox-guests"},
    "rules": [
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterrolebindings"],
            "verbs": ["create", "patch", "delete"],
        },
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterroles"],
            "resourceNames": [CLOUD_PROVIDER_ROLE],
            "verbs": ["bind"],
        },
    ],
}


def provider_objects() -> list[Obj]:
    """Read namespace, account, roles and bindings of the provider on the management cluster."""
    folder = data.folder("deploy/kustomize/base")
    return manifests.read(
        folder / name for name in ("namespace.yaml", "rbac.yaml", "webhook-rbac.yaml")
    )


def identity_objects() -> list[Obj]:
    """Build the roles of an identity on Harvester and bind them to the user `IDENTITY`."""
    roles = [*manifests.read([data.folder("deploy/harvester") / "clusterroles.yaml"]), _FORMER]
    namespaces = sorted({role["metadata"]["namespace"] for role in roles if role["kind"] == "Role"})

    return [
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in namespaces
        ),
        *roles,
        *(_binding(role) for role in roles),
    ]


def _binding(role: Obj) -> Obj:
    metadata = {
        name: role["metadata"][name] for name in ("name", "namespace") if name in role["metadata"]
    }
    group = role["apiVersion"].partition("/")[0]

    return {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": role["kind"], "name": metadata["name"]},
        "subjects": [{"apiGroup": group, "kind": "User", "name": IDENTITY}],
    }
