"""Says what a plan changes, with the names that users know: `team-a/production: workers 2→5, cpuCount 8→16`.

The subject of a commit is read in lists, in mails and in alerts. It names clusters and settings, not folders. Files
are compared before and after, so that it holds for every way in which bundles and manifests come to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caphv.runtime.text import Limits, TextError, load_yaml, load_yaml_all
from packager.definitions import ownership
from packager.definitions.files import MANIFESTS
from packager.git.folder import RECORD
from packager.git.prune import Plan
from packager.git.snapshot import Snapshot
from packager.rendering.lockfile import FILE as LOCKFILE
from packager.tree import CLUSTERS

_MOST_CLUSTERS = 10
"""Clusters whose files are compared; a commit for more of them only lists names."""
_MOST_CHANGES = 50
_LONGEST_SUBJECT = 72
_LONGEST_VALUE = 24
_LIMITS = Limits(aliases=False)
# A value is shown only when it says something, and cannot be confidential.
_CONFIDENTIAL = re.compile("token|password|secret|credential|key|kubeconfig|userdata", re.IGNORECASE)
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


def summarized(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return a plan with subject and details of its commit. `snapshot` is what the plan was made for."""
    verbs = _verbs(plan)
    if not verbs:
        return plan
    changes = {name: _changes_of(name, plan, snapshot) for name in verbs} if len(verbs) <= _MOST_CLUSTERS else {}
    details = {name: tuple(map(str, found)) for name, found in changes.items() if found}
    return replace(plan, subject=_subject(verbs, details), details=details)


def _verbs(plan: Plan) -> dict[str, str]:
    """Return what happens to each cluster, by `<namespace>/<name>`."""
    found: dict[str, str] = {}
    removed = [removal.folder for removal in plan.removed if not removal.bundle]
    changed = [*plan.changed, *(removal.folder for removal in plan.removed if removal.bundle)]
    for verb, folders in (("add", plan.added), ("remove", removed), ("update", changed)):
        for folder in folders:
            root, _, name = folder.partition("/")
            if root in (MANIFESTS, CLUSTERS):
                # A cluster whose manifest stays is updated, whatever happens to its bundles.
                known = found.get(name, verb)
                found[name] = verb if known == verb else "update"
    return dict(sorted(found.items()))


def _subject(verbs: Mapping[str, str], details: Mapping[str, Sequence[str]]) -> str:
    if len(verbs) == 1:
        name, verb = next(iter(verbs.items()))
        if verb == "update" and name in details:
            return _shortened(f"{name}: ", details[name])
        return f"{name}: {verb} the cluster" if verb != "update" else f"{name}: update the cluster's files"
    groups = [[name for name, done in verbs.items() if done == verb] for verb in ("add", "update", "remove")]
    words = [f"{verb} {len(names)}" for verb, names in zip(("add", "update", "remove"), groups, strict=True) if names]
    text = f"{', '.join(words)} clusters: "
    return _shortened(text[0].upper() + text[1:], list(verbs))


def _shortened(head: str, parts: Sequence[str]) -> str:
    """Return as many parts as a subject may hold, and say how many are left out."""
    for count in range(len(parts), 0, -1):
        left = len(parts) - count
        text = head + ", ".join(parts[:count]) + (f" and {left} more" if left else "")
        if len(text) <= _LONGEST_SUBJECT:
            return text
    return f"{head}{len(parts)} changes" if head[0].islower() else head.removesuffix(": ")


def _changes_of(name: str, plan: Plan, snapshot: Snapshot) -> list[_Change]:
    """Return the changed settings of a cluster, each once, although manifest and bundles may both hold it."""
    found: dict[tuple[str, str, str], _Change] = {}
    for root in (MANIFESTS, CLUSTERS):
        folder = f"{root}/{name}/"
        for path in sorted(path for path in plan.write if path.startswith(folder)):
            if path.endswith((f"/{RECORD}", f"/{ownership.FILE}")) or (before := snapshot.read(path)) is None:
                continue
            for change in _compared(path.removeprefix(folder), before, plan.write[path]):
                found.setdefault((_name(change.path), change.before, change.after), change)
                if len(found) == _MOST_CHANGES:
                    return list(found.values())
    return list(found.values())


