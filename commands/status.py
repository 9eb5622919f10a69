"""`caphv status`: one line per cluster, and for each problem the cause and the next step."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.access.management import management_client, read_overview, run
from commands.errors import CommandError
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ScopeOptions,
    Selection,
    clusters_argument,
    management_options,
    namespace_options,
    selection,
)
from commands.output.data import fields_of, print_data
from commands.output.progress import patient_progress
from commands.output.quiet import quiet

if TYPE_CHECKING:
    from operations.status.model import Overview


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The address of the live page, and the file with its token."""

    bind_address: str
    token_file: Path | None


_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


@click.command(
    short_help="Show clusters and their problems, with the next step for each.",
    epilog="""\b
Examples:
  caphv status                          clusters in the current namespace
  caphv status -A                       all clusters
  caphv status -A --watch               refreshed on every change
  caphv status production -n team-a --deep
  caphv status -A --serve               a live page at the printed address
  caphv status -A -o json | jq '.items[] | select(.wrong)'

Exit status: 0 no problem, 1 a problem, or the provider does not run, 2 the management cluster
cannot be read.
""",
)
@clusters_argument()
@namespace_options
@click.option(
    "--deep/--no-deep",
    default=None,
    help="Also read from Harvester and the workload clusters.  [default: only with --serve]",
)
@click.option("-w", "--watch", is_flag=True, help="Refresh the output on every change.")
@click.option("--serve", is_flag=True, help="Serve a live page for a browser.")
@click.option(
    "--bind-address",
    default="127.0.0.1:8642",
    show_default=True,
    metavar="HOST:PORT",
    help=(
        "Address of the live page. Its URL contains a random token; anyone who knows "
        "the URL sees what you may read."
    ),
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=(
        "File with the token for the URL of the live page, so that bookmarks stay "
        "valid.  [default: a new token each time]"
    ),
)
@output_option()
@insecure_option
@management_options
@fill(page=PageOptions, scope=ScopeOptions)
def status(
    clusters: tuple[str, ...],
    *,
    deep: bool | None,
    watch: bool,
    serve: bool,
    output: str,
    page: PageOptions,
    scope: ScopeOptions,
) -> None:
    """Show one line per cluster on Harvester, and the cause and the next step for each problem.

    CLUSTER is NAME or NAMESPACE/NAME. The command reads with your kubeconfig and your rights, and
    lists on standard error what you may not read.
    """
    chosen = selection(clusters, scope)
    if (watch or serve) and output != "text":
        raise click.UsageError("--output cannot be used with --watch or --serve")
    if watch and serve:
        raise click.UsageError("--serve and --watch are mutually exclusive")

    if watch or serve:
        # Hide reconnects of watches, because the output names the kinds that cannot be read.
        click.get_current_context().with_resource(quiet("caphv.runtime", logging.CRITICAL))
    if serve:
        run(_serve(scope, chosen, page, deep=deep is not False))
    if watch:
        run(_watch(scope, chosen, deep=bool(deep)))

    with patient_progress() as step:
        overview = read_overview(scope, chosen, step, deep=bool(deep)).overview
    if output == "text":
        _show(overview, chosen)
    else:
        print_data(output, **fields_of(overview, items="clusters"))
    _show_unseen(overview)
    sys.exit(1 if overview.wrong else 0)


def _show(overview: Overview, chosen: Selection) -> None:
    """Show the provider, causes that clusters share, and the clusters."""
    from commands.output import overview as out

    now = datetime.now(UTC)
    out.show_provider(out.console(), overview, now)
    out.show_causes(out.console(), overview, now)
    if overview.clusters:
        out.show(out.console(), overview, with_namespace=not chosen.namespace)
        return

    where = f"in namespace {chosen.namespace}; all namespaces: -A" if chosen.namespace else "here"
    click.echo(f"No clusters on Harvester {where}", err=True)


def _show_unseen(overview: Overview) -> None:
    from commands.output import overview as out

    out.show_unseen(overview)


async def _watch(scope: ScopeOptions, chosen: Selection, *, deep: bool) -> None:
    """Show clusters until the user interrupts; on a terminal, replace the former output."""
    from operations.read.follow import Follower
    from operations.status.query import answer_of

    query = chosen.query(deep=deep)
    async with management_client(scope) as client, Follower(client, chosen.namespace) as follower:
        shown = None
        async for objects in follower.changes():
            # Controllers write objects all the time, mostly without a visible change.
            overview = (await answer_of(client, query, objects)).overview
            if overview == shown:
                continue

            shown = overview
            if sys.stdout.isatty():
                click.clear()
            _show(overview, chosen)
            _show_unseen(overview)
            if not sys.stdout.isatty():
                click.echo()


async def _serve(
    scope: ScopeOptions, chosen: Selection, options: PageOptions, *, deep: bool
) -> None:
    """Serve the live page until the user interrupts. Raises `CommandError` if it cannot be served.

    :param scope: the management cluster
    :param chosen: the clusters to show
    :param options: the address of the page, and its token
    :param deep: whether to ask also Harvesters and workload clusters
    """
    import asyncio

    from operations.status.page.livepage import LivePage

    host, port = _parse_address(options.bind_address)
    token = _read_token(options.token_file)
    async with management_client(scope) as client:
        keys = frozenset(chosen.keys)
        page = LivePage(client, chosen.namespace, keys, deep=deep, token=token)
        try:
            async with page.serving(host, port) as url:
                click.echo(f"Live page at {url} (stop it with Ctrl-C)")
                await asyncio.Event().wait()  # until the user interrupts
        except OSError as error:
            message = f"cannot serve at {options.bind_address}: {error.strerror}"
            raise CommandError(message) from None


def _read_token(file: Path | None) -> str:
    """Return the token of a file, or an empty text without a file."""
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(
            f"cannot read {file}: {error}", param_hint="--token-file"
        ) from None

    if not _TOKEN.fullmatch(token):
        problem = (
            f"{file} must contain 16 to 128 letters, digits, - and _, for example the output of "
            "`openssl rand -hex 24`"
        )
        raise click.BadParameter(problem, param_hint="--token-file")
    return token


def _parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text. Raises `click.BadParameter`."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--bind-address")
    return host, int(port)
