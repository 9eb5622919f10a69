"""The status of a cluster's bundles in Fleet, from Fleet's objects on the management cluster."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from caphv.api.counting import name_some
from caphv.api.object import Key, Obj, at, dict_at, labels_of, list_at, text_at
from caphv.api.resources import FLEET_GROUP
from caphv.runtime.cache import Change
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.settings import AddonSettings
from packager.git.paths import join_path
from packager.informers import OptionalKinds
from packager.rendering.bundles import BUNDLE_LABEL, FLEET_YAML, bundle_name, workspace
from packager.rendering.rendered import Rendered
from packager.tree import cluster_folder

_BUNDLE = (FLEET_GROUP, "Bundle")
_GIT_REPO = (FLEET_GROUP, "GitRepo")
COMMIT_LABEL = "fleet.cattle.io/commit"
# Conditions of GitRepos whose messages explain why Fleet did not read a commit.
_FAULTS = (("Stalled", "True"), ("GitPolling", "False"), ("Accepted", "False"))
_MAX_MESSAGE_LENGTH = 600
_MAX_FIELDS = 3
_MAX_OBJECTS = 3
_LIMITS = Limits(size=64 * 1024, nodes=10_000, seconds=1)
_MODIFIED = "Modified"
_WAITING = "WaitApplied"
NOT_APPLIED = (
    "its agent has not applied it; if that stays, the log of Deployment "
    "cattle-fleet-system/fleet-agent in the cluster says why"
)
"""Message for state `WaitApplied` of a Bundle or BundleDeployment, which shows no error of Helm."""
# Explanations of states that Fleet does not explain.
_HINTS = {
    _WAITING: NOT_APPLIED,
    _MODIFIED: (
        "another client changed its objects; caphv bundles trace names the field and who wrote it"
    ),
}
NOT_PROCESSED = "Fleet has not processed it yet"
"""Message for a Bundle whose status is older than its spec (`is_processed` is false)."""


@dataclass(frozen=True)
class ExpectedBundles:
    """Bundles of one cluster that Fleet should have from a commit.

    `bundles` are pairs of a bundle's folder and its name in the workspace.
    """

    workspace: str
    bundles: tuple[tuple[str, str], ...]
    folder: str
    commit: str


@dataclass(frozen=True)
class Report:
    """Fleet's status of a cluster. `problems` is empty when all bundles are applied."""

    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether all bundles are applied and their resources ready."""
        return not self.problems


def expected_bundles(
    rendered: Rendered, settings: AddonSettings, commit: str, path: str
) -> ExpectedBundles:
    """Return the bundles that Fleet should have for a rendered cluster.

    :param rendered: the rendered cluster
    :param settings: merged settings of the cluster
    :param commit: the newest commit that changed the cluster's files
    :param path: folder in the remote repository
    """
    # A bundle is a folder with a fleet.yaml.
    names = sorted(file.split("/")[-2] for file in rendered.tree if file.endswith(f"/{FLEET_YAML}"))
    bundles = tuple((name, bundle_name(rendered.cluster, name)) for name in names)
    folder = join_path(path, cluster_folder(*rendered.cluster))
    return ExpectedBundles(
        workspace=workspace(settings), bundles=bundles, folder=folder, commit=commit
    )


class Fleet:
    """Caches of Fleet's Bundles and GitRepos; `changed` is called for each relevant change."""

    def __init__(self, kinds: OptionalKinds, changed: Callable[[Key], None]) -> None:
        self._kinds = kinds
        self._changed = changed

    def connect(self) -> None:
        """Start the watches as soon as Fleet is installed."""
        self._kinds.want(*_BUNDLE, self._on_bundle, transform=trim_bundle)
        self._kinds.want(*_GIT_REPO, self._on_git_repo, transform=trim_git_repo)

    def report(
        self, expected: ExpectedBundles, is_before: Callable[[str, str], bool]
    ) -> Report | None:
        """Return Fleet's status of a cluster's bundles; None when it is not visible.

        `is_before` returns whether a commit is older than another commit.
        """
        bundles = self._kinds.get(*_BUNDLE)
        if bundles is None or not bundles.synced:
            return None
        objects = {
            folder: bundles.get(expected.workspace, name) for folder, name in expected.bundles
        }

        git_repos = self._kinds.get(*_GIT_REPO)
        readers = None
        if git_repos is not None and git_repos.synced:
            readers = [
                repo
                for repo in git_repos.store
                if repo["metadata"]["namespace"] == expected.workspace
                and reads_folder(repo, expected.folder)
            ]
        return evaluate(objects, readers, expected, is_before)

    def uninstallable(self) -> frozenset[str] | None:
        """Return the names of bundles that Fleet deployed without `keepResources`.

        Returns None when Fleet is not visible.
        """
        bundles = self._kinds.get(*_BUNDLE)
        if bundles is None or not bundles.synced:
            return None
        return frozenset(
            obj["metadata"]["name"] for obj in bundles.store if obj["spec"]["uninstallable"]
        )

    def _on_bundle(self, change: Change) -> None:
        if _is_relevant(change):
            self._changed(change.key)

    def _on_git_repo(self, change: Change) -> None:
        if _is_relevant(change):
            self._changed(Key(change.key.namespace, ""))


