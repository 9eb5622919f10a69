"""GitRepos: the objects on the management cluster that make Fleet read the bundles.

Each sync of a GitRepo reads all its bundles, changed or not, and ends at the first bundle that
cannot be read. So a chart that cannot be downloaded stops all clusters of a GitRepo. Therefore each
workspace and group of clusters has its own GitRepo. A cluster's settings may name its group. By
default, the group is the namespace or, on request, derived from the name, so that a new cluster
changes only one GitRepo.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from caphv.api.object import Key, Obj
from packager.addons.settings import AddonSettings
from packager.git.errors import InvalidRemote
from packager.git.paths import check_path
from packager.git.remote import Remote
from packager.rendering.bundles import workspace
from packager.tree import CLUSTERS, cluster_folder

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
# The form `user@host:path` of ssh. Paths of Azure DevOps have `%20` for a blank.
_SCP = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[A-Za-z0-9~/_][A-Za-z0-9._~/%+-]*"
)


@dataclass(frozen=True)
class GitRepoOptions:
    """Settings that all GitRepos share.

    `folder` is the path in the repository that holds `clusters/`. `client_secret_name` names a
    Secret of type kubernetes.io/basic-auth or kubernetes.io/ssh-auth in each workspace. `ca_bundle`
    is PEM. `groups` is the number of groups for clusters whose settings name none; 0 makes one
    group for each namespace. `helm_secret_name` names a Secret with credentials for the chart
    repositories that `helm_repo_regex` matches.
    """

    repo: str
    branch: str = "main"
    name: str = "caphv"
    folder: str = ""
    client_secret_name: str = ""
    ca_bundle: str = ""
    # Fleet writes `60s` back as `1m0s`, so that `60s` would differ forever.
    polling_interval: str = "1m0s"
    groups: int = 0
    helm_secret_name: str = ""
    helm_repo_regex: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid field, or a URL with credentials or unknown scheme."""
        parts = urlsplit(self.repo) if "://" in self.repo else None
        has_known_scheme = parts and parts.scheme in ("https", "http", "ssh", "git", "file")
        if not (has_known_scheme or _SCP.fullmatch(self.repo)):
            msg = "repo must be a URL of Git: https://…, ssh://… or user@host:path"
            raise ValueError(msg)
        if parts and (parts.password or (parts.username and parts.scheme != "ssh")):
            msg = (
                "repo must not hold credentials: put them into a Secret and name it in "
                "client_secret_name"
            )
            raise ValueError(msg)

        if "PRIVATE KEY" in self.ca_bundle:
            msg = "ca_bundle must hold certificates only"
            raise ValueError(msg)
        if not _NAME.fullmatch(self.name) or self.groups < 0:
            msg = (
                "name must be one of Kubernetes with at most 63 characters, and groups not negative"
            )
            raise ValueError(msg)

        _check_helm(self.helm_secret_name, self.helm_repo_regex)
        if self.folder:
            check_path(self.folder)


def _check_helm(secret: str, regex: str) -> None:
    if bool(secret) != bool(regex):
        msg = (
            "give a Helm secret and a regular expression of the repositories it is for, or "
            "neither: without the expression Fleet sends the credentials to every chart "
            "repository"
        )
        raise ValueError(msg)
    try:
        re.compile(regex)
    except re.error as error:
        raise ValueError(f"{regex!r} is not a regular expression: {error}") from None


class GitRepoFlags(Protocol):
    """The flags that describe the repository, and how Fleet reads it."""

    @property
    def repo(self) -> str:
        """The repository."""

    @property
    def branch(self) -> str:
        """Its branch."""

    @property
    def inner(self) -> str:
        """The path in it that holds `clusters/`."""

    @property
    def client_secret(self) -> str:
        """The Secret with which Fleet reads it."""

    @property
    def helm_secret(self) -> str:
        """The Secret with which Fleet reads chart repositories."""

    @property
    def helm_repo_regex(self) -> str:
        """Which chart repositories that Secret is for."""


