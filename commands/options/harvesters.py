"""Choose the Harvesters to ask: by the identities of clusters, or by a kubeconfig."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from commands.options.groups import with_options
from commands.options.management import ScopeOptions, context_namespace, namespace_option

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class HarvesterOptions(ScopeOptions):
    """The options of `harvester_option` and `harvester_namespace_options`."""

    harvester_kubeconfig: str


def harvester_option(command: _Command) -> _Command:
    """Add the option `harvester_kubeconfig`."""
    return click.option(
        "--harvester-kubeconfig",
        default="",
        metavar="FILE",
        help="Connect to Harvester with this kubeconfig instead of the clusters' identities.",
    )(command)


def harvester_namespace_options(command: _Command) -> _Command:
    """Add the options `namespace` and `all_namespaces`, which is the default."""
    return with_options(
        command,
        click.option(
            "-A",
            "--all-namespaces",
            is_flag=True,
            help="The Harvesters of clusters in all namespaces; this is the default.",
        ),
        namespace_option(
            "Only the Harvesters of clusters in this namespace.  [default: all namespaces]"
        ),
    )


def insecure_option(command: _Command) -> _Command:
    """Add the option to use kubeconfigs in Secrets that do not verify their server."""
    return click.option(
        "--allow-insecure-identities",
        is_flag=True,
        expose_value=False,
        callback=_allow_insecure,
        help=(
            "Also use kubeconfigs that set insecure-skip-tls-verify; this exposes their "
            "credentials to man-in-the-middle attacks."
        ),
    )(command)


def _allow_insecure(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        from operations.read.accounts import allow_insecure

        context.with_resource(allow_insecure())


def namespace_of(scope: ScopeOptions) -> str:
    """Return the namespace of `--namespace`, else the namespace of the context."""
    return scope.namespace or context_namespace(scope)
