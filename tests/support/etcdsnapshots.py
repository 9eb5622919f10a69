"""ETCDSnapshotFiles as servers of RKE2 and K3s write them."""

from __future__ import annotations

from caphv.api.object import Obj

FOLDER = "/var/lib/rancher/rke2/server/db/snapshots"


def snapshot_file(node: str, created: str, *, s3: bool = False, error: str = "", prefix: str = "etcd-snapshot") -> Obj:
    """Return the object of one copy of a snapshot; with an error, it was not written."""
    name = f"{prefix}-{node}-{created[11:13]}"
    location = f"s3://etcd-snapshots/team/shop/{name}" if s3 else f"file://{FOLDER}/{name}"
    store = {"s3": {"endpoint": "s3.example.com", "bucket": "etcd-snapshots", "prefix": "team/shop"}}
    status: Obj = {"creationTime": created, "readyToUse": not error, "size": "0" if error else "8937504"}
    if error:
        status["error"] = {"time": created, "message": error}
    return {
        "apiVersion": "k3s.cattle.io/v1",
        "kind": "ETCDSnapshotFile",
        "metadata": {"name": f"{'s3' if s3 else 'local'}-{name}-e1e196"},
        "spec": {"snapshotName": name, "nodeName": node, "location": location, **(store if s3 else {})},
        "status": status,
    }


# The schema is that of k3s-io/k3s, as far as its fields are read here.
CRD: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "etcdsnapshotfiles.k3s.cattle.io"},
    "spec": {
        "group": "k3s.cattle.io",
        "scope": "Cluster",
        "names": {"kind": "ETCDSnapshotFile", "plural": "etcdsnapshotfiles", "singular": "etcdsnapshotfile"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "status": {
                                "type": "object",
                                "properties": {
                                    "creationTime": {"type": "string", "nullable": True},
                                    "readyToUse": {"type": "boolean", "nullable": True},
                                    "size": {"type": "string", "nullable": True},
                                    "error": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}
