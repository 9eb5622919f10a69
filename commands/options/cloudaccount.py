"""Options of `caphv cloud-config`: the account of a cluster, its token, and the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from caphv.api.object import NAMESPACES
from commands.access.changes import confirm
from commands.options.changes import ChangeOptions
from commands.options.completion import complete_on_harvester
from commands.options.formats import output_option
from commands.options.groups import with_options
from commands.options.outputfile import FileOptions, file_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class AccountOptions(ChangeOptions):
    """The options of `account_options` for the account of a cluster, and for questions."""

    name: str
    namespace: str
    harvester_kubeconfig: str

    def confirm(self, question: str) -> None:
        """Ask on standard error, because the output is data. Raises `click.Abort`."""
        confirm(replace(self, output="data"), question)


@dataclass(frozen=True, kw_only=True)
class TokenOptions(AccountOptions, FileOptions):
    """The options of `output_options` for the token, which is printed unless there is a file."""

    server: str
    expires_in: int | None
    workload_kubeconfig: str | None = None


def _check_name(_ctx: click.Context, _option: click.Parameter, text: str) -> str:
    if not text or "/" in text:
        raise click.BadParameter(f"{text!r} is not the name of an object")
    return text


def account_options(command: _Command) -> _Command:
    """Add the options that name the account, and the Harvester that has it."""
    return with_options(
        command,
        click.option(
            "--harvester-kubeconfig",
            type=click.Path(exists=True, dir_okay=False),
            required=True,
            metavar="FILE",
            help="Administrator's kubeconfig for Harvester.",
        ),
        click.option(
            "-n",
            "--namespace",
            required=True,
            callback=_check_name,
            metavar="NAMESPACE",
            shell_complete=complete_on_harvester(NAMESPACES),
            help="Namespace of the cluster's VMs on Harvester.",
        ),
        click.argument("name", callback=_check_name),
    )


def output_options(command: _Command) -> _Command:
    """Add the options for the token and the output."""
    return with_options(
        command,
        file_options("File to write, with mode 0600.  [default: standard output]"),
        output_option(
            "cloud-init",
            "kubeconfig",
            "secret",
            "json",
            "yaml",
        ),
        click.option(
            "--server",
            default="",
            metavar="URL",
            help="URL at which guests reach Harvester.  [default: Harvester's VIP]",
        ),
        click.option(
            "--expires-in",
            type=click.IntRange(1, 3650),
            metavar="DAYS",
            help=(
                "Issue a token that expires after this many days; Harvester may shorten its "
                "lifetime.  [default: does not expire]"
            ),
        ),
    )
