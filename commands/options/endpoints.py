"""Options for endpoints and logs, shared by all long-running commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.groups import with_options

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from caphv.runtime.logs import Format
    from caphv.runtime.metrics_auth import MetricsAuth

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """The options of `metrics_options`, `probe_option` and `log_options`."""

    metrics_bind_address: str
    metrics_secure: bool
    metrics_cert_dir: str
    health_probe_bind_address: str
    log_level: str
    log_format: Format


@dataclass(frozen=True, kw_only=True)
class ControllerOptions(EndpointOptions):
    """Options for the scope and the kubeconfig of a controller, and for leader election."""

    kubeconfig: str
    namespace: str
    watch_filter: str
    leader_elect: bool


def _check_address(_ctx: click.Context, _option: click.Parameter, address: str) -> str:
    from caphv.runtime.runnable import listening_address

    try:
        listening_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return address


def metrics_options(command: _Command) -> _Command:
    """Add the options for the metrics endpoint."""
    return with_options(
        command,
        click.option(
            "--metrics-cert-dir",
            default="",
            show_default=False,
            metavar="DIRECTORY",
            help=(
                "Directory with tls.crt and tls.key for --metrics-secure, reloaded when they "
                "change.  [default: a self-signed certificate]"
            ),
        ),
        click.option(
            "--metrics-secure/--no-metrics-secure",
            help=(
                "Serve metrics over TLS, and only to bearer tokens whose account may get /metrics."
            ),
        ),
        click.option(
            "--metrics-bind-address",
            default=":8080",
            callback=_check_address,
            metavar="[HOST]:PORT",
            help="Address of the /metrics endpoint; 0 disables it.",
        ),
    )


def probe_option(command: _Command) -> _Command:
    """Add the option for the health endpoint."""
    return click.option(
        "--health-probe-bind-address",
        default=":9440",
        callback=_check_address,
        metavar="[HOST]:PORT",
        help="Address of the /healthz and /readyz endpoints; 0 disables them.",
    )(command)


def log_options(command: _Command) -> _Command:
    """Add the options of `caphv.runtime.logs`."""
    command = click.option(
        "--log-format",
        type=click.Choice(["auto", "json", "text"]),
        default="auto",
        help="Log format; auto writes text to a terminal, and JSON elsewhere.",
    )(command)
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        help="Minimum log level.",
    )(command)


def metrics_auth(options: EndpointOptions, client: ApiClient | None) -> MetricsAuth | None:
    """Return the guard of metrics, None unless the flags ask for one."""
    if client is None or not options.metrics_secure:
        return None
    from caphv.runtime.metrics_auth import MetricsAuth

    folder = certificate_folder(options)
    return MetricsAuth(client, folder)


def certificate_folder(options: EndpointOptions) -> Path | None:
    """Return the folder of the metrics certificate.

    Raises `click.UsageError` without `--metrics-secure`.
    """
    folder = options.metrics_cert_dir
    if folder and not options.metrics_secure:
        raise click.UsageError("--metrics-cert-dir has no effect without --metrics-secure")
    return Path(folder) if folder else None
