"""The status of a cluster's bundles in Fleet, read from its objects where they exist and may be read."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from caphv.api.object import Key, Obj, labels_of
from caphv.api.resources import FLEET_GROUP
from caphv.runtime.cache import Change
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.merge import at
from packager.addons.settings import AddonSettings
from packager.controller.informers import OptionalKinds
from packager.git.paths import joined
from packager.rendering.bundles import BUNDLE_LABEL, FLEET_YAML, bundle_name, workspace
from packager.rendering.renderer import Rendered
from packager.tree import cluster_folder

_BUNDLE = (FLEET_GROUP, "Bundle")
_GIT_REPO = (FLEET_GROUP, "GitRepo")
_COMMIT_LABEL = "fleet.cattle.io/commit"
_FAULTS = (("Stalled", "True"), ("GitPolling", "False"), ("Accepted", "False"))
"""Conditions of GitRepos whose messages say why a commit was not read."""
_LONGEST = 600
_MOST_FIELDS = 3
_MOST_OBJECTS = 3
_LIMITS = Limits(size=64 * 1024, nodes=10_000, seconds=1)
_MODIFIED, _WAITING = "Modified", "WaitApplied"
NOT_APPLIED = (
    "its agent has not applied it; if that stays, the log of Deployment cattle-fleet-system/fleet-agent in the "
    "cluster says why"
)
"""What is to say of a Bundle or BundleDeployment in state `WaitApplied`: Fleet reports no error of Helm there."""
_HINTS = {
    _WAITING: NOT_APPLIED,
    _MODIFIED: "another client changed its objects; caphv bundles trace names the field and who wrote it",
}
"""What to do about a state that Fleet does not explain."""
NOT_PROCESSED = "Fleet has not processed it yet"
"""What is to say of a Bundle for which `is_processed` does not hold."""


@dataclass(frozen=True)
class ExpectedBundles:
    """Bundles of one cluster that Fleet should have: pairs of bundle and its name in the workspace, as of a commit."""

    workspace: str
    bundles: tuple[tuple[str, str], ...]
    folder: str
    commit: str


@dataclass(frozen=True)
class Report:
    """Fleet's status of a cluster: `problems` is empty when all bundles are applied."""

    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether all bundles are applied and their resources ready."""
        return not self.problems


def expected_bundles(rendered: Rendered, settings: AddonSettings, commit: str, path: str) -> ExpectedBundles:
    """Return the bundles that Fleet should have of a rendered cluster; `path` is the remote's."""
    names = sorted(file.split("/")[-2] for file in rendered.tree if file.endswith(f"/{FLEET_YAML}"))
    bundles = tuple((name, bundle_name(rendered.cluster, name)) for name in names)
    folder = joined(path, cluster_folder(*rendered.cluster))
    return ExpectedBundles(workspace(settings), bundles, folder, commit)


class Fleet:
    """Caches of Fleet's Bundles and GitRepos; `changed` is called for each relevant change."""

    def __init__(self, kinds: OptionalKinds, changed: Callable[[Key], None]) -> None:
        self._kinds = kinds
        self._changed = changed

    def connect(self) -> None:
        """Start to watch as soon as Fleet is installed."""
        self._kinds.want(*_BUNDLE, self._bundle_changed, transform=slim_bundle)
        self._kinds.want(*_GIT_REPO, self._git_repo_changed, transform=slim_git_repo)

    def report(self, wanted: ExpectedBundles, is_before: Callable[[str, str], bool]) -> Report | None:
        """Return Fleet's status of a cluster's bundles; None when it is not visible."""
        bundles = self._kinds.get(*_BUNDLE)
        if bundles is None or not bundles.synced:
            return None
        found = {bundle: bundles.get(wanted.workspace, name) for bundle, name in wanted.bundles}
        git_repos = self._kinds.get(*_GIT_REPO)
        readers = None
        if git_repos is not None and git_repos.synced:
            there = (repo for repo in git_repos.store if repo["metadata"]["namespace"] == wanted.workspace)
            readers = [repo for repo in there if reads(repo, wanted.folder)]
        return evaluate(found, readers, wanted, is_before)

    def uninstallable(self) -> frozenset[str] | None:
        """Return the names of bundles that Fleet deployed without `keepResources`; None when Fleet is not visible."""
        bundles = self._kinds.get(*_BUNDLE)
        if bundles is None or not bundles.synced:
            return None
        return frozenset(obj["metadata"]["name"] for obj in bundles.store if obj["spec"]["uninstallable"])

    def _bundle_changed(self, change: Change) -> None:
        if change.old is None or change.new is None or _relevant(change.old) != _relevant(change.new):
            self._changed(change.key)

    def _git_repo_changed(self, change: Change) -> None:
        if change.old is None or change.new is None or _relevant(change.old) != _relevant(change.new):
            self._changed(Key(change.key.namespace, ""))