def evaluate(
    objects: dict[str, Obj | None],
    readers: list[Obj] | None,
    expected: ExpectedBundles,
    is_before: Callable[[str, str], bool],
) -> Report:
    """Return all problems with a cluster's bundles.

    :param objects: Fleet's Bundles by folder, None for one that does not exist
    :param readers: GitRepos that read the cluster's folder, None when they are not visible
    :param expected: bundles that Fleet should have
    :param is_before: returns whether a commit is older than another commit
    """
    missing = [folder for folder, obj in objects.items() if obj is None]
    problems = []
    if missing:
        problems.append(f"{', '.join(missing)}: {_missing_reason(readers, expected)}")

    is_behind = False
    for folder, obj in objects.items():
        if obj is None:
            continue
        commit = labels_of(obj).get(COMMIT_LABEL, "")
        if commit and is_before(commit, expected.commit):
            is_behind = True
            problems.append(f"{folder}: Fleet is still at commit {commit[:12]}")
        elif problem := _problem(obj):
            problems.append(f"{folder}: {problem}")

    # When Fleet cannot read a repository, its Bundles stay at the last commit.
    if is_behind and not missing and (fault := _git_repo_fault(readers)):
        problems.append(fault)
    return Report(tuple(problems))


def _missing_reason(readers: list[Obj] | None, expected: ExpectedBundles) -> str:
    """Return why Bundles are missing; `readers` is None if GitRepos are not visible."""
    if readers == []:
        return (
            f"no GitRepo in namespace {expected.workspace} has the path {expected.folder}/*; "
            "create one"
        )
    return _git_repo_fault(readers) or "Fleet has not read it yet"


def _git_repo_fault(readers: list[Obj] | None) -> str:
    """Return the message of a GitRepo that cannot read the repository, empty if all can."""
    for repo in readers or ():
        if message := repo["status"]["message"]:
            return f"GitRepo {repo['metadata']['name']} says: {message}"
    return ""


def _problem(bundle: Obj) -> str:
    """Return why a Bundle is not applied everywhere, empty if it is."""
    status = bundle["status"]
    if not status["processed"]:
        return NOT_PROCESSED
    state = status["state"] or "NotReady"
    if status["message"]:
        hint = f"{NOT_APPLIED}. What it applied before: " if status["state"] == _WAITING else ""
        return f"{state}: {hint}{status['message']}"
    if not status["desired"]:
        return "no cluster of Fleet matches it yet"
    if status["ready"] < status["desired"]:
        return f"{state}: {_HINTS[state]}" if state in _HINTS else state
    return ""


def explain(row: Obj) -> str:
    """Return why a bundle is not ready in a cluster, empty if Fleet does not say.

    `row` is one of `nonReadyResources`. The text names changed fields but not their values, because
    values of a Secret must not get into a condition.
    """
    message = strip_patch(str(row.get("message") or ""))
    if message and row.get("bundleState") != _MODIFIED:
        return message
    return name_some([*_unready(row), *changes(row)], _MAX_OBJECTS, "; ") or message


def strip_patch(message: str) -> str:
    """Return a message of Fleet in one line, without the patch with values at its end."""
    return " ".join(message.partition(" {")[0].split())


def changes(row: Obj) -> list[str]:
    """Return changed objects with their fields.

    `row` is one of `nonReadyResources`, or the status of a BundleDeployment.
    """
    return [
        f"{_object(modified)} {_change(modified)}" for modified in row.get("modifiedStatus") or ()
    ]


def _unready(row: Obj) -> Iterator[str]:
    for unready in row.get("nonReadyStatus") or ():
        messages = list_at(unready, "summary", "message")
        yield ": ".join([f"{_object(unready)} is not ready", *map(str, messages)])


def _object(row: Obj) -> str:
    name = "/".join(filter(None, (row.get("namespace"), row.get("name"))))
    return f"{row.get('kind')} {name}"


