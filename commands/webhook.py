"""`caphv webhook`: the admission webhooks alone, and what `caphv run` has in common with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.endpoints import (
    EndpointOptions,
    certificate_folder,
    log_options,
    metrics_auth,
    metrics_options,
    probe_option,
)
from commands.options.groups import fill, with_options

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from caphv.runtime.client import ApiClient
    from caphv.runtime.logs import Format
    from caphv.runtime.runnable import Runnable

# Existing Deployments mount the certificate there.
CERT_DIR = "/tmp/k8s-webhook-server/serving-certs"  # noqa: S108
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """The addresses of the webhooks, for the server and for API servers."""

    kubeconfig: str
    webhook_url: str = ""
    webhook_service: str = ""
    webhook_cert_dir: str = CERT_DIR
    webhook_bind_address: str = ":9443"
    cross_namespace_refs: bool = True
    log_level: str
    log_format: Format


@dataclass(frozen=True, kw_only=True)
class ServeOptions(WebhookOptions, EndpointOptions):
    """Options of `caphv webhook`."""


def webhook_options(command: _Command) -> _Command:
    """Add the options that say where webhooks are served and how API servers find them."""
    return with_options(
        command,
        click.option(
            "--webhook-url",
            default="",
            show_default=False,
            metavar="URL",
            help=(
                "URL of the webhooks, https://host[:port], for API servers that reach them "
                "without a Service."
            ),
        ),
        click.option(
            "--webhook-service",
            default="",
            show_default=False,
            metavar="NAMESPACE/NAME",
            help=(
                "Service in front of the webhooks. Without a Service and a URL, the webhook "
                "configurations are not changed.  [default: in a Pod, caphv-webhook-service in "
                "its namespace]"
            ),
        ),
        click.option(
            "--webhook-cert-dir",
            default=CERT_DIR,
            metavar="DIRECTORY",
            help=(
                "Directory with tls.crt, tls.key and, unless cert-manager injects the CA, "
                "ca.crt; reloaded when they change."
            ),
        ),
        click.option(
            "--webhook-bind-address",
            default=":9443",
            metavar="[HOST]:PORT",
            help="Address that serves the webhooks.",
        ),
        click.option(
            "--cross-namespace-refs/--no-cross-namespace-refs",
            default=True,
            help=(
                "Allow HarvesterClusters to use identity Secrets and ConfigMaps of other "
                "namespaces whose annotation caphv.io/allowed-namespaces permits it."
            ),
        ),
    )


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  caphv webhook                                    in a Pod, behind Service caphv-webhook-service
  caphv webhook --kubeconfig management.yaml --webhook-cert-dir certs --webhook-url \
https://10.0.0.7:9443
                                                   outside of a cluster; API servers call the URL
  caphv webhook --webhook-cert-dir certs           serve only, without a cluster
  openssl x509 -in certs/tls.crt -noout -ext subjectAltName -enddate
                                                   show the names and the expiry of the certificate

Exit status: 0 stopped by a signal, 1 failed to start or while running, 2 usage error.
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
@webhook_options
@metrics_options
@probe_option
@log_options
@fill(options=ServeOptions)
def webhook(options: ServeOptions) -> None:
    """Serve the admission webhooks in a process separate from the provider.

    API servers send each HarvesterCluster, HarvesterMachine and template that is created or
    changed; the answer lists all its errors at once. `caphv run --enable-webhooks` serves the same
    webhooks. A separate process scales independently: all replicas serve requests, without leader
    election.

    The process waits for its certificate and loads a new one without dropping requests. It keeps
    the two webhook configurations on the API server up to date, and recreates deleted ones. It
    never rejects a change of an object that is being deleted.
    """
    from caphv.runtime import eventloop, logs
    from caphv.runtime.errors import ApiError
    from caphv.runtime.kubeconfig import KubeconfigError

    # Usage errors are reported before anything is logged or started.
    target = client_config(options)
    certificate_folder(options)

    logs.configure(options.log_level, options.log_format)
    log = logging.getLogger("caphv")
    try:
        eventloop.run(_serve(options, target))
    except (KubeconfigError, ApiError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)


async def _serve(options: ServeOptions, target: Obj | None) -> None:
    """Serve the webhooks until a signal, and keep their registration up to date.

    :param options: addresses, certificates and the management cluster
    :param target: the client configuration to register; None registers nothing
    """
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import process_configuration
    from caphv.runtime.manager import BindAddresses, Manager
    from webhooks.server import WebhookServer

    # Without a registration and guarded metrics, the webhook needs no API server.
    client = None
    if target is not None or options.metrics_secure:
        client = ApiClient(await process_configuration(options.kubeconfig), name="management")

    addresses = BindAddresses(options.metrics_bind_address, options.health_probe_bind_address)
    manager = Manager(addresses=addresses, metrics_auth=metrics_auth(options, client))
    server = WebhookServer(
        options.webhook_bind_address,
        Path(options.webhook_cert_dir),
        cross_namespace=options.cross_namespace_refs,
    )
    manager.add_runnable(server)
    if client and target:
        manager.add_runnable(_registration(options, target, client, server))

    try:
        await manager.run(stop_signal())
    finally:
        if client:
            await client.close()


def webhook_runnables(options: WebhookOptions) -> Callable[[ApiClient], list[Runnable]]:
    """Return a builder of the runnables for `caphv run --enable-webhooks`.

    The runnables are the server and, if API servers should call it, the registration.
    """
    from webhooks import process

    target = client_config(options)
    settings = process.ServerSettings(
        options.webhook_bind_address,
        options.webhook_cert_dir,
        options.log_level,
        options.log_format,
        cross_namespace_refs=options.cross_namespace_refs,
    )

    def runnables(client: ApiClient) -> list[Runnable]:
        server = process.child_process(settings)
        return [server, *([_registration(options, target, client, server)] if target else [])]

    return runnables


def _registration(
    options: WebhookOptions, target: Obj, client: ApiClient, server: Runnable
) -> Runnable:
    from webhooks.registration import Registration

    # The webhooks are registered at API servers only while the server can answer.
    return Registration(
        client, target, Path(options.webhook_cert_dir), lambda: not server.not_ready()
    )


def client_config(options: WebhookOptions) -> Obj | None:
    """Return the address at which API servers find the webhooks, None if it is unknown.

    Raises `click.UsageError`.
    """
    from caphv.runtime.clientconfig import own_namespace
    from caphv.runtime.runnable import listening_address
    from webhooks import configuration

    service = options.webhook_service
    url = options.webhook_url
    try:
        if listening_address(options.webhook_bind_address) is None:
            raise ValueError(
                f"--webhook-bind-address: {options.webhook_bind_address!r} is not of the form "
                "[host]:port"
            )
        if service and url:
            raise ValueError(
                "--webhook-service and --webhook-url both say where the webhooks are: give one of "
                "them"
            )
        if not service and not url:
            # Outside of a cluster, only the user knows an address that API servers reach.
            if options.kubeconfig or not os.environ.get("KUBERNETES_SERVICE_HOST"):
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