def evaluate(
    found: dict[str, Obj | None],
    readers: list[Obj] | None,
    wanted: ExpectedBundles,
    is_before: Callable[[str, str], bool],
) -> Report:
    """Return all problems by bundle; `readers` are the GitRepos that read the cluster's folder."""
    missing = [bundle for bundle, obj in found.items() if obj is None]
    behind = {bundle: commit for bundle, obj in found.items() if obj and (commit := _behind(obj, wanted, is_before))}
    problems = []
    if missing:
        problems.append(f"{', '.join(missing)}: {_why_missing(readers, wanted)}")
    for bundle, obj in found.items():
        if bundle in behind:
            problems.append(f"{bundle}: Fleet is still at commit {behind[bundle][:12]}")
        elif obj is not None and (problem := _problem(obj)):
            problems.append(f"{bundle}: {problem}")
    # A GitRepo that cannot be read keeps its Bundles.
    if behind and not missing and (reason := _reported(readers)):
        problems.append(reason)
    return Report(tuple(problems))


def _why_missing(readers: list[Obj] | None, wanted: ExpectedBundles) -> str:
    if readers == []:
        return f"no GitRepo in namespace {wanted.workspace} has the path {wanted.folder}/*; create one"
    return _reported(readers) or "Fleet has not read it yet"


def _reported(readers: list[Obj] | None) -> str:
    """Return what a GitRepo says about the repository, empty if all can read it."""
    failing = (repo for repo in readers or () if repo["status"]["message"])
    return next((f"GitRepo {repo['metadata']['name']} says: {repo['status']['message']}" for repo in failing), "")


def _behind(bundle: Obj, wanted: ExpectedBundles, is_before: Callable[[str, str], bool]) -> str:
    """Return the commit that Fleet has of a Bundle if it is older than the wanted one."""
    commit = labels_of(bundle).get(_COMMIT_LABEL, "")
    return commit if commit and is_before(commit, wanted.commit) else ""


def _problem(bundle: Obj) -> str:
    status = bundle["status"]
    if not status["processed"]:
        return NOT_PROCESSED
    if status["message"]:
        hint = f"{NOT_APPLIED}. What it applied before: " if status["state"] == _WAITING else ""
        return f"{status['state'] or 'NotReady'}: {hint}{status['message']}"
    if not status["desired"]:
        return "no cluster of Fleet matches it yet"
    if status["ready"] < status["desired"]:
        state = status["state"] or "NotReady"
        return f"{state}: {_HINTS[state]}" if state in _HINTS else state
    return ""


def explained(row: Obj) -> str:
    """Return why a bundle is not ready in a cluster, from a row of `nonReadyResources`; empty if it does not say.

    Of changed objects the fields are named, never their values: those of a Secret must not get into a condition.
    """
    message = without_patch(str(row.get("message") or ""))
    if message and row.get("bundleState") != _MODIFIED:
        return message

    objects = [*_unready(row), *changes(row)]
    more = f" and {len(objects) - _MOST_OBJECTS} more" if len(objects) > _MOST_OBJECTS else ""
    return "; ".join(objects[:_MOST_OBJECTS]) + more or message


def without_patch(message: str) -> str:
    """Return a message of Fleet in one line, without the values that its text of a change ends with."""
    return " ".join(message.partition(" {")[0].split())


def changes(row: Obj) -> list[str]:
    """Return the changed objects of a row of `nonReadyResources` or a BundleDeployment's status, with their fields."""
    return [f"{_object(modified)} {_change(modified)}" for modified in row.get("modifiedStatus") or ()]


def _unready(row: Obj) -> Iterator[str]:
    for unready in row.get("nonReadyStatus") or ():
        messages = at(unready, "summary", "message") or ()
        yield ": ".join([f"{_object(unready)} is not ready", *map(str, messages)])


