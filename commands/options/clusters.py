"""Options that select clusters, in files or on the management cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from commands.options.completion import complete_namespaces
from commands.options.groups import with_options
from commands.options.management import CONTEXT, KUBECONFIG

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The options of `cluster_options` for the source and the selection of clusters."""

    paths: tuple[str, ...]
    kubeconfig: str
    context: str
    namespace: str
    selector: str


def cluster_options(command: _Command) -> _Command:
    """Add the options for the source and the selection of clusters."""
    return with_options(
        command,
        click.option(
            "-l",
            "--selector",
            default="",
            metavar="SELECTOR",
            help="Label selector for clusters, such as tier=prod,region!=eu.",
        ),
        click.option(
            "-n",
            "--namespace",
            default="",
            shell_complete=complete_namespaces,
            metavar="NAMESPACE",
            help="Only clusters in this namespace.  [default: all namespaces]",
        ),
        CONTEXT,
        KUBECONFIG,
        click.argument(
            "paths", metavar="[FILE|DIRECTORY|-]...", nargs=-1, type=click.Path(allow_dash=True)
        ),
    )
