"""Summarizes the changes of a plan with the names that users know.

For example `team-a/production: workers 2→5, cpuCount 8→16`. People read the subject of a commit in
lists, mails and alerts, so it names clusters and settings, not folders. Files are compared before
and after, so that the summary does not depend on how bundles and manifests were built.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caphv.api.counting import name_some
from caphv.runtime.text import Limits, TextError, load_yaml, load_yaml_all
from packager.definitions import ownership
from packager.definitions.files import MANIFESTS
from packager.git.changeplan import Plan
from packager.git.folder import FILE_LIST
from packager.git.snapshot import Snapshot
from packager.rendering.lockfile import FILE as LOCKFILE
from packager.tree import CLUSTERS

# Files are compared for this number of clusters. A commit for more clusters only lists names.
_MAX_CLUSTERS = 10
_MAX_CHANGES = 50
_MAX_SUBJECT_LENGTH = 72
_MAX_VALUE_LENGTH = 24
_LIMITS = Limits(aliases=False)
# Values of settings with such names are never shown, because they may be confidential.
_CONFIDENTIAL = re.compile(
    "token|password|secret|credential|key|kubeconfig|userdata", re.IGNORECASE
)
_MISSING = object()

_Path = tuple[str, ...]


@dataclass(frozen=True, order=True)
class _Change:
    """A setting with its values before and after; `path` ends with the name that users know."""

    path: _Path
    before: str
    after: str

    def __str__(self) -> str:
        return f"{_name(self.path)} {self.before}→{self.after}"


def summarize(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return a plan with subject and details of its commit.

    `snapshot` is the repository that the plan changes.
    """
    verbs = _verbs(plan)
    if not verbs:
        return plan
    details: dict[str, tuple[str, ...]] = {}
    if len(verbs) <= _MAX_CLUSTERS:
        for name in verbs:
            if changes := _changes_of(name, plan, snapshot):
                details[name] = tuple(map(str, changes))
    return replace(plan, subject=_subject(verbs, details), details=details)


def _verbs(plan: Plan) -> dict[str, str]:
    """Return a verb for each cluster (add, remove or update), by `<namespace>/<name>`.

    A cluster has two folders: its manifest and its bundles. It is updated if these have different
    verbs, for example if it gains bundles and its manifest stays.
    """
    removed = [removal.folder for removal in plan.removed if not removal.bundle]
    changed = [*plan.changed, *(removal.folder for removal in plan.removed if removal.bundle)]
    verbs_by_cluster: dict[str, set[str]] = {}
    for verb, folders in (("add", plan.added), ("remove", removed), ("update", changed)):
        for folder in folders:
            root, _, name = folder.partition("/")
            if root in (MANIFESTS, CLUSTERS):
                verbs_by_cluster.setdefault(name, set()).add(verb)
    return {
        name: min(verbs) if len(verbs) == 1 else "update"
        for name, verbs in sorted(verbs_by_cluster.items())
    }


def _subject(verbs: Mapping[str, str], details: Mapping[str, Sequence[str]]) -> str:
    """Return the subject for all clusters, with details if there is only one."""
    if len(verbs) == 1:
        [(name, verb)] = verbs.items()
        if verb != "update":
            return f"{name}: {verb} the cluster"
        if name in details:
            changes = details[name]
            return _shorten(f"{name}: ", changes, f"{name}: {len(changes)} changes")
        return f"{name}: update the cluster's files"

    counts = Counter(verbs.values())
    words = [f"{verb} {counts[verb]}" for verb in ("add", "update", "remove") if counts[verb]]
    text = f"{', '.join(words)} clusters"
    head = text[0].upper() + text[1:]
    return _shorten(f"{head}: ", list(verbs), head)


def _shorten(head: str, parts: Sequence[str], without_parts: str) -> str:
    """Return as many parts as a subject may hold, with the number of omitted parts.

    :param head: beginning of the subject
    :param parts: names of clusters or changes
    :param without_parts: the subject if not even one part has room
    """
    for count in range(len(parts), 0, -1):
        text = head + name_some(parts, count)
        if len(text) <= _MAX_SUBJECT_LENGTH:
            return text
    return without_parts


