"""Builds the content that a repository should have for the clusters of a source.

Most definitions do not change between two builds. A `Builder` keeps the last result of each cluster
with its input, so one changed definition among a thousand costs as much as one alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from caphv.api.object import Key, Obj, at
from caphv.validation.finding import Fault, Finding
from packager.addons.cluster_objects import facts_of, is_suspended
from packager.contents.uninstall import policy_of
from packager.definitions import dropped, files, ownership
from packager.definitions.build import build
from packager.definitions.buildresult import (
    GITREPO_ROOT,
    MANIFEST_ROOT,
    NAMESPACE_ROOT,
    BuildResult,
    ClusterBuild,
    EmptyPools,
    Memo,
)
from packager.definitions.gitrepos import Member, folders
from packager.definitions.manifest import MANIFEST, existing, manifest_path, pool_path
from packager.definitions.model import FLEET
from packager.definitions.source import ClusterEntry, Source
from packager.definitions.sourcefile import SourceProblem
from packager.git.errors import GitError
from packager.git.folder import Folder, blob_id
from packager.git.pruning import Skipped
from packager.git.snapshot import Snapshot
from packager.rendering import vendored
from packager.rendering.bundles import FLEET_YAML, workspace
from packager.rendering.gitrepo import GitRepoOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import CLUSTER_ROOT, CLUSTERS, path_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _CachedBuild:
    """The result of building a source on top of a commit of the repository."""

    source: Source
    commit: str
    result: BuildResult


class Builder:
    """Builds clusters from definitions and plain manifests. Not thread-safe.

    `git_repos` describes the GitRepos to write for the bundles; None writes none. Without
    `bundles`, only manifests are built, and a packager in the cluster renders the bundles.
    """

    def __init__(
        self, renderer: Renderer, git_repos: GitRepoOptions | None = None, *, bundles: bool = True
    ) -> None:
        self._renderer = renderer
        self._git_repos = git_repos
        self._bundles = bundles
        self._memos: dict[Key, Memo] = {}
        self._last: _CachedBuild | None = None
        # Git's id of the folder of vendored charts, on which all memos depend.
        self._charts = ""

    def build(self, source: Source, snapshot: Snapshot) -> BuildResult:
        """Build a source on top of the repository.

        Pinned versions stay, and so do the files of running nodes.
        """
        # One commit is planned several times, for a review and to find changes that wait for it.
        last = self._last
        if last is None or last.source is not source or last.commit != snapshot.commit:
            last = _CachedBuild(source, snapshot.commit, self._build(source, snapshot))
            self._last = last
        return last.result

    def _build(self, source: Source, snapshot: Snapshot) -> BuildResult:
        """Build all clusters and shared groups of a source, and the GitRepos of their bundles.

        Leaves new memos. A cluster of another source is reported, and not built.
        """
        # Begin with the problems of reading, to which builds add theirs.
        built = BuildResult(
            problems=list(source.problems),
            invalid=set(source.invalid),
            invalid_groups=set(source.invalid_groups),
        )
        if not self._bundles:
            # Folders of roots that are not wanted are left alone.
            del built.wanted[GITREPO_ROOT]
            del built.wanted[CLUSTER_ROOT]
        for (namespace, name), objects in source.groups.items():
            self._add_shared_group(built, snapshot, namespace, name, objects)
        classes = [obj for group in source.groups.values() for obj in group]

        # Changed charts may change any bundle, so no memo holds any more. Memos of clusters that
        # the source no longer defines are dropped.
        charts = _entry_id(snapshot, vendored.TOP)
        memos = self._memos if charts == self._charts else {}
        self._charts = charts
        self._memos = {}

        owners = ownership.Owners(snapshot, source.name)
        built.foreign = {key for key in source.invalid if owners.other_source(str(key))}
        for entry in source.clusters:
            key = entry.key
            if other := owners.other_source(str(key)):
                built.problems.append(_other_source_problem(entry, other))
                built.invalid.add(key)
                built.foreign.add(key)
                continue
            recorded = owners.source_to_record(str(key))
            memo = self._build_cluster(entry, classes, snapshot, recorded, memos.get(key))
            self._memos[key] = memo
            self._add_cluster(key, memo.result, built, snapshot)

        if self._git_repos and self._bundles:
            members = []
            for key, memo in self._memos.items():
                result = memo.result
                if result.workspace:
                    members.append(Member(key, result.workspace, result.group, result.own_repo))
            built.wanted[GITREPO_ROOT] = folders(self._git_repos, members, snapshot)
        built.problems.sort()
        return built

    def _build_cluster(
        self,
        entry: ClusterEntry,
        classes: Sequence[Obj],
        snapshot: Snapshot,
        source: str,
        memo: Memo | None,
    ) -> Memo:
        """Build one cluster, unless its last result still holds.

        :param entry: the definition or the manifests of the cluster
        :param classes: the ClusterClasses of the source, with their templates
        :param snapshot: the repository
        :param source: source of the cluster to record in the repository
        :param memo: the last result
        """
        inputs: tuple[object, ...] = (entry.head, *entry.others)
        if not entry.is_definition:
            inputs = (*inputs, *classes)
        manifest = _entry_id(snapshot, manifest_path(entry.key))
        bundles = _entry_id(snapshot, f"{CLUSTERS}/{entry.key}")
        if memo is not None and memo.matches(inputs, source, manifest, bundles):
            return memo

        # The result also holds once it has been committed, so note the ids that it will have then.
        result = self._try_to_build(entry, classes, snapshot, source)
        manifests = {manifest}
        folders = {bundles}
        if result.manifest:
            manifests.add(blob_id(result.manifest.files[MANIFEST]))
        if result.bundles:
            folders.add(result.bundles.id)
        return Memo(
            inputs=inputs,
            source=source,
            manifests=frozenset(manifests),
            bundles=frozenset(folders),
            result=result,
        )

    def _try_to_build(
        self, entry: ClusterEntry, classes: Sequence[Obj], snapshot: Snapshot, source: str
    ) -> ClusterBuild:
        """Build one cluster, and report an unexpected error as a problem of its definition."""
        try:
            if entry.is_definition:
                return self._build_definition(entry, snapshot, source)
            return self._build_manifests(entry, classes, snapshot, source)
        except GitError:
            raise
        except Exception as error:
            # A bug that one definition triggers must not stop the others.
            log.exception("cluster %s cannot be built", entry.key)
            detail = f"internal error ({type(error).__name__}): see the log, and report it"
            finding = Finding(("spec",), Fault.INVALID, detail, "definition-failed")
            return ClusterBuild((entry.head.problem(finding),))

    def _build_definition(
        self, entry: ClusterEntry, snapshot: Snapshot, source: str
    ) -> ClusterBuild:
        before = existing(snapshot, entry.key)
        built = build(entry.head.obj, self._renderer, snapshot.tree, before)
        problems = tuple(entry.head.problem(finding) for finding in built.findings)
        if not built.ok or built.definition is None:
            return ClusterBuild(problems)

        rendered = built.rendered if built.definition.delivery == FLEET else None
        # A definition that names a repository has its own GitRepo among its objects.
        own_repo = built.definition.fleet is not None
        result = self._cluster_build(
            entry.key, built.objects, before, rendered, source, own_repo=own_repo
        )
        return replace(result, problems=problems, shared=built.shared)

    def _build_manifests(
        self, entry: ClusterEntry, classes: Sequence[Obj], snapshot: Snapshot, source: str
    ) -> ClusterBuild:
        """Return the objects as they are, with bundles if the Cluster is on Harvester."""
        objects = [entry.head.obj, *(item.obj for item in entry.others)]
        rendered = None
        problems = []
        for facts in facts_of([*objects, *classes]):
            if facts.key == entry.key:
                rendered = self._renderer.render_one(facts, snapshot.tree)
                problems += [_locate(entry, finding) for finding in rendered.findings]
        if rendered and not rendered.ok:
            return ClusterBuild(tuple(problems))

        before = existing(snapshot, entry.key)
        result = self._cluster_build(entry.key, objects, before, rendered, source, own_repo=False)
        return replace(result, problems=tuple(problems))

    def _cluster_build(
        self,
        key: Key,
        objects: Sequence[Obj],
        before: Sequence[Obj],
        rendered: Rendered | None,
        source: str,
        *,
        own_repo: bool,
    ) -> ClusterBuild:
        """Return the result for one cluster: the folders of its manifest and of its bundles.

        :param key: namespace and name of the cluster
        :param objects: all objects of the cluster, the Cluster first
        :param before: the objects that the repository holds
        :param rendered: bundles of the cluster, None if Fleet does not deliver them
        :param source: source of the cluster to record in the repository
        :param own_repo: whether the objects have a GitRepo
        """
        # Keep dropped pools, whose machines may still run.
        staying = dropped.staying_pools(before, objects, key.namespace)
        content = files.cluster_files([*objects, *staying], key.namespace)
        result = ClusterBuild(
            objects=objects,
            manifest=ownership.folder(content, source),
            staying_pools=tuple(
                Skipped(pool_path(key, obj), dropped.WHY) for obj in staying if dropped.is_pool(obj)
            ),
            empty_pools=_find_empty_pools(key, objects, before, staying, source),
        )
        if rendered is None or rendered.settings is None or not self._bundles:
            return result
        if is_suspended(objects[0]):
            return replace(result, suspended=True)

        top = f"{CLUSTERS}/{key}/"
        bundles = {path.removeprefix(top): content for path, content in rendered.tree.items()}
        return replace(
            result,
            bundles=Folder(bundles),
            workspace=workspace(rendered.settings),
            group=rendered.settings.fleet.group,
            own_repo=own_repo,
            uninstall=policy_of(rendered),
        )

    def _add_cluster(
        self, key: Key, result: ClusterBuild, built: BuildResult, snapshot: Snapshot
    ) -> None:
        """Add the result of one cluster to the result of the source."""
        built.problems += result.problems
        if result.manifest is None:
            built.invalid.add(key)
            return

        for name, objects in result.shared.items():
            self._add_shared_group(built, snapshot, key.namespace, name, objects)
        built.objects[key] = result.objects
        built.staying_pools += result.staying_pools
        if result.empty_pools:
            built.empty_pools[key] = result.empty_pools
        built.wanted[MANIFEST_ROOT][str(key)] = result.manifest
        if result.suspended:
            built.suspended.add(key)
        if result.bundles is not None:
            built.wanted[CLUSTER_ROOT][str(key)] = result.bundles
            built.uninstall[key] = result.uninstall

    def _add_shared_group(
        self,
        built: BuildResult,
        snapshot: Snapshot,
        namespace: str,
        name: str,
        objects: Sequence[Obj],
    ) -> None:
        """Add a shared group of objects, unless the repository holds it.

        An existing group stays, because a changed ClusterClass would replace all machines. A group
        that is invalid in the source is not replaced by that of a definition either.

        :param built: the result to add the group to
        :param snapshot: the repository
        :param namespace: namespace of the objects
        :param name: name of the group
        :param objects: objects of the group
        """
        if (namespace, name) in built.groups or (namespace, name) in built.invalid_groups:
            return
        built.groups[namespace, name] = objects
        folder = path_of(namespace, name)
        if snapshot.entry(f"{files.NAMESPACES}/{folder}/{FLEET_YAML}") is None:
            built.wanted[NAMESPACE_ROOT][folder] = Folder(files.shared_files(objects))


def _find_empty_pools(
    key: Key, objects: Sequence[Obj], before: Sequence[Obj], staying: Sequence[Obj], source: str
) -> EmptyPools | None:
    """Return the dropped MachineDeployments without machines, None if there are none.

    :param key: namespace and name of the cluster
    :param objects: all objects of the cluster
    :param before: the objects that the repository holds
    :param staying: dropped objects that the manifest keeps
    :param source: source of the cluster to record in the repository
    """
    pools_with_templates = dropped.empty_pools(before, objects, key.namespace)
    pools = tuple(obj for obj in pools_with_templates if dropped.is_pool(obj))
    if not pools:
        return None
    # A staying pool may share a template with an empty one, so write each object once.
    others = {id(obj): obj for obj in (*staying, *pools_with_templates) if obj not in pools}
    content = files.cluster_files([*objects, *others.values()], key.namespace, pools)
    return EmptyPools(pools, ownership.folder(content, source))


def _entry_id(snapshot: Snapshot, path: str) -> str:
    entry = snapshot.entry(path)
    return entry.id if entry else ""


def _other_source_problem(entry: ClusterEntry, source: str) -> SourceProblem:
    record = ownership.path_of_record(str(entry.key))
    detail = (
        f"cluster is defined by another source, {source}: remove one of the definitions; to move "
        f"the cluster to this source, remove {record} from the repository"
    )
    finding = Finding(("metadata", "name"), Fault.DUPLICATE, detail, "definition-source")
    return entry.head.problem(finding)


def _locate(entry: ClusterEntry, finding: Finding) -> SourceProblem:
    """Return a finding with the place of the object that has its field."""
    for item in (entry.head, *entry.others):
        if at(item.obj, *finding.path[:2]) is not None:
            return item.problem(finding)
    return entry.head.problem(finding)
