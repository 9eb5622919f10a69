"""GitRepos by which Fleet reads the bundles of defined clusters.

Without groups there is one for each workspace and namespace, with a pattern: a new cluster does not change it. Clusters
whose settings name a group have a GitRepo of their own. Two GitRepos must not read the same folder, because Fleet gives
each bundle to one of them; so in a namespace with groups all paths are listed, and a GitRepo that all its clusters left
gives up their paths. The same holds next to a cluster whose definition names a repository: its manifest has a GitRepo.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml_all
from packager.addons.merge import at
from packager.definitions.files import CLUSTER, GITREPOS, MANIFESTS
from packager.definitions.protection import protected
from packager.git.folder import RECORD, Folder, recorded
from packager.git.paths import joined
from packager.git.snapshot import Snapshot
from packager.rendering import branches, yaml
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.gitrepo import GitRepoOptions, cluster_path, git_repo, namespace_path
from packager.tree import CLUSTERS, path_of

_FILE = "gitrepo.yaml"
# No namespace begins with a dot, so that this never exists.
_NOTHING = f"{CLUSTERS}/.none"
# A GitRepo reports problems of what it reads, each of which has a condition of its own elsewhere: the bundle that
# delivers the GitRepo ignores them, except an error that Fleet also shows in `status.display`. Forced drift
# correction recreates a GitRepo that was deleted, and takes over one made by hand: without it, Fleet would do so only
# at the next change of the bundle, and report the GitRepo as not its own until then.
_CONDITIONS = ("Ready", "GitPolling", "Reconciling", "Stalled", "Accepted")
_SETTINGS = yaml.dump(
    {
        "keepResources": True,
        "correctDrift": {"enabled": True, "force": True},
        "helm": {"takeOwnership": True, "force": True, "disablePreProcess": True},
        "ignore": {"conditions": [{"type": condition} for condition in _CONDITIONS]},
    }
).encode()
_LIMITS = Limits(size=4 * 1024 * 1024, nodes=100_000, seconds=10)


class Member(NamedTuple):
    """A cluster with bundles. `group` is empty where its settings name none; `own`: its manifest has a GitRepo."""

    cluster: Key
    workspace: str
    group: str
    own: bool = False


def folders(options: GitRepoOptions, members: Iterable[Member], snapshot: Snapshot) -> dict[str, Folder]:
    """Return the folders of all GitRepos, `<workspace>/<name>`.

    Clusters of the repository that are not among the members, because their definition is invalid or suspended, stay
    with the GitRepo that reads them. Of GitRepos without a member, those are returned that lose a path to another one.
    """
    given = list(members)
    known = [one for one in given if not one.own]
    with contextlib.suppress(ValueError):  # each cluster has a finding about it
        options = replace(options, own_branches=branches.groups(snapshot.read(branches.FILE)))
    grouped = {(one.workspace, one.cluster.namespace) for one in given if one.group or one.own}
    grouped |= {place for place in _places(known) if _is_listed(options, snapshot, *place, given)}
    paths: dict[tuple[str, str], set[str]] = {}
    for one in known:
        namespace = one.cluster.namespace
        listed = (one.workspace, namespace) in grouped
        path = cluster_path(options, one.cluster) if listed else namespace_path(options, namespace)
        paths.setdefault((one.workspace, one.group or namespace), set()).add(path)
    for workspace, namespace in grouped:
        before = _readers(snapshot, workspace)
        for key in _others(snapshot, namespace, given):
            path = cluster_path(options, key)
            if _has_own(snapshot, key):
                continue
            # A pattern of earlier read it together with all others of its namespace.
            group = before.get(path, git_repo(options, workspace, namespace, [])["metadata"]["name"])
            place = workspace, group.removeprefix(f"{options.name}-")
            paths.setdefault(place, set()).add(path)
    repos = {
        path_of(place[0], repo["metadata"]["name"]): repo
        for place, found in sorted(paths.items())
        for repo in [git_repo(options, *place, sorted(found))]
    }
    for workspace in {one.workspace for one in given} | {workspace for workspace, _ in paths}:
        read = {path for place, found in paths.items() if place[0] == workspace for path in found}
        read |= {cluster_path(options, one.cluster) for one in given if one.own}
        repos = dict(_left(options, snapshot, workspace, read)) | repos
    return {
        place: Folder({_FILE: yaml.dump_all(protected([repo])).encode(), FLEET_YAML: _SETTINGS})
        for place, repo in repos.items()
    }


def _places(members: Iterable[Member]) -> set[tuple[str, str]]:
    return {(one.workspace, one.cluster.namespace) for one in members}


def _is_listed(
    options: GitRepoOptions, snapshot: Snapshot, workspace: str, namespace: str, members: Iterable[Member]
) -> bool:
    """Whether a cluster that is no member, perhaps of another source, forbids a pattern for its namespace."""
    others = _others(snapshot, namespace, members)
    before = _readers(snapshot, workspace) if others else {}
    return any(cluster_path(options, key) in before or _has_own(snapshot, key) for key in others)


def _has_own(snapshot: Snapshot, cluster: Key) -> bool:
    """Whether the manifest of a cluster has a GitRepo."""
    return b"\nkind: GitRepo\n" in (snapshot.read(f"{MANIFESTS}/{cluster}/{CLUSTER}/{CLUSTER}.yaml") or b"")


def _left(options: GitRepoOptions, snapshot: Snapshot, workspace: str, read: set[str]) -> Iterator[tuple[str, Obj]]:
    """Yield the packager's GitRepos of a workspace that have paths in common with `read`, without these.

    They stay: as long as a Bundle has the label of a former GitRepo, deleting that one would delete the Bundle.
    """
    for name in snapshot.entries(f"{GITREPOS}/{workspace}"):
        place = f"{workspace}/{name}"
        if _FILE not in recorded(snapshot.read(f"{GITREPOS}/{place}/{RECORD}")):
            continue
        for repo in _objects(snapshot.read(f"{GITREPOS}/{place}/{_FILE}")):
            paths = at(repo, "spec", "paths") or []
            own = [path for path in paths if not any(_overlap(str(path), other) for other in read)]
            if own != paths:
                # Without paths, Fleet would read the whole repository.
                yield place, {**repo, "spec": {**repo["spec"], "paths": own or [joined(options.folder, _NOTHING)]}}


def _overlap(path: str, other: str) -> bool:
    parts, others = path.split("/"), other.split("/")
    return len(parts) == len(others) and all(a == b or "*" in (a, b) for a, b in zip(parts, others, strict=True))


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
