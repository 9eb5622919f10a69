"""`caphv packager run`: the packager as a process, standalone or as a child of the provider."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.options.charts import ChartOptions, chart_options, helm_secret_options
from commands.options.endpoints import (
    ControllerOptions,
    certificate_folder,
    log_options,
    metrics_options,
    probe_option,
)
from commands.options.groups import fill, pick
from commands.options.repository import (
    RepositoryOptions,
    SourceOptions,
    author_options,
    git_cache_option,
    prune_option,
    remote_options,
    source_options,
)
from commands.webhook import stop_signal

if TYPE_CHECKING:
    from caphv.runtime.childprocess import ChildProcess
    from packager.controller.config import PackagerFlags
    from packager.controller.main import PackagerOptions


@dataclass(frozen=True, kw_only=True)
class PackagerRunOptions(RepositoryOptions, SourceOptions, ChartOptions, ControllerOptions):
    """Options of `caphv packager run`."""

    client_secret: str
    helm_secret: str
    helm_repo_regex: str
    max_prune: int
    debounce: float
    interval: float
    receiver_bind_address: str
    receiver_secret_file: str


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  caphv packager run --repo https://git.example.com/fleet.git --git-credentials /etc/caphv/git \
--leader-elect
                                                 in a Pod, with credentials from a mounted Secret
  CAPHV_GIT_PASSWORD=… caphv packager run --repo https://git.example.com/fleet.git --kubeconfig \
management.yaml
                                                 outside of a cluster
  caphv packager run --repo https://git.example.com/fleet.git --source-repo \
https://git.example.com/clusters.git
                                                 also turn cluster definitions into manifests
  caphv packager run --repo git@example.com:fleet.git --review caphv/bundles
                                                 propose changes as a pull request

Exit status: 0 stopped by a signal, 1 failed to start or while running, 2 usage error, 3 lost the
lease.
""",
)
@git_cache_option("a temporary directory, so that each start clones again")
@remote_options
@source_options
@author_options
@prune_option
@click.option(
    "--client-secret",
    default="",
    show_default=False,
    envvar="CAPHV_CLIENT_SECRET",
    metavar="NAME",
    help=(
        "Secret with Fleet's credentials for the repository, field clientSecretName of "
        "the GitRepos of definitions."
    ),
)
@chart_options
@helm_secret_options
@click.option(
    "--debounce",
    type=click.FloatRange(0, 600),
    default=1.0,
    envvar="CAPHV_DEBOUNCE",
    metavar="SECONDS",
    help="Time without further changes before a commit, in seconds.",
)
@click.option(
    "--interval",
    type=click.FloatRange(1, 86400),
    default=60.0,
    envvar="CAPHV_INTERVAL",
    metavar="SECONDS",
    help=(
        "Interval at which to check the repository when nothing changes in the cluster, in seconds."
    ),
)
@click.option(
    "--receiver-bind-address",
    default="",
    show_default=False,
    envvar="CAPHV_RECEIVER_ADDRESS",
    metavar="[HOST]:PORT",
    help="Address for push events of a Git host, at path /push.  [default: disabled]",
)
@click.option(
    "--receiver-secret-file",
    default="",
    show_default=False,
    envvar="CAPHV_RECEIVER_SECRET_FILE",
    metavar="FILE",
    help="File with the secret with which the Git host signs its events.",
)
@click.option(
    "--kubeconfig",
    default="",
    show_default=False,
    metavar="FILE",
    help=(
        "Kubeconfig of the management cluster.  [default: the Pod's ServiceAccount, "
        "else KUBECONFIG, else ~/.kube/config]"
    ),
)
@click.option(
    "--namespace",
    default="",
    show_default=False,
    metavar="NAMESPACE",
    help="Namespace to watch.  [default: all namespaces]",
)
@click.option(
    "--watch-filter",
    default="",
    show_default=False,
    metavar="VALUE",
    help=(
        "Only watch Clusters whose HarvesterCluster has this value of label "
        "cluster.x-k8s.io/watch-filter."
    ),
)
@click.option(
    "--leader-elect/--no-leader-elect",
    help="Only work while holding the lease; required with several replicas.",
)
@metrics_options
@probe_option
@log_options
@fill(options=PackagerRunOptions)
def run(options: PackagerRunOptions) -> None:
    """Run the packager in a management cluster.

    The packager watches Clusters, HarvesterClusters and ClusterClasses, renders the bundles of each
    cluster whose settings changed, and commits them together. Condition AddonBundlesReady of the
    HarvesterCluster reports the result.
    """
    require_git()
    from caphv.runtime import eventloop, logs
    from caphv.runtime.errors import ApiError
    from caphv.runtime.kubeconfig import KubeconfigError
    from caphv.runtime.manager import LeaseLost
    from packager.controller.main import run as run_packager
    from webhooks import crossobject

    settings = packager_flags(options)
    logs.configure(settings.log_level, settings.log_format)
    log = logging.getLogger("caphv")

    async def main(packager: PackagerOptions) -> None:
        await run_packager(packager, stop_signal())

    try:
        with settings.resolve(crossobject.check) as packager:
            eventloop.run(main(packager))
    except LeaseLost as error:
        log.error("%s", error)
        sys.exit(3)
    except (KubeconfigError, ApiError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)


def require_git() -> None:
    """Raise `click.UsageError` without Git, before anything is imported that needs it."""
    if shutil.which("git") is None:
        raise click.UsageError(
            "git is not in the PATH: the image of the provider has no Git, use that of the "
            "packager, whose tag ends with -packager"
        )


def packager_flags(options: PackagerRunOptions) -> PackagerFlags:
    """Check the options; return them in the form of the child process's settings.

    Raises `click.UsageError`.
    """
    from commands.packager.sync_source import refuse_circles, refuse_signers_without_source
    from packager.controller.config import PackagerFlags
    from packager.git.errors import InvalidRemote
    from packager.rendering.renderer import Renderer
    from webhooks import crossobject

    if not options.repo:
        raise click.UsageError(
            "name the repository with --repo URL, or with variable CAPHV_GIT_REPO"
        )
    certificate_folder(options)
    refuse_signers_without_source(options)
    if options.source_repo:
        refuse_circles(options, options.repo, options.branch, options.inner)

    paths = ("git_credentials", "git_cache", "source_credentials", "source_signers")
    texts = {name: str(getattr(options, name) or "") for name in paths}
    flags = pick(PackagerFlags, dataclasses.asdict(options) | texts)
    try:
        packager = flags.options(Path(), crossobject.check)
        Renderer(packager.publisher.rendering)
    except (InvalidRemote, ValueError, FileNotFoundError) as error:
        raise click.UsageError(str(error)) from None
    return flags


def child_process(provider: ControllerOptions) -> ChildProcess:
    """Return the child process of `caphv run --with-packager`. Raises `click.UsageError`.

    Its settings come from variables of the environment, and from options that it shares with the
    provider.
    """
    require_git()
    from caphv.runtime.childprocess import ChildProcess

    with run.make_context("caphv run --with-packager", [], resilient_parsing=False) as context:
        options = pick(PackagerRunOptions, context.params)
    shared = ("kubeconfig", "namespace", "watch_filter", "leader_elect", "log_level", "log_format")
    options = dataclasses.replace(options, **{name: getattr(provider, name) for name in shared})
    settings = packager_flags(options).for_child()
    return ChildProcess("packager", "commands.packager.childprocess", dataclasses.asdict(settings))