def _compared(path: str, before: bytes, after: bytes) -> Iterator[_Change]:
    try:
        if path == LOCKFILE:
            yield from _differences(_charts(before), _charts(after), ("charts",))
            return
        old, new = _by_identity(load_yaml_all(before, _LIMITS)), _by_identity(load_yaml_all(after, _LIMITS))
    except TextError:
        return
    for identity in sorted(old.keys() & new.keys()):
        yield from _differences(old[identity], new[identity], (identity,))


def _charts(content: bytes) -> Any:
    # Hash, network and release only repeat what other files say.
    value = load_yaml(content, _LIMITS)
    versions = value.get("versions") if isinstance(value, dict) else None
    return versions.get("charts") if isinstance(versions, dict) else {}


def _by_identity(documents: list[Any]) -> dict[str, Any]:
    """Return objects by kind and name. Templates change their name with their content, so a lone one has none."""
    kinds = [str(one.get("kind")) for one in documents if isinstance(one, dict)]
    found = {}
    for one in documents:
        if isinstance(one, dict):
            kind, metadata = str(one.get("kind")), one.get("metadata")
            known = metadata if isinstance(metadata, dict) else {}
            content = {key: value for key, value in one.items() if key != "metadata"}
            content |= {key: known.get(key) or {} for key in ("annotations", "labels")}
            found[kind if kinds.count(kind) == 1 else f"{kind}/{known.get('name')}"] = content
    return found


def _differences(old: Any, new: Any, path: _Path) -> Iterator[_Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}, key=str):
            yield from _differences(old.get(key, _MISSING), new.get(key, _MISSING), (*path, str(key)))
    elif (named := _named(old)) is not None and (others := _named(new)) is not None:
        yield from _differences(named, others, path)
    elif isinstance(old, str) and isinstance(new, str) and "\n" in old and "\n" in new:
        yield from _differences_of_texts(old, new, path)
    elif old != new and not any(part.endswith("Ref") for part in path[-2:]):
        yield _Change(path, _shown(path, old), _shown(path, new))


def _differences_of_texts(old: str, new: str, path: _Path) -> Iterator[_Change]:
    """Compare the values of a chart, which are YAML in YAML; any other text has changed as a whole."""
    try:
        before, after = load_yaml(old, _LIMITS), load_yaml(new, _LIMITS)
    except TextError:
        before = after = None
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _differences(before, after, path)
    elif old != new:
        yield _Change(path, "", "changed")


def _named(value: Any) -> dict[str, Any] | None:
    """Return the items of a list by their names, if each has one of its own."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and one.get("name") for one in value):
        return None
    found = {str(one["name"]): {key: item for key, item in one.items() if key != "name"} for one in value}
    return found if len(found) == len(value) else None


def _shown(path: _Path, value: Any) -> str:
    if value is _MISSING or value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    is_plain = isinstance(value, int | float | str) and len(text) <= _LONGEST_VALUE and text.isprintable()
    return text if is_plain and text and not _CONFIDENTIAL.search(".".join(path[-2:])) else "…"


def _name(path: _Path) -> str:
    """Return the name of a setting as its users know it."""
    kind, _, name = path[0].partition("/")
    if path[-1] == "replicas":
        if "controlPlane" in path or kind.endswith("ControlPlane"):
            return "control plane"
        if "machineDeployments" in path:
            return path[-2]
        # Replicas of an add-on are a setting like others.
        return name or "workers" if path[-2] == "spec" else ".".join(path[-2:])
    if path[-1] == "value" and "variables" in path:
        return path[-2]
    return "Kubernetes" if path[-1] == "version" else path[-1]
