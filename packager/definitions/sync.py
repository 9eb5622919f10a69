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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from caphv.api import names
from caphv.api.object import Key
from packager.addons.merge import Obj, at
from packager.bundler import Store
from packager.definitions import files
from packager.definitions.builder import GITREPOS, MANIFEST_ROOT, Made, Maker, existing
from packager.definitions.source import Source
from packager.git.commit import Reason
from packager.git.prune import Plan, Pruning
from packager.git.publish import planned, told
from packager.git.repository import Result
from packager.git.snapshot import Snapshot
from packager.rendering import yaml
from packager.rendering.gitrepo import GitRepoOptions, git_repo
from packager.tree import CLUSTERS

STATUS = "caphv-status.yaml"
NAMES = (files.MANIFESTS, files.NAMESPACES, GITREPOS, CLUSTERS, STATUS)
"""All that stands at the top of the repository, or of the remote's path."""
WHY = "Clusters follow their definitions."
_PATTERNS = ((files.NAMESPACES, "*", "*"), (files.MANIFESTS, "*", "*", "*"), (GITREPOS, "*", "*"))


@dataclass(frozen=True)
class Options:
    """How to sync. `confirmed` are clusters, `<namespace>/<name>`, whose definitions may go.

    `why` is for the message of the commit.
    """

    max_prune: int
    confirmed: Collection[str] = ()
    why: str = WHY


@dataclass(frozen=True)
class Outcome:
    """What was made, what became of the commit, and what the repository says of each cluster."""

    made: Made
    result: Result


def sync(source: Source, origin: str, store: Store, maker: Maker, options: Options) -> Outcome:
    """Make the repository hold what a source makes, as one commit, or none when it does already. Raises GitErrors.

    `origin` names the source in the commit: address and commit.
    """
    made = Made()

    def decide(snapshot: Snapshot) -> Plan:
        nonlocal made
        made, plan = plan_of(source, snapshot, maker, options)
        return plan

    reason = Reason(options.why, {"Source": origin})
    result = told(store.commit(decide, reason))
    return Outcome(made, result)


def plan_of(source: Source, snapshot: Snapshot, maker: Maker, options: Options) -> tuple[Made, Plan]:
    """Return what a source makes, and what that changes in a repository. Writes nothing."""
    made = maker.make(source, snapshot)
    plan = planned(snapshot, made.wanted, pruning(made, source, snapshot, options))
    return made, with_status(plan, made, snapshot)


def pruning(made: Made, source: Source, snapshot: Snapshot, options: Options) -> Pruning:
    """Return what may go: of this source's clusters only, and of those that are not wanted any more."""
    there = manifests(snapshot)
    gone = there - made.wanted[MANIFEST_ROOT].keys() - {str(key) for key in made.bad}
    confirmed = {name for name in gone if name in options.confirmed or _says_so(snapshot, name)}
    # What stays without new files: clusters that are faulty or suspended, and those whose end nobody has confirmed.
    staying = {str(key) for key in (*made.bad, *made.suspended)} | (gone - confirmed)
    return Pruning(
        complete=source.complete,
        budget=options.max_prune,
        scope={f"{root}/{name}" for root in (files.MANIFESTS, CLUSTERS) for name in there},
        keep={f"{CLUSTERS}/{name}" for name in staying} | {f"{files.MANIFESTS}/{key}" for key in made.bad},
        confirmed={f"{files.MANIFESTS}/{name}" for name in confirmed},
    )


def manifests(snapshot: Snapshot) -> set[str]:
    """Return the clusters, `<namespace>/<name>`, of which a repository holds the manifests."""
    return {
        f"{namespace}/{name}"
        for namespace, outer in snapshot.entries(files.MANIFESTS).items()
        if outer.is_folder
        for name in snapshot.entries(f"{files.MANIFESTS}/{namespace}")
    }


def _says_so(snapshot: Snapshot, name: str) -> bool:
    """Whether the Cluster was given the annotation by which its definition may go."""
    clusters = (obj for obj in existing(snapshot, Key(*name.split("/"))) if obj.get("kind") == "Cluster")
    return any(at(obj, "metadata", "annotations", names.CONFIRM_REMOVAL_ANNOTATION) == "true" for obj in clusters)


def with_status(plan: Plan, made: Made, snapshot: Snapshot) -> Plan:
    """Return a plan that writes the status file, too, where that says something new.

    It is the same for the same source and repository, so that it makes no commit by itself.
    """
    status = _status(made, plan)
    return plan if snapshot.read(STATUS) == status else replace(plan, write={**plan.write, STATUS: status})


def _status(made: Made, plan: Plan) -> bytes:
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
    return yaml.dump(content).encode()


def management_git_repo(options: GitRepoOptions) -> Obj:
    """Return the GitRepo by which Fleet applies all manifests to the management cluster itself."""
    top = [options.folder] if options.folder else []
    paths = ["/".join([*top, *rest]) for rest in _PATTERNS]
    repo = git_repo(options, "fleet-local", "management", paths)
    # A cluster whose definition was let go is to go.
    repo["spec"]["keepResources"] = False
    return repo
