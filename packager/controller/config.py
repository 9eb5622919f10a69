"""Flags of the packager in a cluster, as values that the command line and the child process use."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caphv.runtime import logs
from caphv.runtime.manager import BindAddresses
from packager.controller.definition_source import SourceOptions
from packager.controller.loop import SyncIntervals
from packager.controller.main import PackagerOptions
from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import PublisherOptions
from packager.controller.pushevents import Receiver, ReceiverOptions
from packager.definitions.source import Validator
from packager.git.commit import Identity
from packager.git.remote import Remote
from packager.git.signers import Signers
from packager.rendering.gitrepo import GitRepoOptions, git_repo_options
from packager.rendering.options import render_options

_AUTHOR = re.compile(r"(?P<name>[^<> ]+(?: +[^<> ]+)*) *<(?P<email>[^<> ]+)>")


@dataclass(frozen=True)
class PackagerFlags:
    """Values of the flags of `caphv packager run`. Credentials are never among them."""

    repo: str
    branch: str
    inner: str
    review: str
    author: str
    git_timeout: float
    git_credentials: str
    git_cache: str
    source_repo: str
    source_branch: str
    source_path: str
    source_credentials: str
    client_secret: str
    templates: str
    chart_repo: str
    max_prune: int
    debounce: float
    interval: float
    receiver_bind_address: str
    receiver_secret_file: str
    kubeconfig: str
    namespace: str
    watch_filter: str
    leader_elect: bool
    metrics_bind_address: str
    health_probe_bind_address: str
    log_level: str
    log_format: logs.Format
    create_branch: bool = False
    git_max_size: int = 512
    metrics_secure: bool = False
    metrics_cert_dir: str = ""
    helm_secret: str = ""
    helm_repo_regex: str = ""
    source_signers: str = ""
    fleet_version: str = ""

    def options(self, cache: Path, validate: Validator) -> PackagerOptions:
        """Return the parsed options; clones are below `cache`, and `validate` checks manifests.

        Raises `ValueError` or `InvalidRemote` for invalid values.
        """
        remote = Remote(
            url=self.repo,
            branch=self.branch,
            path=self.inner,
            review=self.review,
            timeout=self.git_timeout,
            create_branch=self.create_branch,
            max_size=self.git_max_size,
        )
        secret = Path(self.git_credentials) if self.git_credentials else None
        rendering = render_options(
            self.templates, self.chart_repo, fleet_version=self.fleet_version
        )
        publisher = PublisherOptions(
            repository=RepositoryConfig(
                remote=remote, cache=cache, secret_folder=secret, identity=self._identity()
            ),
            rendering=rendering,
            max_prune=self.max_prune,
            namespace=self.namespace,
            source=self._source(cache, secret, validate),
            git_repos=self._git_repos(),
        )

        return PackagerOptions(
            publisher,
            receiver=self._receiver(),
            kubeconfig=self.kubeconfig,
            watch_filter=self.watch_filter,
            leader_elect=self.leader_elect,
            intervals=SyncIntervals(self.debounce, max(15.0, self.debounce), self.interval),
            addresses=BindAddresses(self.metrics_bind_address, self.health_probe_bind_address),
            secure_metrics=self.metrics_secure,
            metrics_certificate=Path(self.metrics_cert_dir) if self.metrics_cert_dir else None,
        )

    @contextlib.contextmanager
    def resolve(self, validate: Validator) -> Iterator[PackagerOptions]:
        """Yield the parsed options; the clone is temporary unless a folder is configured."""
        if self.git_cache:
            yield self.options(Path(self.git_cache), validate)
            return
        with tempfile.TemporaryDirectory(
            prefix="caphv-packager-", ignore_cleanup_errors=True
        ) as folder:
            yield self.options(Path(folder), validate)

    def _source(
        self, cache: Path, secret: Path | None, validate: Validator
    ) -> SourceOptions | None:
        """Return the repository of definitions, None without one; it may use the same Secret."""
        if not self.source_repo:
            return None
        remote = Remote(
            self.source_repo,
            self.source_branch,
            self.source_path,
            timeout=self.git_timeout,
            max_size=self.git_max_size,
        )
        source_secret = Path(self.source_credentials) if self.source_credentials else secret

        # The list may change while the packager runs, so only its path is kept.
        signers = Path(self.source_signers) if self.source_signers else None
        if signers:
            # Read the list only for its checks: an invalid list is an error at the start. Each new
            # commit is verified with the list as it is then.
            Signers.read(signers)
        repository = RepositoryConfig(remote, cache / "source", source_secret)
        return SourceOptions(repository, validate, signers)

    def _git_repos(self) -> GitRepoOptions | None:
        # Only definitions have GitRepos in the repository.
        if not self.source_repo:
            return None
        try:
            return git_repo_options(self)
        except ValueError as error:
            raise ValueError(f"GitRepos of definitions: {error}") from None

    def _receiver(self) -> ReceiverOptions | None:
        if not self.receiver_bind_address:
            return None
        options = ReceiverOptions(self.receiver_bind_address, Path(self.receiver_secret_file))
        # Create a receiver only for its checks: an invalid address or secret is an error at the
        # start, and not in the process that receives later.
        Receiver(*options, lambda: None)
        return options

    def _identity(self) -> Identity:
        author = _AUTHOR.fullmatch(self.author)
        if author is None:
            msg = f"author {self.author!r} is not of the form Name <name@example.com>"
            raise ValueError(msg)
        return Identity(author["name"], author["email"])

    def for_child(self) -> PackagerFlags:
        """Return flags for a child process, whose metrics and health the provider serves."""
        return dataclasses.replace(
            self,
            metrics_bind_address="0",
            metrics_secure=False,
            metrics_cert_dir="",
            health_probe_bind_address="0",
        )
