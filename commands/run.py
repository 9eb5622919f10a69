"""`caphv run`: the provider as a process. It accepts the Go provider's flags."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from commands.options.endpoints import (
    ControllerOptions,
    certificate_folder,
    log_options,
    metrics_options,
    probe_option,
)
from commands.options.groups import fill
from commands.webhook import WebhookOptions, stop_signal, webhook_options, webhook_runnables

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from caphv.runtime.runnable import Runnable

_BOOLEANS = (
    "leader-elect",
    "enable-webhooks",
    "with-packager",
    "allow-insecure-identities",
    "cross-namespace-refs",
    "metrics-secure",
    "zap-devel",
)
# Go's strconv.ParseBool accepts these values.
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
_ZAP_LEVELS = {"debug": "debug", "info": "info", "error": "error", "panic": "error"}


# A variable of clusterctl's manifests with its default, as drone/envsubst writes it.
_VARIABLE = re.compile(r"\$\{[A-Z_]+:=([^${}]*)\}")


class _GoFlags(click.Command):
    """Accept the syntax of Go's flag package, and variables of clusterctl.

    Long options may have one dash, and switches `=true` or `=false`. `${NAME:=default}` is the
    default: clusterctl and Turtles fill in their variables, `kubectl apply` does not.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_translate(arg) for arg in args])


def _translate(arg: str) -> str:
    """Return an argument in click's syntax."""
    arg = _VARIABLE.sub(r"\1", arg)
    long = re.fullmatch(r"--?([a-z][a-z0-9-]+)(?:=(.*))?", arg, re.DOTALL)
    if not long:
        return arg
    name = long[1]
    value = long[2]
    if name in _BOOLEANS and value is not None:
        if value not in (*_TRUE, *_FALSE):
            allowed = ", ".join((*_TRUE, *_FALSE))
            raise click.BadParameter(f"{value!r} is not one of {allowed}", param_hint=f"'--{name}'")
        return f"--{name}" if value in _TRUE else f"--no-{name}"
    return f"--{name}" if value is None else f"--{name}={value}"


