"""Objects of clusters as files of a repository that Fleet reads on the management cluster.

```
manifests/<namespace>/<cluster>/cluster/      all objects of one cluster
namespaces/<namespace>/<group>/               what its clusters share: the Namespace, and ClusterClasses
```

Each of these folders is one bundle of Fleet. A cluster goes with its folder; what clusters share stays. No Secret is
ever among the files.
"""

from __future__ import annotations

from collections.abc import Sequence

from packager.addons.merge import Obj
from packager.definitions.build import Built
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.tree import path_of

MANIFESTS, NAMESPACES = "manifests", "namespaces"
CLUSTER = "cluster"
# Whoever applied the objects before, Fleet goes on with them.
_TAKE_OVER = {"helm": {"takeOwnership": True, "disablePreProcess": True}}


def files_of(found: Built) -> dict[str, bytes]:
    """Return the files of a cluster and of what it shares with others, by path."""
    if found.definition is None:
        return {}
    namespace, name = found.definition.key
    folders = {path_of(MANIFESTS, namespace, name): cluster_files(found.objects, namespace)}
    for group, objects in found.shared.items():
        folders[path_of(NAMESPACES, namespace, group)] = shared_files(objects)
    return {f"{folder}/{path}": content for folder, files in folders.items() for path, content in files.items()}


def cluster_files(objects: Sequence[Obj], namespace: str) -> dict[str, bytes]:
    """Return the files of one cluster, by path in its folder; `namespace` is that of objects that say none."""
    return {
        f"{CLUSTER}/{FLEET_YAML}": yaml.dump({"defaultNamespace": namespace, **_TAKE_OVER}).encode(),
        f"{CLUSTER}/{CLUSTER}.yaml": yaml.dump_all(objects).encode(),
    }


def shared_files(objects: Sequence[Obj]) -> dict[str, bytes]:
    """Return the files of a group of objects that clusters share, by name."""
    return {
        FLEET_YAML: yaml.dump({"keepResources": True, **_TAKE_OVER}).encode(),
        "objects.yaml": yaml.dump_all(objects).encode(),
    }
