"""`caphv status`: one line per cluster, and for each problem the cause and the next step."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.options.clusters import CommandError
from commands.options.harvesters import insecure_option
from commands.options.management import (
    Selection,
    clusters_argument,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    print_data,
    read_overview,
    run,
    selection,
)
from commands.output.quiet import quiet

if TYPE_CHECKING:
    from overview.model import Overview

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


@click.command(
    short_help="Show clusters, what is wrong with them, and what to do.",
    epilog="""\b
Examples:
  caphv status                          clusters of the current namespace
  caphv status -A                       all clusters
  caphv status -A --watch               refreshed on every change
  caphv status production -n team-a --deep
  caphv status -A --serve               a live page, at the address that it prints
  caphv status -A -o json | jq '.clusters[] | select(.wrong)'

\b
Exit status: 0 nothing is wrong, 1 something is, or the provider is silent, 2 the management cluster cannot be
read.
""",
)
@clusters_argument()
@namespace_options
@click.option(
    "--deep/--no-deep", default=None, help="Ask Harvesters and workload clusters, too.  [default: with --serve only]"
)
@click.option("-w", "--watch", is_flag=True, help="Refresh on every change.")
@click.option("--serve", is_flag=True, help="Serve a live page for a browser.")
@click.option(
    "--bind-address",
    default="127.0.0.1:8642",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve it. Who knows the page's address, which has a random token, sees what you may read.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the token of the page's address, to keep a bookmark.  [default: a new token each time]",
)
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@insecure_option
@management_options
def status(clusters: tuple[str, ...], **flags: Any) -> None:
    """Show one line per cluster on Harvester, and for each problem the cause and the next step.

    CLUSTER is a name, or NAMESPACE/NAME. Everything is read with your kubeconfig and your rights; what you may not read
    is named on standard error.
    """
    chosen = selection(clusters, flags)
    if (flags["watch"] or flags["serve"]) and flags["output"] != "text":
        raise click.UsageError("--output is for a single look, without --watch and --serve")
    if flags["watch"] and flags["serve"]:
        raise click.UsageError("--serve and --watch exclude each other")
    if flags["watch"] or flags["serve"]:
        # A watch that breaks and comes back is no news for a reader; what stays unseen is in the output.
        click.get_current_context().with_resource(quiet("caphv.runtime", logging.CRITICAL))
    if flags["serve"]:
        run(_serve(flags, chosen))
    if flags["watch"]:
        run(_watch(flags, chosen))
    with patient_progress() as step:
        found = read_overview(flags, chosen, step, deep=bool(flags["deep"])).overview
    _write(found, chosen, flags)
    sys.exit(1 if found.wrong else 0)


def _write(found: Overview, chosen: Selection, flags: dict[str, Any]) -> None:
    from commands.output import overview as out

    if flags["output"] != "text":
        print_data(found, flags["output"])
        out.show_unseen(found)
        return
    now = datetime.now(UTC)
    out.show_provider(out.console(), found, now)
    out.show_causes(out.console(), found, now)
    if not found.clusters:
        where = f"in namespace {chosen.namespace}; all namespaces: -A" if chosen.namespace else "here"
        click.echo(f"No clusters on Harvester {where}", err=True)
    else:
        out.show(out.console(), found, with_namespace=not chosen.namespace)
    out.show_unseen(found)


async def _watch(flags: dict[str, Any], chosen: Selection) -> None:
    """Show clusters until the user interrupts; on a terminal in one place."""
    from overview.follow import Follower
    from overview.query import Query, answer_of

    query = Query(chosen.namespace, frozenset(chosen.keys), bool(flags["deep"]))
    async with management_client(flags) as client, Follower(client, chosen.namespace) as follower:
        before = None
        async for objects in follower.changes():
            found = (await answer_of(client, query, objects)).overview
            if found == before:
                continue
            before = found
            if sys.stdout.isatty():
                click.clear()
            _write(found, chosen, flags)
            if not sys.stdout.isatty():
                click.echo()


async def _serve(flags: dict[str, Any], chosen: Selection) -> None:
    """Serve the live page until the user interrupts."""
    import asyncio

    from overview.page.server import LivePage

    host, port = _address(flags["bind_address"])
    token = _read_token(flags["token_file"])
    async with management_client(flags) as client:
        page = LivePage(client, chosen.namespace, frozenset(chosen.keys), deep=flags["deep"] is not False, token=token)
        try:
            async with page.serving(host, port) as url:
                click.echo(f"Live page at {url} (Ctrl-C ends it)")
                await asyncio.Event().wait()
        except OSError as error:
            raise CommandError(f"cannot serve at {flags['bind_address']}: {error.strerror}") from None


def _read_token(file: Path | None) -> str:
    """Return the token of a file, or an empty text without a file."""
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {file}: {error}", param_hint="--token-file") from None
    if not _TOKEN.fullmatch(token):
        problem = f"{file} must have 16 to 128 letters, digits, - and _ (for example of `openssl rand -hex 24`)"
        raise click.BadParameter(problem, param_hint="--token-file")
    return token


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--bind-address")
    return host, int(port)
