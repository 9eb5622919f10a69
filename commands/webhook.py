"""`caphv webhook`: the admission webhooks alone, and what `caphv run` has in common with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.endpoints import certificate_folder, log_options, metrics_auth, metrics_options, probe_option

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from caphv.runtime.client import ApiClient
    from caphv.runtime.runnable import Runnable

CERT_DIR = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108 - the place that existing Deployments mount it to
_Command = TypeVar("_Command", bound=Callable[..., Any])


def webhook_options(command: _Command) -> _Command:
    """Add the options that say where webhooks are served and how API servers find them."""
    for option in (
        click.option(
            "--webhook-url",
            default="",
            show_default=False,
            metavar="URL",
            help="URL of the webhooks for API servers, if no Service routes to this process: https://host[:port].",
        ),
        click.option(
            "--webhook-service",
            default="",
            show_default=False,
            metavar="NAMESPACE/NAME",
            help="Service that routes to this process; default in a Pod: caphv-webhook-service in the Pod's namespace. "
            "Without Service and URL the webhook configurations are not changed.",
        ),
        click.option(
            "--webhook-cert-dir",
            default=CERT_DIR,
            help="Folder with tls.crt, tls.key and, unless cert-manager injects it, ca.crt; read again on changes.",
        ),
        click.option("--webhook-bind-address", default=":9443", help="Where to serve the webhooks, [host]:port."),
        click.option(
            "--cross-namespace-refs/--no-cross-namespace-refs",
            default=True,
            help="Let HarvesterClusters use identity Secrets and ConfigMaps of other namespaces whose annotation "
            "caphv.io/allowed-namespaces permits it, or refuse them all.",
        ),
    ):
        command = option(command)
    return command


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  caphv webhook                                    in a Pod, behind Service caphv-webhook-service
  caphv webhook --kubeconfig management.yaml --webhook-cert-dir certs --webhook-url https://10.0.0.7:9443
                                                   outside of a cluster; API servers call the URL
  caphv webhook --webhook-cert-dir certs           serves only; needs no cluster
  openssl x509 -in certs/tls.crt -noout -ext subjectAltName -enddate
                                                   whether the certificate has the name that API servers call

\b
Exit status: 0 stopped by a signal, 1 failed to start or to continue, 2 usage error.
""",
)
@click.option(
    "--kubeconfig",
    default="",
    show_default=False,
    help="Kubeconfig of the management cluster; default: the Pod's own account.",
)
@webhook_options
@metrics_options
@probe_option
@log_options
def webhook(**flags: Any) -> None:
    """Serve the admission webhooks in a process separate from the provider.

    API servers send each HarvesterCluster, HarvesterMachine and template that is created or changed; the answer lists
    all its errors at once. `caphv run --enable-webhooks` serves the same webhooks. A separate process scales
    independently: all replicas serve requests, without leader election.

    It waits for a certificate, loads a new one without dropping a request, and maintains the two webhook configurations
    on the API server: it creates missing ones, and recreates those that are deleted. It never rejects a change of an
    object that is being deleted.
    """
    from caphv.runtime import eventloop, logs
    from caphv.runtime.errors import ApiError
    from caphv.runtime.kubeconfig import KubeconfigError

    target = client_config(flags)
    certificate_folder(flags)
    logs.configure(flags["log_level"], flags["log_format"])
    log = logging.getLogger("caphv")
    try:
        eventloop.run(_serve(flags, target))
    except (KubeconfigError, ApiError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)


async def _serve(flags: dict[str, Any], target: Obj | None) -> None:
    from caphv.runtime.client import ApiClient
    from caphv.runtime.kubeconfig import process_configuration
    from caphv.runtime.manager import BindAddresses, Manager
    from webhooks.server import WebhookServer

    asks = target is not None or flags["metrics_secure"]
    client = ApiClient(await process_configuration(flags["kubeconfig"]), name="management") if asks else None
    addresses = BindAddresses(flags["metrics_bind_address"], flags["health_probe_bind_address"])
    manager = Manager(addresses=addresses, metrics_auth=metrics_auth(flags, client))
    server = WebhookServer(
        flags["webhook_bind_address"], Path(flags["webhook_cert_dir"]), cross_namespace=flags["cross_namespace_refs"]
    )
    manager.add_runnable(server)
    if client and target:
        manager.add_runnable(_registration(flags, target, client, server))
    try:
        await manager.run(stop_signal())
    finally:
        if client:
            await client.close()


def webhook_runnables(flags: dict[str, Any]) -> Callable[[ApiClient], list[Runnable]]:
    """Return what builds the runnables of `caphv run --enable-webhooks`: the server's process and the registration."""
    from webhooks import process

    target = client_config(flags)
    settings = process.ServerSettings(
        flags["webhook_bind_address"],
        flags["webhook_cert_dir"],
        flags["log_level"],
        flags["log_format"],
        cross_namespace_refs=flags["cross_namespace_refs"],
    )

    def parts(client: ApiClient) -> list[Runnable]:
        server = process.child_process(settings)
        return [server, *([_registration(flags, target, client, server)] if target else [])]

    return parts


def _registration(flags: dict[str, Any], target: Obj, client: ApiClient, server: Runnable) -> Runnable:
    from webhooks.registration import Registration

    return Registration(client, target, Path(flags["webhook_cert_dir"]), lambda: not server.not_ready())


def client_config(flags: dict[str, Any]) -> Obj | None:
    """Return where API servers find the webhooks, None when that is unknown. Raises `click.UsageError`."""
    from caphv.runtime.kubeconfig import own_namespace
    from caphv.runtime.runnable import listening_address
    from webhooks import configuration

    service, url = flags["webhook_service"], flags["webhook_url"]
    try:
        if listening_address(flags["webhook_bind_address"]) is None:
            raise ValueError(
                f"--webhook-bind-address: {flags['webhook_bind_address']!r} is not of the form [host]:port"
            )
        if service and url:
            raise ValueError("--webhook-service and --webhook-url both say where the webhooks are: give one of them")
        if not service and not url:
            if flags["kubeconfig"] or not os.environ.get("KUBERNETES_SERVICE_HOST"):
                return None
            service = f"{own_namespace()}/{configuration.SERVICE}"
        return configuration.client_config(service, url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM and an interrupt set."""
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    return stop
