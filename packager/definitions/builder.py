"""Builds everything that a repository should hold for the clusters of a source: folders, objects and problems.

Most definitions do not change between two builds. So a `Builder` remembers for each cluster its last result and input,
and one changed definition among a thousand costs as much as one alone.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml_all
from caphv.validation.finding import Fault, Finding
from packager.addons.merge import at
from packager.cluster_objects import facts_of, is_suspended
from packager.definitions import dropped, files, ownership
from packager.definitions.build import build
from packager.definitions.gitrepos import Member, folders
from packager.definitions.model import FLEET
from packager.definitions.protection import protected
from packager.definitions.shared import NAMESPACE, is_of_earlier_release
from packager.definitions.source import ClusterEntry, Source, SourceProblem
from packager.definitions.topology import needs_current_class
from packager.git.errors import GitError
from packager.git.folder import Folder, Root, blob_id
from packager.git.prune import Skipped
from packager.git.snapshot import Snapshot
from packager.rendering import branches, vendored
from packager.rendering.bundles import FLEET_YAML, workspace
from packager.rendering.gitrepo import GitRepoOptions
from packager.rendering.lockfile import FILE as RECORD
from packager.rendering.renderer import Rendered, Renderer
from packager.tree import CLUSTER_ROOT, CLUSTERS, path_of
from packager.uninstall import UninstallPolicy, policy_of

log = logging.getLogger(__name__)

MANIFEST_ROOT, NAMESPACE_ROOT = Root(files.MANIFESTS, definitions=True), Root(files.NAMESPACES)
GITREPO_ROOT = Root(files.GITREPOS)
_MANIFEST = f"{files.CLUSTER}/{files.CLUSTER}.yaml"
# For manifests that the packager wrote, perhaps edited by a user.
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000, seconds=30)


@dataclass(frozen=True)
class Emptied:
    """MachineDeployments without machines that a cluster no longer defines, and its manifest that unprotects them."""

    pools: tuple[Obj, ...]
    release: Folder


@dataclass
class BuildResult:
    """What a source builds to: folders by root, objects by cluster, and problems.

    `kept` are objects that are no longer defined and stay in the manifest of their cluster. `emptied` are those of a
    cluster that leave it, and must lose their protection first. `foreign` are the clusters among `invalid` that another
    source defines.
    """

    wanted: dict[Root, dict[str, Folder]] = field(
        default_factory=lambda: {MANIFEST_ROOT: {}, NAMESPACE_ROOT: {}, GITREPO_ROOT: {}, CLUSTER_ROOT: {}}
    )
    objects: dict[Key, Sequence[Obj]] = field(default_factory=dict)
    groups: dict[tuple[str, str], Sequence[Obj]] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)
    invalid: set[Key] = field(default_factory=set)
    foreign: set[Key] = field(default_factory=set)
    suspended: set[Key] = field(default_factory=set)
    uninstall: dict[Key, UninstallPolicy] = field(default_factory=dict)
    kept: list[Skipped] = field(default_factory=list)
    emptied: dict[Key, Emptied] = field(default_factory=dict)

    @property
    def errors(self) -> list[SourceProblem]:
        """Problems that are more than advice."""
        return [problem for problem in self.problems if not problem.advice]


@dataclass(frozen=True)
class _ClusterBuild:
    """The result for one cluster; `manifest` is None for an invalid one.

    `bundles` is None for a cluster that is suspended or gets its add-ons in another way; `workspace` is set where Fleet
    reads them. With `own_repo` its objects have a GitRepo for that.
    """

    problems: tuple[SourceProblem, ...] = ()
    objects: Sequence[Obj] = ()
    shared: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    manifest: Folder | None = None
    kept: tuple[Skipped, ...] = ()
    emptied: Emptied | None = None
    bundles: Folder | None = None
    suspended: bool = False
    workspace: str = ""
    group: str = ""
    own_repo: bool = False
    needs_current_class: bool = False
    uninstall: UninstallPolicy = field(default_factory=UninstallPolicy)


@dataclass(frozen=True)
class _Known:
    """The result for these input objects, on top of repository files with one of these ids.

    Once a cluster's own manifest and lockfile are written, the same input builds to the same result.
    """

    read: tuple[object, ...]
    source: str
    manifests: frozenset[str]
    records: frozenset[str]
    one: _ClusterBuild

    def matches(self, read: tuple[object, ...], source: str, manifest: str, record: str) -> bool:
        # The reader returns the same objects for an unchanged file.
        same = len(read) == len(self.read) and all(map(operator.is_, read, self.read)) and source == self.source
        return same and manifest in self.manifests and record in self.records


class Builder:
    """Builds clusters from definitions and plain manifests. Not thread-safe.

    `git_repos` describes the GitRepos to write for the bundles, None writes none. Without `bundles` only manifests are
    built, and a packager in the cluster renders the bundles.
    """

    def __init__(self, renderer: Renderer, git_repos: GitRepoOptions | None = None, *, bundles: bool = True) -> None:
        self._renderer = renderer
        self._git_repos = git_repos
        self._bundles = bundles
        self._known: dict[Key, _Known] = {}
        self._last: tuple[Source, str, BuildResult] | None = None
        self._protected: set[str] = set()
        self._shared: tuple[str, ...] = ()
        self._earlier: dict[str, bool] = {}

    def build(self, source: Source, snapshot: Snapshot) -> BuildResult:
        """Build a source on top of the repository: pinned versions and files of running nodes stay."""
        if self._last is None or self._last[0] is not source or self._last[1] != snapshot.commit:
            self._last = source, snapshot.commit, self._build(source, snapshot)
        return self._last[2]

    def _build(self, source: Source, snapshot: Snapshot) -> BuildResult:
        built = BuildResult(problems=list(source.problems), invalid=set(source.invalid))
        if not self._bundles:
            # Folders without a wanted state are left alone.
            del built.wanted[GITREPO_ROOT], built.wanted[CLUSTER_ROOT]
        for (namespace, name), objects in source.groups.items():
            self._share(built, snapshot, namespace, name, objects)
        classes = [obj for group in source.groups.values() for obj in group]
        # Every cluster depends on them.
        shared = tuple(_id(snapshot, path) for path in (vendored.INDEX, branches.FILE))
        before, self._known = self._known if shared == self._shared else {}, {}
        self._shared = shared
        owners = ownership.Owners(snapshot, source.name)
        built.foreign = {key for key in source.invalid if owners.other(str(key))}
        for entry in source.clusters:
            if other := owners.other(str(entry.key)):
                built.problems.append(_of_another(entry, other))
                built.invalid.add(entry.key)
                built.foreign.add(entry.key)
                continue
            recorded = owners.to_record(str(entry.key))
            read = (entry.head, *entry.others, *([] if entry.is_definition else classes))
            ids = _id(snapshot, manifest_path(entry.key)), _id(snapshot, _record_path(entry.key))
            known = before.get(entry.key)
            if known is None or not known.matches(read, recorded, *ids):
                one = self._one(entry, classes, snapshot, recorded)
                manifests, records = ({id_, built_id} for id_, built_id in zip(ids, _built_ids(one), strict=True))
                known = _Known(read, recorded, frozenset(manifests), frozenset(records), one)
            self._known[entry.key] = known
            self._add(entry.key, known.one, built, snapshot)
        if self._git_repos and self._bundles:
            members = [
                Member(key, known.one.workspace, known.one.group, known.one.own_repo)
                for key, known in self._known.items()
                if known.one.workspace
            ]
            built.wanted[GITREPO_ROOT] = folders(self._git_repos, members, snapshot)
        built.problems.sort()
        return built

    def _one(self, entry: ClusterEntry, classes: Sequence[Obj], snapshot: Snapshot, source: str) -> _ClusterBuild:
        try:
            if entry.is_definition:
                return self._defined(entry, snapshot, source)
            return self._plain(entry, classes, snapshot, source)
        except GitError:
            raise
        except Exception as error:
            # A bug that one definition triggers must not stop the others.
            log.exception("cluster %s cannot be built", entry.key)
            detail = f"internal error ({type(error).__name__}): see the log, and report it"
            return _ClusterBuild((entry.head.problem(Finding(("spec",), Fault.INVALID, detail, "definition-failed")),))

    def _defined(self, entry: ClusterEntry, snapshot: Snapshot, source: str) -> _ClusterBuild:
        before = existing(snapshot, entry.key)
        built = build(entry.head.obj, self._renderer, snapshot.tree, before)
        problems = tuple(entry.head.problem(finding) for finding in built.findings)
        if not built.ok or built.definition is None:
            return _ClusterBuild(problems)
        by_fleet = built.definition.delivery == FLEET
        # A definition that names a repository has its own GitRepo among its objects.
        own_repo = built.definition.fleet is not None
        rendered = built.rendered if by_fleet else None
        found = self._cluster(entry.key, built.objects, before, rendered, source, own_repo=own_repo)
        current = needs_current_class(built.objects[0])
        return replace(found, problems=problems, shared=built.shared, needs_current_class=current)

    def _plain(self, entry: ClusterEntry, classes: Sequence[Obj], snapshot: Snapshot, source: str) -> _ClusterBuild:
        objects = [entry.head.obj, *(item.obj for item in entry.others)]
        rendered, problems = None, []
        for facts in facts_of([*objects, *classes]):
            if facts.key == entry.key:
                rendered = self._renderer.render_one(facts, snapshot.tree)
                problems += [_placed(entry, finding) for finding in rendered.findings]
        if rendered and not rendered.ok:
            return _ClusterBuild(tuple(problems))
        before = existing(snapshot, entry.key)
        found = self._cluster(entry.key, objects, before, rendered, source, own_repo=False)
        return replace(found, problems=tuple(problems))

    def _cluster(
        self,
        key: Key,
        objects: Sequence[Obj],
        before: Sequence[Obj],
        rendered: Rendered | None,
        source: str,
        *,
        own_repo: bool,
    ) -> _ClusterBuild:
        staying = dropped.staying(before, objects, key.namespace)
        manifest = ownership.folder(files.cluster_files([*objects, *staying], key.namespace), source)
        kept = tuple(Skipped(pool_path(key, obj), dropped.WHY) for obj in staying if dropped.is_pool(obj))
        emptied = _emptied(key, objects, before, staying, source)
        found = _ClusterBuild(objects=objects, manifest=manifest, kept=kept, emptied=emptied)
        if rendered is None or rendered.settings is None or not self._bundles:
            return found
        if is_suspended(objects[0]):
            return replace(found, suspended=True)
        top = f"{CLUSTERS}/{key}/"
        bundles = Folder({path.removeprefix(top): content for path, content in rendered.tree.items()})
        return replace(
            found,
            bundles=bundles,
            workspace=workspace(rendered.settings),
            group=rendered.settings.fleet.group,
            own_repo=own_repo,
            uninstall=policy_of(rendered),
        )

    def _add(self, key: Key, found: _ClusterBuild, built: BuildResult, snapshot: Snapshot) -> None:
        built.problems += found.problems
        if found.manifest is None:
            built.invalid.add(key)
            return
        for name, objects in found.shared.items():
            self._share(built, snapshot, key.namespace, name, objects)
            if found.needs_current_class and name != NAMESPACE:
                self._replace_class(built, snapshot, path_of(key.namespace, name), objects)
        built.objects[key] = found.objects
        built.kept += found.kept
        if found.emptied:
            built.emptied[key] = found.emptied
        built.wanted[MANIFEST_ROOT][str(key)] = found.manifest
        if found.suspended:
            built.suspended.add(key)
        if found.bundles is not None:
            built.wanted[CLUSTER_ROOT][str(key)] = found.bundles
            built.uninstall[key] = found.uninstall

    def _share(self, built: BuildResult, snapshot: Snapshot, namespace: str, name: str, objects: Sequence[Obj]) -> None:
        """Add a shared group. What the repository holds stays: a changed ClusterClass would replace all machines.

        Only protection is added to what an earlier release wrote.
        """
        if (namespace, name) in built.groups:
            return
        built.groups[namespace, name] = objects
        folder = path_of(namespace, name)
        top = f"{files.NAMESPACES}/{folder}"
        if snapshot.entry(f"{top}/{FLEET_YAML}") is not None:
            path = f"{top}/{files.SHARED_FILE}"
            if (id_ := _id(snapshot, path)) in self._protected:
                return
            objects = _objects(snapshot, path)
            if not objects or objects == protected(objects):
                self._protected.add(id_)
                return
        built.wanted[NAMESPACE_ROOT][folder] = Folder(files.shared_files(objects))

    def _replace_class(self, built: BuildResult, snapshot: Snapshot, folder: str, objects: Sequence[Obj]) -> None:
        """Replace a ClusterClass of 0.11, as it was, for a cluster that sets variables which it lacks."""
        path = f"{files.NAMESPACES}/{folder}/{files.SHARED_FILE}"
        id_ = _id(snapshot, path)
        if id_ not in self._earlier:
            self._earlier[id_] = is_of_earlier_release(_objects(snapshot, path))
        if self._earlier[id_]:
            built.wanted[NAMESPACE_ROOT][folder] = Folder(files.shared_files(objects))


def existing(snapshot: Snapshot, key: Key) -> list[Obj]:
    """Return the objects that the repository holds for a cluster; none if they cannot be parsed."""
    return _objects(snapshot, manifest_path(key))


def _objects(snapshot: Snapshot, path: str) -> list[Obj]:
    return parsed(snapshot.read(path))


def parsed(content: bytes | None) -> list[Obj]:
    """Return the objects of a manifest that the packager wrote; none if they cannot be parsed."""
    try:
        found = load_yaml_all(content or b"", _LIMITS)
    except TextError:
        return []
    return [obj for obj in found if isinstance(obj, dict)]


def pool_path(key: Key, pool: Obj) -> str:
    """Return what messages call an object of a cluster's manifest."""
    return f"{files.MANIFESTS}/{key}/{pool['kind']}/{pool['metadata']['name']}"


