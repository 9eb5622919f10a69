"""A source of definitions becomes manifests and bundles in a repository: all of it in one commit that names the source.

```
manifests/<namespace>/<cluster>/cluster/     all objects of a cluster, for the management cluster
namespaces/<namespace>/<group>/              what clusters of a namespace share
gitrepos/<workspace>/<name>/                 GitRepos by which Fleet reads the bundles
clusters/<namespace>/<cluster>/<bundle>/     bundles, for the clusters themselves
caphv-status.yaml                            clusters, and what is wrong with those that are not as they are wanted
```

A cluster that cannot be made as it is wanted keeps what it has. Nothing is removed while a file cannot be read, and a
definition only with a confirmation, because its cluster goes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from caphv.api import names
from caphv.runtime.resource import Key
from caphv.schema.findings import Finding
from packager import yamltext
from packager.batch import Packager, Store
from packager.bundles import FLEET_YAML, workspace
from packager.definitions import files
from packager.definitions.boot import first_files
from packager.definitions.build import build
from packager.definitions.model import FLEET
from packager.definitions.source import Given, Problem, Source
from packager.facts import facts_of, is_suspended
from packager.git.commit import Reason
from packager.git.folder import Folder
from packager.git.prune import Plan, Pruning
from packager.git.publish import CLUSTER_ROOT, Root, planned, told
from packager.git.repository import Result
from packager.git.snapshot import Snapshot
from packager.gitrepo import GitRepoOptions, git_repo
from packager.merge import Obj, at
from packager.render import Rendered
from packager.settings import Settings
from packager.tree import CLUSTERS, path_of

STATUS = "caphv-status.yaml"
GITREPOS = "gitrepos"
NAMES = (files.MANIFESTS, files.NAMESPACES, GITREPOS, CLUSTERS, STATUS)
"""All that stands at the top of the repository, or of the remote's path."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PATTERNS = ((files.NAMESPACES, "*", "*"), (files.MANIFESTS, "*", "*", "*"), (GITREPOS, "*", "*"))
_MANIFESTS, _NAMESPACES, _GITREPOS = Root(files.MANIFESTS, definitions=True), Root(files.NAMESPACES), Root(GITREPOS)


@dataclass(frozen=True)
class Options:
    """How to sync. `confirmed` are clusters, `<namespace>/<name>`, whose definitions may go.

    `git_repos` makes GitRepos for the bundles, None leaves them to somebody else; without `bundles` only manifests are
    written, and a packager in the cluster sees to bundles. `why` is for the message of the commit.
    """

    max_prune: int
    confirmed: Collection[str] = ()
    git_repos: GitRepoOptions | None = None
    bundles: bool = True
    why: str = "Clusters follow their definitions."