def _object(row: Obj) -> str:
    name = "/".join(filter(None, (row.get("namespace"), row.get("name"))))
    return f"{row.get('kind')} {name}"


def _change(row: Obj) -> str:
    if row.get("delete"):
        return "should not exist"
    if row.get("missing"):
        return "is not labelled as Fleet's: another client applied it" if row.get("exist") else "is missing"
    try:
        fields = [".".join(path) for path in _leaves(load_yaml(str(row.get("patch") or "{}"), _LIMITS))]
    except TextError:
        fields = []
    if not fields:
        return "was changed"
    more = f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
    return f"was changed in {', '.join(fields[:_MOST_FIELDS])}{more}"


def _leaves(patch: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields in a merge patch."""
    if isinstance(patch, dict) and patch:
        for name, value in patch.items():
            yield from _leaves(value, (*path, str(name)))
    elif path:
        yield path


def reads(git_repo: Obj, folder: str) -> bool:
    """Whether a path of a GitRepo, which may have stars, leads to the bundles in a cluster's folder."""
    parts = [*folder.split("/"), "bundle"]
    return any(_leads(path.strip("/").removesuffix("/**").split("/"), parts) for path in git_repo["spec"]["paths"])


def _leads(pattern: list[str], parts: list[str]) -> bool:
    # Fleet reads all that is below a folder that matches.
    return len(pattern) <= len(parts) and all(map(fnmatch.fnmatchcase, parts, pattern))


def slim_bundle(bundle: Obj) -> Obj | None:
    """Keep of a Bundle what is reported; None for one that is not the packager's."""
    labels = labels_of(bundle)
    if BUNDLE_LABEL not in labels:
        return None
    summary = at(bundle, "status", "summary") or {}
    return {
        "metadata": _metadata(bundle, {name: labels[name] for name in (BUNDLE_LABEL, _COMMIT_LABEL) if name in labels}),
        "spec": {"uninstallable": _is_uninstallable(bundle, summary)},
        "status": {
            "processed": is_processed(bundle),
            "desired": int(summary.get("desiredReady") or 0),
            "ready": int(summary.get("ready") or 0),
            "state": str(at(bundle, "status", "display", "state") or ""),
            "message": _first(map(explained, summary.get("nonReadyResources") or ())),
        },
    }


def is_processed(bundle: Obj) -> bool:
    """Whether the status of a Bundle is that of its spec.

    Fleet writes spec and commit label first, and the status later, with `observedGeneration` since version 0.3.2.
    Before version 0.16 its first status counts the deployments that it changes as ready, and also as unavailable.
    """
    status = bundle.get("status") or {}
    summary = status.get("summary") or {}
    is_former = status.get("unavailable") and summary.get("ready") == summary.get("desiredReady")
    return not is_former and bool(status.get("observedGeneration") == at(bundle, "metadata", "generation"))


def _is_uninstallable(bundle: Obj, summary: Obj) -> bool:
    """Whether all agents have deployed a bundle that has no `keepResources`."""
    undeployed = any(summary.get(state) for state in ("waitApplied", "errApplied", "outOfSync", "pending"))
    return is_processed(bundle) and not undeployed and not at(bundle, "spec", "keepResources")


def slim_git_repo(git_repo: Obj) -> Obj:
    """Keep of a GitRepo its paths, and what went wrong with reading it."""
    return {
        "metadata": _metadata(git_repo, {}),
        "spec": {"paths": [str(path) for path in at(git_repo, "spec", "paths") or ()]},
        "status": {"message": reading_fault(git_repo)},
    }


def reading_fault(git_repo: Obj) -> str:
    """Return what a GitRepo says of a commit that it cannot read, or of a job that cannot start; empty for none."""
    conditions = at(git_repo, "status", "conditions") or ()
    return _first(
        row.get("message")
        for kind, status in _FAULTS
        for row in conditions
        if (row.get("type"), row.get("status")) == (kind, status)
    )


def _metadata(obj: Obj, labels: dict[str, str]) -> Obj:
    kept = {name: obj["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {**kept, "labels": labels}


def _first(messages: Iterable[str | None]) -> str:
    return next((str(message)[:_LONGEST] for message in messages if message), "")


def _relevant(obj: Obj) -> list[object]:
    return [labels_of(obj), obj.get("spec"), obj["status"]]