def _changes_of(name: str, plan: Plan, snapshot: Snapshot) -> list[_Change]:
    """Return the changed settings of a cluster, each of them once."""
    # The keys are name and values, because manifest and bundles often hold the same setting.
    changes: dict[tuple[str, str, str], _Change] = {}
    for root in (MANIFESTS, CLUSTERS):
        folder = f"{root}/{name}/"
        for path in sorted(path for path in plan.write if path.startswith(folder)):
            if path.endswith((f"/{FILE_LIST}", f"/{ownership.FILE}")):
                continue
            before = snapshot.read(path)
            if before is None:
                continue
            for change in _compare(path.removeprefix(folder), before, plan.write[path]):
                changes.setdefault((_name(change.path), change.before, change.after), change)
                if len(changes) == _MAX_CHANGES:
                    return list(changes.values())
    return list(changes.values())


def _compare(path: str, before: bytes, after: bytes) -> Iterator[_Change]:
    """Yield the changed settings of a file, none if it cannot be parsed."""
    try:
        if path == LOCKFILE:
            yield from _differences(_charts(before), _charts(after), ("charts",))
            return
        old = _by_identity(load_yaml_all(before, _LIMITS))
        new = _by_identity(load_yaml_all(after, _LIMITS))
    except TextError:
        return
    for identity in sorted(old.keys() & new.keys()):
        yield from _differences(old[identity], new[identity], (identity,))


def _charts(content: bytes) -> Any:
    # Hash, network and release only repeat other files.
    value = load_yaml(content, _LIMITS)
    versions = value.get("versions") if isinstance(value, dict) else None
    return versions.get("charts") if isinstance(versions, dict) else {}


def _by_identity(documents: list[Any]) -> dict[str, Any]:
    """Return objects by kind and name.

    The only object of a kind has just its kind as key, because templates change their name with
    their content.
    """
    objects = [document for document in documents if isinstance(document, dict)]
    kinds = Counter(str(obj.get("kind")) for obj in objects)
    contents = {}
    for obj in objects:
        kind = str(obj.get("kind"))
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict):
            metadata = {}
        content = {key: value for key, value in obj.items() if key != "metadata"}
        content |= {key: metadata.get(key) or {} for key in ("annotations", "labels")}
        identity = kind if kinds[kind] == 1 else f"{kind}/{metadata.get('name')}"
        contents[identity] = content
    return contents


def _differences(old: Any, new: Any, path: _Path) -> Iterator[_Change]:
    """Yield the changed settings below a path."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}, key=str):
            inner = (*path, str(key))
            yield from _differences(old.get(key, _MISSING), new.get(key, _MISSING), inner)
        return

    # Lists of named items are compared by name, because their order may change with a new item.
    old_items = _by_name(old)
    new_items = _by_name(new)
    if old_items is not None and new_items is not None:
        yield from _differences(old_items, new_items, path)
    elif isinstance(old, str) and isinstance(new, str) and "\n" in old and "\n" in new:
        yield from _differences_of_texts(old, new, path)
    elif old != new and not any(part.endswith("Ref") for part in path[-2:]):
        yield _Change(path, _format_value(path, old), _format_value(path, new))


def _differences_of_texts(old: str, new: str, path: _Path) -> Iterator[_Change]:
    """Compare the values of a chart, which are YAML in YAML. Any other text changes as a whole."""
    try:
        before = load_yaml(old, _LIMITS)
        after = load_yaml(new, _LIMITS)
    except TextError:
        before = after = None
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _differences(before, after, path)
    elif old != new:
        yield _Change(path, "", "changed")


def _by_name(value: Any) -> dict[str, Any] | None:
    """Return the items of a list by name; None unless all items have names, and different ones."""
    if not isinstance(value, list):
        return None
    items = {}
    for item in value:
        if not isinstance(item, dict) or not item.get("name"):
            return None
        items[str(item["name"])] = {key: field for key, field in item.items() if key != "name"}
    return items if len(items) == len(value) else None


def _format_value(path: _Path, value: Any) -> str:
    """Return a value for messages, and `…` for a value that is long or may be confidential."""
    if value is _MISSING or value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float | str):
        return "…"
    text = str(value)
    is_plain = 0 < len(text) <= _MAX_VALUE_LENGTH and text.isprintable()
    is_confidential = _CONFIDENTIAL.search(".".join(path[-2:]))
    return text if is_plain and not is_confidential else "…"


def _name(path: _Path) -> str:
    """Return the name of a setting as its users know it."""
    kind, _, name = path[0].partition("/")
    if path[-1] == "replicas":
        if "controlPlane" in path or kind.endswith("ControlPlane"):
            return "control plane"
        if "machineDeployments" in path:
            return path[-2]
        if path[-2] == "spec":
            return name or "workers"
        # Replicas of an add-on are a setting like others.
        return ".".join(path[-2:])
    if path[-1] == "value" and "variables" in path:
        return path[-2]
    return "Kubernetes" if path[-1] == "version" else path[-1]