def _change(row: Obj) -> str:
    """Return the change of an object that a row of `modifiedStatus` describes."""
    if row.get("delete"):
        return "should not exist"
    if row.get("missing"):
        if row.get("exist"):
            return "is not labelled as Fleet's: another client applied it"
        return "is missing"

    try:
        patch = load_yaml(str(row.get("patch") or "{}"), _LIMITS)
    except TextError:
        return "was changed"
    # Name the fields without values, because values of a Secret must not get into a condition.
    fields = [".".join(path) for path in _changed_fields(patch)]
    return f"was changed in {name_some(fields, _MAX_FIELDS)}" if fields else "was changed"


def _changed_fields(patch: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields in a merge patch."""
    if isinstance(patch, dict) and patch:
        for name, value in patch.items():
            yield from _changed_fields(value, (*path, str(name)))
    elif path:
        yield path


def reads_folder(git_repo: Obj, folder: str) -> bool:
    """Whether a path of a GitRepo, which may have stars, matches bundles in a cluster's folder."""
    parts = [*folder.split("/"), "bundle"]
    return any(
        _matches(path.strip("/").removesuffix("/**").split("/"), parts)
        for path in git_repo["spec"]["paths"]
    )


def _matches(pattern: list[str], parts: list[str]) -> bool:
    # Fleet reads everything below a folder that matches.
    return len(pattern) <= len(parts) and all(map(fnmatch.fnmatchcase, parts, pattern))


def trim_bundle(bundle: Obj) -> Obj | None:
    """Keep only the fields of a Bundle that reports need; None if caphv did not create it."""
    labels = labels_of(bundle)
    if BUNDLE_LABEL not in labels:
        return None

    summary = dict_at(bundle, "status", "summary")
    own_labels = {name: labels[name] for name in (BUNDLE_LABEL, COMMIT_LABEL) if name in labels}

    return {
        "metadata": _metadata(bundle, own_labels),
        "spec": {"uninstallable": _is_uninstallable(bundle, summary)},
        "status": {
            "processed": is_processed(bundle),
            "desired": int(summary.get("desiredReady") or 0),
            "ready": int(summary.get("ready") or 0),
            "state": text_at(bundle, "status", "display", "state"),
            "message": _first_message(map(explain, summary.get("nonReadyResources") or ())),
        },
    }


def is_processed(bundle: Obj) -> bool:
    """Whether the status of a Bundle belongs to its current spec.

    Fleet writes spec and commit label first, and the status later, with `observedGeneration` since
    version 0.3.2. Before version 0.16, its first status counts deployments that are being changed
    as ready, and also as unavailable.
    """
    status = bundle.get("status") or {}
    summary = status.get("summary") or {}
    if status.get("unavailable") and summary.get("ready") == summary.get("desiredReady"):
        return False
    return bool(status.get("observedGeneration") == at(bundle, "metadata", "generation"))


def _is_uninstallable(bundle: Obj, summary: Obj) -> bool:
    """Whether all agents have deployed a bundle that has no `keepResources`."""
    states = ("waitApplied", "errApplied", "outOfSync", "pending")
    is_deployed = not any(summary.get(state) for state in states)
    return is_processed(bundle) and is_deployed and not at(bundle, "spec", "keepResources")


def trim_git_repo(git_repo: Obj) -> Obj:
    """Keep only the paths of a GitRepo, and the message why Fleet cannot read it."""
    return {
        "metadata": _metadata(git_repo, {}),
        "spec": {"paths": [str(path) for path in list_at(git_repo, "spec", "paths")]},
        "status": {"message": reading_fault(git_repo)},
    }


def reading_fault(git_repo: Obj) -> str:
    """Return why Fleet cannot read a commit or start a job for a GitRepo; empty without a fault."""
    conditions = list_at(git_repo, "status", "conditions")
    return _first_message(
        row.get("message")
        for kind, status in _FAULTS
        for row in conditions
        if (row.get("type"), row.get("status")) == (kind, status)
    )


def _metadata(obj: Obj, labels: dict[str, str]) -> Obj:
    """Return the metadata that caches need, with these labels."""
    names = ("name", "namespace", "uid", "resourceVersion")
    return {**{name: obj["metadata"][name] for name in names}, "labels": labels}


def _first_message(messages: Iterable[str | None]) -> str:
    return next((str(message)[:_MAX_MESSAGE_LENGTH] for message in messages if message), "")


def _is_relevant(change: Change) -> bool:
    """Whether a change is more than a new resource version."""
    old = change.old
    new = change.new
    if old is None or new is None:
        return True
    if labels_of(old) != labels_of(new):
        return True
    return bool(old.get("spec") != new.get("spec") or old["status"] != new["status"])
