"""GitRepos that make Fleet read the bundles of defined clusters.

Without groups, each workspace and namespace has one GitRepo with a pattern, so that a new cluster
does not change it. Clusters whose settings name a group have a GitRepo for the group. Two GitRepos
must not read the same folder, because Fleet gives each bundle to one of them. So in a namespace
with groups all paths are listed, and a GitRepo that all its clusters left gives up their paths.
Paths are also listed next to a cluster whose definition names a repository, because its manifest
has a GitRepo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from caphv.api.object import Key, Obj, list_at
from caphv.runtime.text import Limits
from packager.definitions.files import GITREPOS
from packager.definitions.manifest import manifest_path, parse_manifest
from packager.definitions.protection import protect
from packager.git.folder import FILE_LIST, Folder, parse_file_list
from packager.git.paths import join_path
from packager.git.snapshot import Snapshot
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.gitrepo import GitRepoOptions, cluster_path, git_repo, namespace_path
from packager.tree import CLUSTERS, is_plain, path_of

_FILE = "gitrepo.yaml"
# No namespace begins with a dot, so that this never exists.
_NOTHING = f"{CLUSTERS}/.none"
# A GitRepo reports problems of its bundles, which have their own conditions elsewhere. So the
# bundle that delivers the GitRepo ignores them, except an error that Fleet also shows in
# `status.display`. Forced drift correction recreates a GitRepo that was deleted, and takes over one
# created by hand. Otherwise Fleet would do so only when the bundle changes next, and report the
# GitRepo as not its own until then.
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
    """A cluster with bundles.

    `group` is empty if the cluster's settings name none. `has_repo`: its manifest has a GitRepo.
    """

    cluster: Key
    workspace: str
    group: str
    has_repo: bool = False


class _RepoGroup(NamedTuple):
    """The clusters of one GitRepo: a group in a workspace, by default the namespace's name."""

    workspace: str
    group: str


class _Namespace(NamedTuple):
    """A namespace of clusters, whose bundles the Fleet of one workspace reads."""

    workspace: str
    namespace: str


def folders(
    options: GitRepoOptions, members: Sequence[Member], snapshot: Snapshot
) -> dict[str, Folder]:
    """Return the folders of all GitRepos, `<workspace>/<name>`.

    Clusters of the repository that are not among the members, because their definition is invalid
    or suspended, stay with the GitRepo that reads them. A GitRepo without a member is returned if
    it loses a path to another one.
    """
    paths = _paths(options, members, snapshot)
    repos: dict[str, Obj] = {}
    for (workspace, group), repo_paths in sorted(paths.items()):
        repo = git_repo(options, workspace, group, sorted(repo_paths))
        repos[path_of(workspace, repo["metadata"]["name"])] = repo

    workspaces = {member.workspace for member in members} | {repo.workspace for repo in paths}
    for workspace in workspaces:
        taken = {cluster_path(options, member.cluster) for member in members if member.has_repo}
        for repo_group, repo_paths in paths.items():
            if repo_group.workspace == workspace:
                taken |= repo_paths
        # A GitRepo that still has members was built above. Add only the others.
        for folder, repo in _former_repos(options, snapshot, workspace, taken):
            repos.setdefault(folder, repo)

    return {
        folder: Folder({_FILE: yaml.dump_all(protect([repo])).encode(), FLEET_YAML: _SETTINGS})
        for folder, repo in repos.items()
    }


def _paths(
    options: GitRepoOptions, members: Sequence[Member], snapshot: Snapshot
) -> dict[_RepoGroup, set[str]]:
    """Return the paths that each GitRepo reads.

    A namespace is read by one pattern, or its clusters are listed one by one. It is listed if the
    pattern would also read a cluster that another GitRepo reads.
    """
    readable = [member for member in members if not member.has_repo]
    listed = {
        _Namespace(member.workspace, member.cluster.namespace)
        for member in members
        if member.group or member.has_repo
    }
    for namespace in {
        _Namespace(member.workspace, member.cluster.namespace) for member in readable
    }:
        if _is_listed(options, snapshot, namespace, members):
            listed.add(namespace)

    paths: dict[_RepoGroup, set[str]] = {}
    for member in readable:
        namespace = _Namespace(member.workspace, member.cluster.namespace)
        path = namespace_path(options, namespace.namespace)
        if namespace in listed:
            path = cluster_path(options, member.cluster)
        repo_group = _RepoGroup(member.workspace, member.group or namespace.namespace)
        paths.setdefault(repo_group, set()).add(path)

    # Clusters of the repository that are no members stay with the GitRepo that lists them. If a
    # pattern has read them so far, they stay with the GitRepo of their namespace.
    for workspace, name in listed:
        readers = _readers(snapshot, workspace)
        for key in _others(snapshot, name, members):
            if _has_repo(snapshot, key):
                continue
            path = cluster_path(options, key)
            default = git_repo(options, workspace, name, [])["metadata"]["name"]
            group = readers.get(path, default).removeprefix(f"{options.name}-")
            paths.setdefault(_RepoGroup(workspace, group), set()).add(path)
    return paths