@dataclass
class Made:
    """What a source makes: folders by root, objects by cluster, and what there is to say."""

    wanted: dict[Root, dict[str, Folder]] = field(
        default_factory=lambda: {_MANIFESTS: {}, _NAMESPACES: {}, _GITREPOS: {}, CLUSTER_ROOT: {}}
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
class Outcome:
    """What was made, what became of the commit, and what the repository says of each cluster."""

    made: Made
    result: Result


def sync(source: Source, origin: str, store: Store, packager: Packager, options: Options) -> Outcome:
    """Make the repository hold what a source makes, as one commit, or none when it does already. Raises GitErrors.

    `origin` names the source in the commit: address and commit.
    """
    made = Made()

    def decide(snapshot: Snapshot) -> Plan:
        nonlocal made
        made, plan = plan_of(source, snapshot, packager, options)
        return plan

    reason = Reason(options.why, {"Source": origin})
    result = told(store.commit(decide, reason))
    return Outcome(made, result)


def plan_of(source: Source, snapshot: Snapshot, packager: Packager, options: Options) -> tuple[Made, Plan]:
    """Return what a source makes, and what that changes in a repository. Writes nothing."""
    made = make(source, snapshot, packager, options)
    plan = planned(snapshot, made.wanted, _pruning(made, source, snapshot, options))
    status = _status(made, plan)
    if snapshot.read(STATUS) != status:
        plan = replace(plan, write={**plan.write, STATUS: status})
    return made, plan


def make(source: Source, snapshot: Snapshot, packager: Packager, options: Options) -> Made:
    """Return what a source makes over what the repository holds: pinned versions and first boots stay as they are."""
    made = Made(problems=list(source.problems), bad=set(source.bad))
    for (namespace, name), objects in source.groups.items():
        _share(made, snapshot, namespace, name, objects)
    for given in source.clusters:
        if given.is_definition:
            _from_definition(given, made, snapshot, packager, options)
        else:
            _from_manifests(given, made, snapshot, packager, options)
    made.problems.sort()
    return made


def _from_definition(given: Given, made: Made, snapshot: Snapshot, packager: Packager, options: Options) -> None:
    before = first_files(_existing(snapshot, given.key))
    built = build(given.head.obj, packager.renderer, snapshot.tree, before)
    made.problems += (given.head.problem(finding) for finding in built.findings)
    if not built.ok or built.definition is None:
        made.bad.add(given.key)
        return
    for name, objects in built.shared.items():
        _share(made, snapshot, given.key.namespace, name, objects)
    own_repo = built.definition.fleet is not None
    by_fleet = built.definition.delivery == FLEET
    _add(given.key, built.objects, built.rendered if by_fleet else None, made, options, own_repo=own_repo)


def _from_manifests(given: Given, made: Made, snapshot: Snapshot, packager: Packager, options: Options) -> None:
    objects = [given.head.obj, *(item.obj for item in given.others)]
    facts = facts_of([*objects, *(obj for group in made.groups.values() for obj in group)])
    rendered = None
    for one in facts:
        if one.key == given.key:
            rendered = packager.renderer.render_one(one, snapshot.tree)
            made.problems += (_placed(given, finding) for finding in rendered.findings)
    if rendered and not rendered.ok:
        made.bad.add(given.key)
        return
    _add(given.key, objects, rendered, made, options, own_repo=False)


def _placed(given: Given, finding: Finding) -> Problem:
    """Return a finding about a cluster where the object that it is about stands: by the field, which few kinds have."""
    for item in (given.head, *given.others):
        if at(item.obj, *finding.path[:2]) is not None:
            return item.problem(finding)
    return given.head.problem(finding)


def _add(
    key: Key, objects: Sequence[Obj], rendered: Rendered | None, made: Made, options: Options, *, own_repo: bool
) -> None:
    made.objects[key] = objects
    made.wanted[_MANIFESTS][str(key)] = Folder(files.cluster_files(objects, key.namespace))
    if rendered is None or rendered.settings is None or not options.bundles:
        return
    if is_suspended(objects[0]):
        made.suspended.add(key)
        return
    top = f"{CLUSTERS}/{key}/"
    tree = {path.removeprefix(top): content for path, content in rendered.tree.items()}
    made.wanted[CLUSTER_ROOT][str(key)] = Folder(tree)
    if options.git_repos and not own_repo:
        _add_git_repo(rendered.settings, made, options.git_repos)


def _add_git_repo(settings: Settings, made: Made, options: GitRepoOptions) -> None:
    """Add the GitRepo for all clusters of a namespace: it names none of them, so a new one changes nothing in it."""
    namespace = settings.cluster.namespace
    paths = ["/".join(filter(None, (options.folder, CLUSTERS, namespace, "*", "*")))]
    repo = git_repo(options, workspace(settings), namespace, paths)
    folder = path_of(workspace(settings), repo["metadata"]["name"])
    made.wanted[_GITREPOS][folder] = Folder({"gitrepo.yaml": yamltext.dump(repo).encode()})


def _share(made: Made, snapshot: Snapshot, namespace: str, name: str, objects: Sequence[Obj]) -> None:
    """Add what clusters share, as it is in the repository: another ClusterClass would replace all their machines."""
    made.groups.setdefault((namespace, name), objects)
    folder = path_of(namespace, name)
    known = made.wanted[_NAMESPACES]
    if folder not in known and snapshot.entry(f"{files.NAMESPACES}/{folder}/{FLEET_YAML}") is None:
        known[folder] = Folder(files.shared_files(objects))


def _existing(snapshot: Snapshot, key: Key) -> Iterable[Obj]:
    """Return the objects that the repository holds for a cluster."""
    content = snapshot.read(f"{files.MANIFESTS}/{key}/{files.CLUSTER}/{files.CLUSTER}.yaml")
    try:
        found = list(yaml.load_all(content or b"", Loader=_LOADER))
    except yaml.YAMLError:
        return []
    return [obj for obj in found if isinstance(obj, dict)]


def _pruning(made: Made, source: Source, snapshot: Snapshot, options: Options) -> Pruning:
    """Return what may go: of this source's clusters only, and of those that are not wanted any more."""
    there = {
        f"{namespace}/{name}"
        for namespace, outer in snapshot.entries(files.MANIFESTS).items()
        if outer.is_folder
        for name in snapshot.entries(f"{files.MANIFESTS}/{namespace}")
    }
    gone = there - made.wanted[_MANIFESTS].keys() - {str(key) for key in made.bad}
    confirmed = {name for name in gone if name in options.confirmed or _says_so(snapshot, name)}
    # What stays without new files: clusters that are faulty or suspended, and those whose end nobody has confirmed.
    staying = {str(key) for key in (*made.bad, *made.suspended)} | (gone - confirmed)
    keep = {f"{CLUSTERS}/{name}" for name in staying} | {f"{files.MANIFESTS}/{key}" for key in made.bad}
    bundles = {f"{CLUSTERS}/{name}" for name in there} if options.bundles else set()
    return Pruning(
        complete=source.complete,
        budget=options.max_prune,
        scope={f"{files.MANIFESTS}/{name}" for name in there} | bundles,
        keep=keep,
        confirmed={f"{files.MANIFESTS}/{name}" for name in confirmed},
    )


def _says_so(snapshot: Snapshot, name: str) -> bool:
    """Whether the Cluster was given the annotation by which its definition may go."""
    clusters = (obj for obj in _existing(snapshot, Key(*name.split("/"))) if obj.get("kind") == "Cluster")
    return any(at(obj, "metadata", "annotations", names.CONFIRM_REMOVAL_ANNOTATION) == "true" for obj in clusters)


def _status(made: Made, plan: Plan) -> bytes:
    """Return the status file: the same for the same source and repository, so that it makes no commit by itself."""
    held = [one.what.split("/") for one in plan.held]
    states: Mapping[Key, str] = {
        **{Key(parts[1], parts[2]): "HeldBack" for parts in held if parts[0] == files.MANIFESTS},
        **dict.fromkeys(made.objects, "Written"),
        **dict.fromkeys(made.suspended, "Suspended"),
        **dict.fromkeys((key for key in made.bad if key.name), "Faulty"),
    }
    content = {
        "clusters": [{"name": str(key), "state": states[key]} for key in sorted(states)],
        "problems": [
            {
                "file": one.file,
                "line": one.line,
                "severity": "warning" if one.advice else "error",
                "message": one.message,
            }
            for one in made.problems
        ],
    }
    return yamltext.dump(content).encode()


def management_git_repo(options: GitRepoOptions) -> Obj:
    """Return the GitRepo by which Fleet applies all manifests to the management cluster itself."""
    top = [options.folder] if options.folder else []
    paths = ["/".join([*top, *rest]) for rest in _PATTERNS]
    repo = git_repo(options, "fleet-local", "management", paths)
    # A cluster whose definition was let go is to go.
    repo["spec"]["keepResources"] = False
    return repo