def _zap(_ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    if value not in (None, False):
        click.echo(f"caphv: --{str(option.name).replace('_', '-')} has no effect here", err=True)
    return None


def _networks(
    _ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[Any, ...]:
    from caphv.runtime.addresses import networks

    try:
        return networks(texts)
    except ValueError as error:
        raise click.BadParameter(
            f"{error}; give a network such as 10.20.0.0/16, or one address"
        ) from None


@dataclass(frozen=True, kw_only=True)
class RunOptions(WebhookOptions, ControllerOptions):
    """Options of `caphv run`, including the options of the Go provider."""

    enable_webhooks: bool
    with_packager: bool
    concurrency: int
    allow_insecure_identities: bool
    allow_harvester_cidr: tuple[Any, ...]
    harvester_cache_size: int
    runtime_extension_bind_address: str
    runtime_extension_client_ca: Path | None
    zap_log_level: str | None
    zap_encoder: str | None
    zap_devel: bool


@click.command(
    cls=_GoFlags,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  caphv run --kubeconfig ~/.kube/management.yaml
  caphv run --leader-elect --log-format json
  caphv run --namespace team-a            only watch one namespace
  caphv run --watch-filter blue           only watch objects with label \
cluster.x-k8s.io/watch-filter=blue

Exit status: 0 stopped by a signal, 1 failed to start or while running, 2 usage error, 3 lost the
lease.
""",
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
    help="Namespace to watch, including its identity Secrets.  [default: all namespaces]",
)
@click.option(
    "--watch-filter",
    default="",
    show_default=False,
    metavar="VALUE",
    help="Only watch objects whose label cluster.x-k8s.io/watch-filter has this value.",
)
@metrics_options
@probe_option
@click.option(
    "--leader-elect/--no-leader-elect",
    help="Only work while holding the lease; required with several replicas.",
)
@click.option(
    "--enable-webhooks/--no-enable-webhooks",
    help="Also serve the admission webhooks, in a child process; see `caphv webhook --help`.",
)
@webhook_options
@click.option(
    "--with-packager/--no-with-packager",
    help=(
        "Also run the packager, in a child process that environment variables CAPHV_* "
        "configure; see `caphv packager run --help`."
    ),
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=32,
    metavar="NUMBER",
    help="Maximum number of concurrent reconciles per kind.",
)
@click.option(
    "--allow-insecure-identities/--no-allow-insecure-identities",
    help=(
        "Accept identity Secrets whose kubeconfig sets insecure-skip-tls-verify; this "
        "exposes their credentials to man-in-the-middle attacks."
    ),
)
@click.option(
    "--allow-harvester-cidr",
    multiple=True,
    callback=_networks,
    metavar="CIDR",
    show_default=False,
    help=(
        "Allow Harvester addresses in this CIDR. The address check of identities "
        "otherwise refuses loopback, link-local and metadata addresses, and the "
        "management cluster's own API server. Repeatable."
    ),
)
@click.option(
    "--harvester-cache-size",
    type=click.IntRange(24, 1024),
    default=32,
    metavar="MIB",
    help=(
        "Maximum memory for the cached objects of one Harvester, in MiB, plus 64 KiB "
        "for each machine on it."
    ),
)
@click.option(
    "--runtime-extension-bind-address",
    default="",
    show_default=False,
    metavar="[HOST]:PORT",
    help=(
        "Address of Cluster API's runtime extension, with which running VMs can grow. "
        "It serves the certificate in --webhook-cert-dir.  [default: disabled]"
    ),
)
@click.option(
    "--runtime-extension-client-ca",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help=(
        "CA certificates of the clients that may use the runtime extension.  [default: "
        "all clients may use it]"
    ),
)
@log_options
@click.option("--zap-log-level", default=None, hidden=True)
@click.option("--zap-encoder", type=click.Choice(["json", "console"]), default=None, hidden=True)
@click.option("--zap-devel/--no-zap-devel", hidden=True)
@click.option(
    "--zap-stacktrace-level", default=None, hidden=True, callback=_zap, expose_value=False
)
@click.option("--zap-time-encoding", default=None, hidden=True, callback=_zap, expose_value=False)
@fill(options=RunOptions)
def run(options: RunOptions) -> None:
    """Run the Cluster API provider for Harvester.

    The provider watches HarvesterClusters and HarvesterMachines on the management cluster and
    reconciles virtual machines, disks, addresses and load balancers on Harvester. On SIGTERM it
    finishes running reconciles and exits.
    """
    from caphv.runtime import logs

    level, log_format = _log_settings(options)
    logs.configure(level, log_format)
    log = logging.getLogger("caphv")
    sys.exit(_run(replace(options, log_level=level, log_format=log_format), log))


class _LogSettings(NamedTuple):
    """Level and format of the log."""

    level: str
    format: Any


def _log_settings(options: RunOptions) -> _LogSettings:
    """Return how to log.

    Flags of the Go provider take precedence, because a Deployment that has them was written for the
    Go provider.
    """
    level = options.log_level
    log_format = options.log_format
    zap = options.zap_log_level
    if zap:
        level = _zap_level(zap)
    elif options.zap_devel:
        level = "debug"
    if options.zap_encoder:
        log_format = "json" if options.zap_encoder == "json" else "text"
    return _LogSettings(level, log_format)


def _zap_level(text: str) -> str:
    """Translate a level of the Go provider: a name in any case, or a verbosity.

    A verbosity above 0 means debug.
    """
    if level := _ZAP_LEVELS.get(text.lower()):
        return level
    if text.isdecimal():
        return "debug" if int(text) > 0 else "info"
    # An unknown level must not fail, because the provider has to start with the flags of the Go
    # provider after a migration.
    names = ", ".join(_ZAP_LEVELS)
    click.echo(
        f"caphv: --zap-log-level {text!r} is none of {names} and no number; the level is info",
        err=True,
    )
    return "info"


def _extension_address(options: RunOptions) -> str:
    """Return the address of the runtime extension, empty for none. Raises `click.UsageError`."""
    from caphv.runtime.runnable import listening_address

    address = options.runtime_extension_bind_address
    try:
        return address if listening_address(address) else ""
    except ValueError as error:
        raise click.UsageError(f"--runtime-extension-bind-address: {error}") from None


def _run(options: RunOptions, log: logging.Logger) -> int:
    """Run the provider with its child processes until a signal; return the exit status.

    3 after a lost Lease, 1 after another failure. Raises `click.UsageError`.
    """
    from caphv.runtime import eventloop
    from caphv.runtime.addresses import AddressPolicy
    from caphv.runtime.errors import ApiError
    from caphv.runtime.kubeconfig import KubeconfigError
    from caphv.runtime.manager import BindAddresses, LeaseLost
    from commands.packager.run import child_process
    from reconciler.manager import ProviderOptions
    from reconciler.manager import run as run_provider

    provider = ProviderOptions(
        kubeconfig=options.kubeconfig,
        namespace=options.namespace,
        watch_filter=options.watch_filter,
        leader_elect=options.leader_elect,
        concurrency=options.concurrency,
        cross_namespace_refs=options.cross_namespace_refs,
        allow_insecure_identities=options.allow_insecure_identities,
        secure_metrics=options.metrics_secure,
        metrics_certificate=certificate_folder(options),
        address_policy=AddressPolicy(options.allow_harvester_cidr),
        harvester_cache_mib=options.harvester_cache_size,
        extension_address=_extension_address(options),
        extension_certificate=Path(options.webhook_cert_dir),
        extension_clients=options.runtime_extension_client_ca,
        addresses=BindAddresses(options.metrics_bind_address, options.health_probe_bind_address),
    )

    # Usage errors of child processes are reported before the provider starts.
    webhooks = webhook_runnables(options) if options.enable_webhooks else None
    packager = [child_process(options)] if options.with_packager else []

    def runnables(client: ApiClient) -> list[Runnable]:
        return [*(webhooks(client) if webhooks else []), *packager]

    async def main() -> None:
        await run_provider(provider, stop_signal(), runnables)

    try:
        eventloop.run(main())
    except LeaseLost as error:
        log.error("%s", error)
        return 3
    except (KubeconfigError, ApiError, OSError) as error:
        log.error("%s", error)
        return 1
    return 0
