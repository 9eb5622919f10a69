"""From a source of definitions to all that a repository should hold for its clusters: folders, objects and problems.

Most definitions are the same the next time. So a `Maker` remembers of each cluster what it made last and from what, and
a changed definition among a thousand costs what one costs.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from caphv.api.object import Key
from caphv.validation.finding import Fault, Finding
from packager.addons.merge import Obj, at
from packager.cluster_objects import facts_of, is_suspended
from packager.definitions import files
from packager.definitions.build import build
from packager.definitions.model import FLEET
from packager.definitions.nodeconfig import first_files
from packager.definitions.source import Given, Problem, Source
from packager.git.errors import GitError
from packager.git.folder import Folder, blob_id
from packager.git.publish import CLUSTER_ROOT, Root
from packager.git.snapshot import Snapshot
from packager.rendering import yaml as yamltext
from packager.rendering.bundles import FLEET_YAML, workspace
from packager.rendering.gitrepo import GitRepoOptions, git_repo
from packager.rendering.lockfile import FILE as RECORD
from packager.rendering.renderer import Rendered, Renderer
from packager.tree import CLUSTERS, path_of

log = logging.getLogger(__name__)

GITREPOS = "gitrepos"
MANIFEST_ROOT, NAMESPACE_ROOT = Root(files.MANIFESTS, definitions=True), Root(files.NAMESPACES)
GITREPO_ROOT = Root(GITREPOS)
_MANIFEST = f"{files.CLUSTER}/{files.CLUSTER}.yaml"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Made:
    """What a source makes: folders by root, objects by cluster, and what there is to say."""

    wanted: dict[Root, dict[str, Folder]] = field(
        default_factory=lambda: {MANIFEST_ROOT: {}, NAMESPACE_ROOT: {}, GITREPO_ROOT: {}, CLUSTER_ROOT: {}}
    )
    objects: dict[Key, Sequence[Obj]] = field(default_factory=dict)
    groups: dict[tuple[str, str], Sequence[Obj]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    bad: set[Key] = field(default_factory=set)
    suspended: set[Key] = field(default_factory=set)

    @property
    def errors(self) -> list[Problem]:
        """Problems that are more than advice."""
        return [problem for problem in self.problems if not problem.advice]


@dataclass(frozen=True)
class _One:
    """What one cluster of a source becomes; without `manifest` it is faulty.

    `bundles` is empty for a cluster that is suspended or gets its add-ons in another way; `workspace` where Fleet needs
    a GitRepo for them.
    """

    problems: tuple[Problem, ...] = ()
    objects: Sequence[Obj] = ()
    shared: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    manifest: Folder | None = None
    bundles: Folder | None = None
    suspended: bool = False
    workspace: str = ""


@dataclass(frozen=True)
class _Known:
    """What was made of objects as they were read, over files of the repository with one of these ids.

    A cluster's own manifest and record, once they are written, make the very same again.
    """

    read: tuple[object, ...]
    manifests: frozenset[str]
    records: frozenset[str]
    one: _One

    def counts(self, read: tuple[object, ...], manifest: str, record: str) -> bool:
        # Objects of files that did not change are the very same.
        same = len(read) == len(self.read) and all(map(operator.is_, read, self.read))
        return same and manifest in self.manifests and record in self.records


class Maker:
    """Makes clusters of definitions and plain manifests; not for several threads at once.

    `git_repos` makes GitRepos for the bundles, None leaves them to somebody else. Without `bundles` only manifests are
    made, and a packager in the cluster sees to bundles.
    """

    def __init__(self, renderer: Renderer, git_repos: GitRepoOptions | None = None, *, bundles: bool = True) -> None:
        self._renderer = renderer
        self._git_repos = git_repos
        self._bundles = bundles
        self._known: dict[Key, _Known] = {}
        self._last: tuple[Source, str, Made] | None = None
        self._known_repos: dict[tuple[str, str], tuple[str, Folder]] = {}

    def make(self, source: Source, snapshot: Snapshot) -> Made:
        """Return what a source makes over what the repository holds: pinned versions and first boots stay."""
        if self._last is None or self._last[0] is not source or self._last[1] != snapshot.commit:
            self._last = source, snapshot.commit, self._make(source, snapshot)
        return self._last[2]

    def _make(self, source: Source, snapshot: Snapshot) -> Made:
        made = Made(problems=list(source.problems), bad=set(source.bad))
        if not self._bundles:
            # Of these folders nothing is said, so nothing in them is unwanted either.
            del made.wanted[GITREPO_ROOT], made.wanted[CLUSTER_ROOT]
        for (namespace, name), objects in source.groups.items():
            _share(made, snapshot, namespace, name, objects)
        classes = [obj for group in source.groups.values() for obj in group]
        before, self._known = self._known, {}
        for given in source.clusters:
            read = (given.head, *given.others, *([] if given.is_definition else classes))
            ids = _id(snapshot, manifest_path(given.key)), _id(snapshot, _record_path(given.key))
            known = before.get(given.key)
            if known is None or not known.counts(read, *ids):
                one = self._one(given, classes, snapshot)
                manifests, records = ({id_, made_id} for id_, made_id in zip(ids, _made_ids(one), strict=True))
                known = _Known(read, frozenset(manifests), frozenset(records), one)
            self._known[given.key] = known
            self._add(given.key, known.one, made, snapshot)
        made.problems.sort()
        return made

    def _one(self, given: Given, classes: Sequence[Obj], snapshot: Snapshot) -> _One:
        try:
            return self._defined(given, snapshot) if given.is_definition else self._plain(given, classes, snapshot)
        except GitError:
            raise
        except Exception as error:
            # Whatever a definition brings to light in us, the others go on.
            log.exception("cluster %s cannot be made", given.key)
            detail = f"cannot be made into a cluster ({type(error).__name__}); the log says where: report it"
            return _One((given.head.problem(Finding(("spec",), Fault.INVALID, detail, "definition-failed")),))

    def _defined(self, given: Given, snapshot: Snapshot) -> _One:
        built = build(given.head.obj, self._renderer, snapshot.tree, first_files(existing(snapshot, given.key)))
        problems = tuple(given.head.problem(finding) for finding in built.findings)
        if not built.ok or built.definition is None:
            return _One(problems)
        by_fleet = built.definition.delivery == FLEET
        # A definition that names a repository has a GitRepo of its own among its objects.
        own_repo = built.definition.fleet is not None
        made = self._made(given.key, built.objects, built.rendered if by_fleet else None, own_repo=own_repo)
        return replace(made, problems=problems, shared=built.shared)

    def _plain(self, given: Given, classes: Sequence[Obj], snapshot: Snapshot) -> _One:
        objects = [given.head.obj, *(item.obj for item in given.others)]
        rendered, problems = None, []
        for facts in facts_of([*objects, *classes]):
            if facts.key == given.key:
                rendered = self._renderer.render_one(facts, snapshot.tree)
                problems += [_placed(given, finding) for finding in rendered.findings]
        if rendered and not rendered.ok:
            return _One(tuple(problems))
        return replace(self._made(given.key, objects, rendered, own_repo=False), problems=tuple(problems))

    def _made(self, key: Key, objects: Sequence[Obj], rendered: Rendered | None, *, own_repo: bool) -> _One:
        manifest = Folder(files.cluster_files(objects, key.namespace))
        if rendered is None or rendered.settings is None or not self._bundles:
            return _One(objects=objects, manifest=manifest)
        if is_suspended(objects[0]):
            return _One(objects=objects, manifest=manifest, suspended=True)
        top = f"{CLUSTERS}/{key}/"
        bundles = Folder({path.removeprefix(top): content for path, content in rendered.tree.items()})
        place = "" if own_repo else workspace(rendered.settings)
        return _One(objects=objects, manifest=manifest, bundles=bundles, workspace=place)

    def _add(self, key: Key, one: _One, made: Made, snapshot: Snapshot) -> None:
        made.problems += one.problems
        if one.manifest is None:
            made.bad.add(key)
            return
        for name, objects in one.shared.items():
            _share(made, snapshot, key.namespace, name, objects)
        made.objects[key] = one.objects
        made.wanted[MANIFEST_ROOT][str(key)] = one.manifest
        if one.suspended:
            made.suspended.add(key)
        if one.bundles is not None:
            made.wanted[CLUSTER_ROOT][str(key)] = one.bundles
        if one.workspace and self._git_repos:
            known = self._known_repos
            if (one.workspace, key.namespace) not in known:
                known[one.workspace, key.namespace] = _git_repo(self._git_repos, one.workspace, key.namespace)
            folder, content = known[one.workspace, key.namespace]
            made.wanted[GITREPO_ROOT][folder] = content


def _git_repo(options: GitRepoOptions, place: str, namespace: str) -> tuple[str, Folder]:
    """Return the GitRepo for all clusters of a namespace: it names none of them, so a new one changes nothing in it."""
    paths = ["/".join(filter(None, (options.folder, CLUSTERS, namespace, "*", "*")))]
    repo = git_repo(options, place, namespace, paths)
    return path_of(place, repo["metadata"]["name"]), Folder({"gitrepo.yaml": yamltext.dump(repo).encode()})


def existing(snapshot: Snapshot, key: Key) -> list[Obj]:
    """Return the objects that the repository holds for a cluster; none where they cannot be read."""
    content = snapshot.read(manifest_path(key))
    try:
        found = list(yaml.load_all(content or b"", Loader=_LOADER))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    return [obj for obj in found if isinstance(obj, dict)]


def manifest_path(key: Key) -> str:
    """Return the path of the file with all objects of a cluster."""
    return f"{files.MANIFESTS}/{key}/{_MANIFEST}"


def _record_path(key: Key) -> str:
    return f"{CLUSTERS}/{key}/{RECORD}"


def _id(snapshot: Snapshot, path: str) -> str:
    entry = snapshot.entry(path)
    return entry.id if entry else ""


def _made_ids(one: _One) -> tuple[str, str]:
    """Return what Git calls manifest and record of a cluster as they were made, empty where they were not."""
    manifest = one.manifest and one.manifest.files[_MANIFEST]
    record = one.bundles and one.bundles.files[RECORD]
    return blob_id(manifest) if manifest else "", blob_id(record) if record else ""


def _placed(given: Given, finding: Finding) -> Problem:
    """Return a finding about a cluster where the object that it is about stands: by the field, which few kinds have."""
    for item in (given.head, *given.others):
        if at(item.obj, *finding.path[:2]) is not None:
            return item.problem(finding)
    return given.head.problem(finding)


def _share(made: Made, snapshot: Snapshot, namespace: str, name: str, objects: Sequence[Obj]) -> None:
    """Add what clusters share, as it is in the repository: another ClusterClass would replace all their machines."""
    made.groups.setdefault((namespace, name), objects)
    folder = path_of(namespace, name)
    known = made.wanted[NAMESPACE_ROOT]
    if folder not in known and snapshot.entry(f"{files.NAMESPACES}/{folder}/{FLEET_YAML}") is None:
        known[folder] = Folder(files.shared_files(objects))
