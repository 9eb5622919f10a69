"""GitRepos: the objects on the management cluster that make Fleet read the bundles.

Each sync of a GitRepo reads all its bundles, changed or not, and ends at the first one that cannot be read: a chart
that cannot be downloaded stops all clusters of a GitRepo. So clusters are spread over several: one for each workspace
and group. A group is named in a cluster's settings, else it is the namespace or, on request, found from the name, so
that a new cluster changes one GitRepo only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from caphv.api.object import Key, Obj
from packager.addons.settings import AddonSettings
from packager.git.paths import joined
from packager.git.remote import group_prefix
from packager.rendering import branches
from packager.rendering.bundles import workspace
from packager.tree import CLUSTERS, cluster_folder, path_of

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
# The form `user@host:path` of ssh.
_SCP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[A-Za-z0-9~/][A-Za-z0-9._~/-]*")


@dataclass(frozen=True)
class GitRepoOptions:
    """What the GitRepos have in common.

    `folder` is the path in the repository below which `clusters/` stands. `client_secret_name` names a Secret of type
    kubernetes.io/basic-auth or kubernetes.io/ssh-auth in each workspace; `ca_bundle` is PEM. `groups` is the number of
    groups for clusters whose settings name none, 0 for one per namespace. `helm_secret_name` names a Secret with
    credentials for the chart repositories that `helm_repo_regex` matches. `own_branches` are groups whose bundles are
    on a branch of their own.
    """

    repo: str
    branch: str = "main"
    name: str = "caphv"
    folder: str = ""
    client_secret_name: str = ""
    ca_bundle: str = ""
    # As Fleet writes it back: `60s` would differ forever.
    polling_interval: str = "1m0s"
    groups: int = 0
    helm_secret_name: str = ""
    helm_repo_regex: str = ""
    own_branches: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raises ValueError for a URL with a password or of another kind than https, http, ssh, git and file."""
        parts = urlsplit(self.repo) if "://" in self.repo else None
        known = parts and parts.scheme in ("https", "http", "ssh", "git", "file")
        if not (known or _SCP.fullmatch(self.repo)):
            msg = "repo must be a URL of Git: https://…, ssh://… or user@host:path"
            raise ValueError(msg)
        if parts and (parts.password or (parts.username and parts.scheme != "ssh")):
            msg = "repo must not hold credentials: put them into a Secret and name it in client_secret_name"
            raise ValueError(msg)
        if "PRIVATE KEY" in self.ca_bundle:
            msg = "ca_bundle must hold certificates only"
            raise ValueError(msg)
        if not _NAME.fullmatch(self.name) or self.groups < 0:
            msg = "name must be one of Kubernetes with at most 63 characters, and groups not negative"
            raise ValueError(msg)
        _check_helm(self.helm_secret_name, self.helm_repo_regex)
        if self.folder:
            path_of(*self.folder.split("/"))


def _check_helm(secret: str, regex: str) -> None:
    if bool(secret) != bool(regex):
        msg = (
            "give a Helm secret and a regular expression of the repositories it is for, or neither: without the "
            "expression Fleet sends the credentials to every chart repository"
        )
        raise ValueError(msg)
    try:
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"{regex!r} is not a regular expression: {error}") from None


def check_is_remote(repo: str) -> None:
    """Raise ValueError for a repository on this machine, which Fleet cannot read: its GitRepos would be stalled."""
    if repo.startswith("file:"):
        msg = f"repo {repo} is a folder of this machine, which Fleet cannot read: give its https:// or ssh:// address"
        raise ValueError(msg)


def git_repos(clusters: Iterable[AddonSettings], options: GitRepoOptions) -> list[Obj]:
    """Return one GitRepo a workspace and group, sorted, each with the folders of its clusters' bundles.

    Without groups, paths are patterns, so that Fleet reads new clusters of a namespace without another GitRepo.
    """
    known = list(clusters)
    grouped = options.groups > 1 or any(settings.fleet.group for settings in known) or bool(options.own_branches)
    paths: dict[tuple[str, str], set[str]] = {}
    for settings in known:
        key = settings.cluster
        path = cluster_path(options, key) if grouped else namespace_path(options, key.namespace)
        own = branches.branch_of(settings, options.own_branches)
        group = branches.group_of(settings) if own else group_of(settings, options.groups)
        paths.setdefault((workspace(settings), group), set()).add(path)
    return [git_repo(options, *place, sorted(found)) for place, found in sorted(paths.items())]


def cluster_path(options: GitRepoOptions, cluster: Key) -> str:
    """Return the path of a GitRepo for the bundles of one cluster; the star excludes the lockfile."""
    return "/".join(filter(None, (options.folder, cluster_folder(*cluster), "*")))


def namespace_path(options: GitRepoOptions, namespace: str) -> str:
    """Return the path of a GitRepo for the bundles of all clusters in a namespace."""
    return "/".join(filter(None, (options.folder, CLUSTERS, namespace, "*", "*")))


def group_of(settings: AddonSettings, groups: int) -> str:
    """Group of a cluster: that of its settings, else its namespace or, with `groups`, one of `0` … `groups - 1`."""
    if settings.fleet.group or not groups:
        return branches.group_of(settings)
    digest = hashlib.sha256(str(settings.cluster).encode()).digest()
    return str(int.from_bytes(digest[:8], "big") % groups)


def git_repo(options: GitRepoOptions, namespace: str, group: str, paths: list[str]) -> Obj:
    """Return the GitRepo of a group of clusters in a workspace; `paths` are folders or patterns of them."""
    name = f"{options.name}-{group}"
    if len(name) > 63:
        name = f"{name[:54]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    branch = options.branch
    if group in options.own_branches:
        branch = joined(group_prefix(options.branch, options.folder), namespace, group)
    spec: Obj = {"repo": options.repo, "branch": branch}
    if options.client_secret_name:
        spec["clientSecretName"] = options.client_secret_name
    if options.helm_secret_name:
        spec |= {"helmSecretName": options.helm_secret_name, "helmRepoURLRegex": options.helm_repo_regex}
    if options.ca_bundle:
        # A field of bytes: base64 around the PEM.
        spec["caBundle"] = base64.b64encode(options.ca_bundle.encode()).decode()
    spec |= {"pollingInterval": options.polling_interval, "paths": paths}
    return {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "GitRepo",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
