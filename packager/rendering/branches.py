"""Groups of clusters whose bundles are on a branch of their own.

Fleet runs every GitRepo of a branch for each commit on it. So a large repository lists groups in `caphv-branches.yaml`:
the bundles of each are also on a branch that has nothing else, and their GitRepo reads that one. Everything is planned
on the common branch. The lockfile of a cluster names its branch, so that the branches follow from these files alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from caphv.runtime.text import Limits, TextError, load_yaml
from caphv.validation.finding import Fault, Finding
from packager.addons.settings import AddonSettings
from packager.git.snapshot import Snapshot
from packager.rendering.bundles import workspace
from packager.rendering.lockfile import FILE as LOCKFILE
from packager.tree import CLUSTERS

FILE = "caphv-branches.yaml"
RULE = "bundles-branches"
_GROUP = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_BRANCH = re.compile(rb"^branch: ['\"]?([a-z0-9-]+/[a-z0-9-]+)['\"]?$", re.MULTILINE)
_LIMITS = Limits(size=64 * 1024, nodes=10_000, seconds=1)


def groups(content: bytes | None) -> frozenset[str]:
    """Return the groups of the file; none without one. Raises ValueError for an invalid one."""
    if content is None:
        return frozenset()
    try:
        value = load_yaml(content, _LIMITS)
    except TextError as error:
        raise ValueError(f"{FILE} {error}") from None
    listed = value.get("groups") if isinstance(value, dict) and value.keys() == {"groups"} else None
    if not isinstance(listed, list) or not all(isinstance(one, str) and _GROUP.fullmatch(one) for one in listed):
        raise ValueError(f"{FILE} must have one field, groups, with a list of names such as production")
    return frozenset(listed)


def finding(error: ValueError) -> Finding:
    """Return the finding of a repository whose file is invalid."""
    return Finding((FILE,), Fault.INVALID, str(error), RULE)


def group_of(settings: AddonSettings) -> str:
    """Return the group of a cluster: that of its settings, else its namespace."""
    return settings.fleet.group or settings.cluster.namespace


def branch_of(settings: AddonSettings, own: Collection[str]) -> str:
    """Return the branch of a cluster, `<workspace>/<group>`; empty where its group is not among `own`."""
    group = group_of(settings)
    return f"{workspace(settings)}/{group}" if group in own else ""


def folders(snapshot: Snapshot, branches: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the folders of clusters by branch.

    Of existing `branches`, those of a group that has lost its last cluster become empty. The branch of a group that is
    no longer listed stays as it is: its GitRepo reads the common branch again.
    """
    try:
        own = groups(snapshot.read(FILE))
    except ValueError:
        return {}
    if not own:
        return {}
    found: dict[str, list[str]] = {branch: [] for branch in branches if branch.rpartition("/")[2] in own}
    for namespace, outer in snapshot.entries(CLUSTERS).items():
        for name in snapshot.entries(f"{CLUSTERS}/{namespace}") if outer.is_folder else ():
            folder = f"{CLUSTERS}/{namespace}/{name}"
            if branch := branch_in(snapshot.read(f"{folder}/{LOCKFILE}")):
                found.setdefault(branch, []).append(folder)
    return found


def branch_in(lockfile: bytes | None) -> str:
    """Return the branch that a lockfile names, empty for none."""
    match = _BRANCH.search(lockfile or b"")
    return match[1].decode() if match else ""