def _emptied(
    key: Key, objects: Sequence[Obj], before: Sequence[Obj], staying: Sequence[Obj], source: str
) -> Emptied | None:
    found = dropped.emptied(before, objects, key.namespace)
    pools = tuple(obj for obj in found if dropped.is_pool(obj))
    if not pools:
        return None
    # Pools may share a template.
    others = {id(obj): obj for obj in (*staying, *found) if obj not in pools}
    content = files.cluster_files([*objects, *others.values()], key.namespace, pools)
    return Emptied(pools, ownership.folder(content, source))


def manifest_path(key: Key) -> str:
    """Return the path of the file with all objects of a cluster."""
    return f"{files.MANIFESTS}/{key}/{_MANIFEST}"


def _record_path(key: Key) -> str:
    return f"{CLUSTERS}/{key}/{RECORD}"


def _id(snapshot: Snapshot, path: str) -> str:
    entry = snapshot.entry(path)
    return entry.id if entry else ""


def _built_ids(found: _ClusterBuild) -> tuple[str, str]:
    """Return Git's ids of the built manifest and lockfile of a cluster, empty for those that were not built."""
    manifest = found.manifest and found.manifest.files[_MANIFEST]
    record = found.bundles and found.bundles.files[RECORD]
    return blob_id(manifest) if manifest else "", blob_id(record) if record else ""


def _of_another(entry: ClusterEntry, source: str) -> SourceProblem:
    detail = (
        f"cluster is defined by another source, {source}: remove one of the definitions; to move the cluster to this "
        f"source, remove {ownership.path_of_record(str(entry.key))} from the repository"
    )
    return entry.head.problem(Finding(("metadata", "name"), Fault.DUPLICATE, detail, "definition-source"))


def _placed(entry: ClusterEntry, finding: Finding) -> SourceProblem:
    """Return a finding at the object that it is about, which is found by its field."""
    for item in (entry.head, *entry.others):
        if at(item.obj, *finding.path[:2]) is not None:
            return item.problem(finding)
    return entry.head.problem(finding)