def git_repo_options(flags: GitRepoFlags) -> GitRepoOptions | None:
    """Return the settings of GitRepos; None for a folder, or for a path on this machine.

    Fleet reads a remote, whose address only the user knows. Raises `ValueError` if flags request
    GitRepos nevertheless, and for a remote that Fleet cannot read: without GitRepos it would read
    no bundle.
    """
    is_local = not flags.repo or flags.repo.startswith("/")
    if is_local and not (flags.client_secret or flags.helm_secret or flags.helm_repo_regex):
        return None

    address = flags.repo
    if not is_local:
        try:
            # Fleet takes the user from the Secret. Git hosts put another one into the addresses
            # that they show, which only Git needs.
            address = Remote(flags.repo, flags.branch).shown
        except InvalidRemote as error:
            raise ValueError(str(error)) from None
    try:
        return GitRepoOptions(
            address,
            flags.branch,
            folder=flags.inner,
            client_secret_name=flags.client_secret,
            helm_secret_name=flags.helm_secret,
            helm_repo_regex=flags.helm_repo_regex,
        )
    except ValueError as error:
        # The address holds no password and no token, which no remote may have.
        shown = f"{address}: " if address else ""
        raise ValueError(f"{shown}{error}") from None


def is_remote(repo: str) -> bool:
    """Whether Fleet can read a repository, because it is not on this machine."""
    return not repo.startswith("file:")


def check_is_remote(repo: str) -> None:
    """Raise `ValueError` for a repository on this machine, which Fleet cannot read."""
    if not is_remote(repo):
        msg = (
            f"repo {repo} is a folder of this machine, which Fleet cannot read: give its https:// "
            "or ssh:// address"
        )
        raise ValueError(msg)


def git_repos(clusters: Iterable[AddonSettings], options: GitRepoOptions) -> list[Obj]:
    """Return a GitRepo for each workspace and group, with the folders of its clusters' bundles.

    Without groups, paths are patterns, so that Fleet reads new clusters of a namespace without
    another GitRepo.
    """
    members = list(clusters)
    # A pattern reads all clusters of a namespace, so patterns do not fit when clusters of a
    # namespace are in several GitRepos.
    is_grouped = options.groups > 1 or any(settings.fleet.group for settings in members)

    paths_by_repo: dict[tuple[str, str], set[str]] = {}
    for settings in members:
        key = settings.cluster
        path = cluster_path(options, key) if is_grouped else namespace_path(options, key.namespace)
        repo = (workspace(settings), group_of(settings, options.groups))
        paths_by_repo.setdefault(repo, set()).add(path)
    return [
        git_repo(options, fleet_workspace, group, sorted(paths))
        for (fleet_workspace, group), paths in sorted(paths_by_repo.items())
    ]


def cluster_path(options: GitRepoOptions, cluster: Key) -> str:
    """Return a GitRepo's path for the bundles of one cluster. The star excludes the lockfile."""
    return "/".join(filter(None, (options.folder, cluster_folder(*cluster), "*")))


def namespace_path(options: GitRepoOptions, namespace: str) -> str:
    """Return the path of a GitRepo for the bundles of all clusters in a namespace."""
    return "/".join(filter(None, (options.folder, CLUSTERS, namespace, "*", "*")))


def group_of(settings: AddonSettings, groups: int) -> str:
    """Return the group of a cluster.

    That is the group in its settings, else one of `groups` numbers, or the namespace for 0 groups.
    """
    if settings.fleet.group:
        return settings.fleet.group
    if not groups:
        return settings.cluster.namespace
    digest = hashlib.sha256(str(settings.cluster).encode()).digest()
    return str(int.from_bytes(digest[:8], "big") % groups)


def git_repo(options: GitRepoOptions, namespace: str, group: str, paths: list[str]) -> Obj:
    """Return the GitRepo of a group of clusters in a workspace; `paths` may be patterns."""
    name = f"{options.name}-{group}"
    # Fleet puts the name into a label, which holds 63 characters.
    if len(name) > 63:
        name = f"{name[:54]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    spec: Obj = {"repo": options.repo, "branch": options.branch}
    if options.client_secret_name:
        spec["clientSecretName"] = options.client_secret_name
    if options.helm_secret_name:
        spec |= {
            "helmSecretName": options.helm_secret_name,
            "helmRepoURLRegex": options.helm_repo_regex,
        }
    if options.ca_bundle:
        # Kubernetes expects base64 in a field of bytes.
        spec["caBundle"] = base64.b64encode(options.ca_bundle.encode()).decode()
    spec |= {"pollingInterval": options.polling_interval, "paths": paths}

    return {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "GitRepo",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
