"""GitRepos by which Fleet reads the bundles of defined clusters.

Without groups there is one for each workspace and namespace, with a pattern: a new cluster does not change it. Clusters
whose settings name a group have a GitRepo of their own. Two GitRepos must not read the same folder, because Fleet gives
each bundle to one of them; so in a namespace with groups all paths are listed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml_all
from packager.addons.merge import at
from packager.definitions.files import GITREPOS
from packager.definitions.protection import protected
from packager.git.folder import Folder
from packager.git.snapshot import Snapshot
from packager.rendering import branches, yaml
from packager.rendering.gitrepo import GitRepoOptions, cluster_path, git_repo, namespace_path
from packager.tree import CLUSTERS, path_of

_FILE = "gitrepo.yaml"
_LIMITS = Limits(size=4 * 1024 * 1024, nodes=100_000, seconds=10)


class Member(NamedTuple):
    """A cluster with bundles. `group` is empty where its settings name none."""

    cluster: Key
    workspace: str
    group: str


def folders(options: GitRepoOptions, members: Iterable[Member], snapshot: Snapshot) -> dict[str, Folder]:
    """Return the folders of all GitRepos, `<workspace>/<name>`.

    Clusters of the repository that are not among the members, because their definition is invalid or suspended, stay
    with the GitRepo that reads them.
    """
    known = list(members)
    with contextlib.suppress(ValueError):  # each cluster has a finding about it
        options = replace(options, own_branches=branches.groups(snapshot.read(branches.FILE)))
    grouped = {(one.workspace, one.cluster.namespace) for one in known if one.group}
    paths: dict[tuple[str, str], set[str]] = {}
    for one in known:
        namespace = one.cluster.namespace
        listed = (one.workspace, namespace) in grouped
        path = cluster_path(options, one.cluster) if listed else namespace_path(options, namespace)
        paths.setdefault((one.workspace, one.group or namespace), set()).add(path)
    for workspace, namespace in grouped:
        before = _readers(snapshot, workspace)
        for key in _others(snapshot, namespace, known):
            path = cluster_path(options, key)
            # A pattern of earlier read it together with all others of its namespace.
            group = before.get(path, git_repo(options, workspace, namespace, [])["metadata"]["name"])
            place = workspace, group.removeprefix(f"{options.name}-")
            paths.setdefault(place, set()).add(path)
    repos = [git_repo(options, *place, sorted(found)) for place, found in sorted(paths.items())]
    return {
        path_of(repo["metadata"]["namespace"], repo["metadata"]["name"]): Folder(
            {_FILE: yaml.dump_all(protected([repo])).encode()}
        )
        for repo in repos
    }


def _others(snapshot: Snapshot, namespace: str, members: Iterable[Member]) -> list[Key]:
    present = {Key(namespace, name) for name in snapshot.entries(f"{CLUSTERS}/{namespace}")}
    return sorted(present - {one.cluster for one in members})


def _readers(snapshot: Snapshot, workspace: str) -> Mapping[str, str]:
    """Return the name of the GitRepo in the repository for each path that it lists."""
    found: dict[str, str] = {}
    for name in snapshot.entries(f"{GITREPOS}/{workspace}"):
        for repo in _objects(snapshot.read(f"{GITREPOS}/{workspace}/{name}/{_FILE}")):
            found |= {str(path): name for path in at(repo, "spec", "paths") or ()}
    return found


def _objects(content: bytes | None) -> list[Obj]:
    try:
        return [found for found in load_yaml_all(content or b"", _LIMITS) if isinstance(found, dict)]
    except TextError:
        return []