def _is_listed(
    options: GitRepoOptions, snapshot: Snapshot, namespace: _Namespace, members: Iterable[Member]
) -> bool:
    """Whether a cluster that is no member forbids a pattern for its namespace.

    Another source may define such a cluster. It forbids the pattern if a GitRepo lists it, or if
    its own manifest has a GitRepo.
    """
    others = _others(snapshot, namespace.namespace, members)
    readers = _readers(snapshot, namespace.workspace) if others else {}
    return any(cluster_path(options, key) in readers or _has_repo(snapshot, key) for key in others)


def _has_repo(snapshot: Snapshot, cluster: Key) -> bool:
    """Whether the manifest of a cluster has a GitRepo."""
    manifest = snapshot.read(manifest_path(cluster))
    return b"\nkind: GitRepo\n" in (manifest or b"")


def _former_repos(
    options: GitRepoOptions, snapshot: Snapshot, workspace: str, taken: set[str]
) -> Iterator[tuple[str, Obj]]:
    """Yield the packager's GitRepos of a workspace that list paths in `taken`, without these paths.

    Former GitRepos stay, because deleting one would delete the Bundles that still have its label.
    Yields the folder `<workspace>/<name>` with each GitRepo.
    """
    for name in _repo_names(snapshot, workspace):
        folder = f"{workspace}/{name}"
        if _FILE not in parse_file_list(snapshot.read(f"{GITREPOS}/{folder}/{FILE_LIST}")):
            continue
        for repo in parse_manifest(snapshot.read(f"{GITREPOS}/{folder}/{_FILE}"), _LIMITS):
            paths = list_at(repo, "spec", "paths")
            free = [
                path
                for path in paths
                if not any(_paths_overlap(str(path), other) for other in taken)
            ]
            if free != paths:
                # Without paths, Fleet would read the whole repository.
                spec = {**repo["spec"], "paths": free or [join_path(options.folder, _NOTHING)]}
                yield folder, {**repo, "spec": spec}


def _paths_overlap(path: str, other: str) -> bool:
    """Whether two paths, each of which may be a pattern with `*`, read a common folder."""
    parts = path.split("/")
    others = other.split("/")
    return len(parts) == len(others) and all(
        a == b or "*" in (a, b) for a, b in zip(parts, others, strict=True)
    )


def _others(snapshot: Snapshot, namespace: str, members: Iterable[Member]) -> list[Key]:
    """Return the clusters of a namespace in the repository that are not among the members."""
    entries = snapshot.entries(f"{CLUSTERS}/{namespace}")
    # A user may keep files next to the folders.
    present = {
        Key(namespace, name)
        for name, entry in entries.items()
        if entry.is_folder and is_plain(name)
    }
    return sorted(present - {member.cluster for member in members})


def _readers(snapshot: Snapshot, workspace: str) -> Mapping[str, str]:
    """Return the name of the GitRepo that lists a path, for each path in the repository."""
    readers: dict[str, str] = {}
    for name in _repo_names(snapshot, workspace):
        for repo in parse_manifest(
            snapshot.read(f"{GITREPOS}/{workspace}/{name}/{_FILE}"), _LIMITS
        ):
            for path in list_at(repo, "spec", "paths"):
                readers[str(path)] = name
    return readers


def _repo_names(snapshot: Snapshot, workspace: str) -> Iterator[str]:
    """Return the folders of GitRepos in a workspace whose names the packager may write."""
    return filter(is_plain, snapshot.entries(f"{GITREPOS}/{workspace}"))
