"""Paths of clusters' objects in the repository, and the bundles with which Fleet applies them.

```
manifests/<namespace>/<cluster>/cluster/       all objects of a cluster, for the management cluster
manifests/<namespace>/<cluster>/.caphv-source  the source that defines it
namespaces/<namespace>/<group>/                shared by clusters of a namespace: the Namespace, and
                                               ClusterClasses
gitrepos/<workspace>/<name>/                   GitRepos by which Fleet reads the bundles
clusters/<namespace>/<cluster>/<bundle>/       bundles, for the clusters themselves
caphv-status.yaml                              all clusters, and problems of their definitions
caphv-upgrade.yaml                             the request for an upgrade in waves
caphv-upgrade.status.yaml                      its waves, and how far it is
```

Each of the innermost folders is one bundle of Fleet. No Secret is ever among the files.
"""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api.object import Obj, at, text_at
from packager.definitions.build import Built
from packager.definitions.protection import protect, unprotect
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.gitrepo import GitRepoOptions, git_repo
from packager.tree import CLUSTERS, VENDOR, path_of

MANIFESTS = "manifests"
NAMESPACES = "namespaces"
GITREPOS = "gitrepos"
STATUS = "caphv-status.yaml"
NAMES = (MANIFESTS, NAMESPACES, GITREPOS, CLUSTERS, VENDOR, STATUS)
"""Everything at the top of the repository, or of the remote's path."""
CLUSTER = "cluster"
SHARED_FILE = "objects.yaml"
_PATTERNS = ((NAMESPACES, "*", "*"), (MANIFESTS, "*", "*", "*"), (GITREPOS, "*", "*"))
# Fleet takes over objects that another client applied before.
_TAKE_OVER = {"helm": {"takeOwnership": True, "disablePreProcess": True}}


def files_of(built: Built) -> dict[str, bytes]:
    """Return the files of a cluster and of its shared objects, by path."""
    if built.definition is None:
        return {}
    namespace, name = built.definition.key
    folders = {path_of(MANIFESTS, namespace, name): cluster_files(built.objects, namespace)}
    for group, objects in built.shared.items():
        folders[path_of(NAMESPACES, namespace, group)] = shared_files(objects)
    return {
        f"{folder}/{path}": content
        for folder, files in folders.items()
        for path, content in files.items()
    }


def cluster_files(
    objects: Sequence[Obj], namespace: str, released: Sequence[Obj] = ()
) -> dict[str, bytes]:
    """Return the files of one cluster by path in its folder.

    `namespace` is for objects that name none. Objects are protected from the removal of the folder
    unless their Cluster is confirmed for removal. Objects in `released` are not protected.
    """
    settings = {"defaultNamespace": namespace, **_TAKE_OVER, **_diff(objects, namespace)}
    return {
        f"{CLUSTER}/{FLEET_YAML}": yaml.dump(settings).encode(),
        f"{CLUSTER}/{CLUSTER}.yaml": (
            yaml.dump_all([*protect(objects), *unprotect(released)]).encode()
        ),
    }


def released_files(objects: Sequence[Obj], namespace: str) -> dict[str, bytes]:
    """Return the files of a cluster without protection, for the commit before its removal."""
    content = yaml.dump_all(unprotect(objects)).encode()
    return {**cluster_files(objects, namespace), f"{CLUSTER}/{CLUSTER}.yaml": content}


def _diff(objects: Sequence[Obj], namespace: str) -> Obj:
    """Return the fields that Fleet ignores when it compares objects.

    The core adds variables that have a default to the list of a Cluster, and Fleet compares lists
    as a whole. Otherwise each Cluster with such a ClusterClass would be "Modified" forever.
    """
    patches = [
        {
            "apiVersion": text_at(obj, "apiVersion"),
            "kind": "Cluster",
            "namespace": text_at(obj, "metadata", "namespace") or namespace,
            "name": text_at(obj, "metadata", "name"),
            "jsonPointers": ["/spec/topology/variables"],
        }
        for obj in objects
        if obj.get("kind") == "Cluster" and at(obj, "spec", "topology", "variables")
    ]
    return {"diff": {"comparePatches": patches}} if patches else {}


def shared_files(objects: Sequence[Obj]) -> dict[str, bytes]:
    """Return the files of a group of objects that clusters share, by name."""
    return {
        FLEET_YAML: yaml.dump({"keepResources": True, **_TAKE_OVER}).encode(),
        SHARED_FILE: yaml.dump_all(protect(objects)).encode(),
    }


def management_git_repo(options: GitRepoOptions) -> Obj:
    """Return the GitRepo that makes Fleet apply all manifests to the management cluster itself."""
    top = [options.folder] if options.folder else []
    paths = ["/".join([*top, *pattern]) for pattern in _PATTERNS]
    # The GitRepo has no `keepResources`, because a cluster that was released and removed must be
    # deleted. All other objects are protected.
    return git_repo(options, "fleet-local", "management", paths)
