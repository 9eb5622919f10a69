"""`caphv sandbox`: start, inspect and remove a sandbox on this machine."""

import asyncio
import collections
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from commands.main import CONTEXT_SETTINGS
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.output.data import fields_of, print_data
from commands.sandbox.common import (
    BOOT_SECONDS,
    build_report,
    failures,
    named_sandbox,
    print_part,
    running_sandbox,
    sandbox_options,
    selecting_options,
)
from commands.sandbox.demo import demo
from commands.sandbox.fault import fault
from sandbox.harvester.releases import NEWEST_STABLE, RELEASES
from sandbox.state import SandboxSettings

NOT_RUNNING = 1
_DISTRIBUTIONS = ("rke2", "k3s", "kubeadm")
_FOLLOW_SECONDS = 0.5
_SERVERS = ("management", "harvester", "identity", "harvester-direct")


def _distributions(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if unknown := [name for name in names if name not in _DISTRIBUTIONS]:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(_DISTRIBUTIONS)}")
    return ",".join(names)


@click.group(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv sandbox up
  export KUBECONFIG=$(caphv sandbox kubeconfig --path)
  kubectl get clusters -A
  caphv sandbox down
""",
)
def sandbox() -> None:
    """Run real API servers and a simulated Harvester on this machine.

    A sandbox runs etcd, a management API server with the real Cluster API core, and an API server
    that simulates Harvester, as plain processes on loopback addresses. It needs no containers and
    no root, and writes only to one directory. Several sandboxes with different names can run side
    by side.
    """


@sandbox.command(
    epilog="""\b
Examples:
  caphv sandbox up
  caphv sandbox up --name second --boot-seconds 20
  caphv sandbox up --fresh             remove an existing sandbox first
  caphv sandbox up --no-provider       without the provider, to run it yourself:
  caphv run --kubeconfig $(caphv sandbox kubeconfig --path) --allow-harvester-cidr 127.0.0.0/8
""",
)
@sandbox_options
@click.option(
    "--harvester",
    type=click.Choice(list(RELEASES)),
    default=NEWEST_STABLE,
    show_default=True,
    help="Release of the simulated Harvester.",
)
@click.option(
    "--provider/--no-provider", default=True, show_default=True, help="Also run the provider."
)
@click.option(
    "--webhooks/--no-webhooks",
    default=False,
    help="Let the provider serve its admission webhooks.",
)
@click.option(
    "--page/--no-page",
    default=True,
    show_default=True,
    help="Also serve a live page of the clusters.",
)
@click.option(
    "--audit/--no-audit", default=False, help="Write audit logs with one line per request."
)
@BOOT_SECONDS
@click.option(
    "--boot-spread",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    metavar="FRACTION",
    help="Variation of boot times, as a fraction of the boot time.",
)
@click.option(
    "--register-seconds",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time from the end of the boot until the Node registers, in seconds.",
)
@click.option(
    "--kubeadm/--no-kubeadm",
    default=True,
    show_default=True,
    help="Also run kubeadm's bootstrap and control plane providers.",
)
@click.option(
    "--own-providers",
    default="",
    metavar="rke2,k3s,kubeadm",
    callback=_distributions,
    help="Bootstrap and control plane providers not to run, because you run them yourself.",
)
@click.option(
    "--fresh", is_flag=True, help="First remove an existing sandbox with all its clusters."
)
@fill(settings=SandboxSettings)
def up(name: str | None, folder: Path | None, *, fresh: bool, settings: SandboxSettings) -> None:
    """Start a sandbox in the background.

    The first start builds etcd, kube-apiserver, the Cluster API core and kubeadm's providers from
    their Go modules, unless they are on PATH or in the directory KUBEBUILDER_ASSETS. This takes six
    to ten minutes on two cores, and half a minute more with kubeadm's providers; later starts take
    about fifteen seconds. If the sandbox exists, the command restarts parts that do not run, and
    keeps all clusters and settings. Only --fresh removes them.
    """
    from sandbox.capi import core, providers
    from sandbox.processes import binaries

    if settings.webhooks and not settings.provider:
        raise click.UsageError(
            "--webhooks has no effect with --no-provider: the provider serves the webhooks"
        )
    box = named_sandbox(name, folder, settings)
    with failures():
        with build_report() as report:
            binaries.prepare(report, core=core.program(), further=providers.programs(box.settings))
        started = asyncio.run(box.up(print_part, fresh=fresh))
    click.echo(
        f"Sandbox {box.folder.name} {'is up' if started else 'is already running'}: {box.folder}"
    )
    options = selecting_options(name, folder)
    if page := box.page():
        click.echo(f"  Live page: {page}")
    click.echo(f"  export KUBECONFIG=$(caphv sandbox kubeconfig{options} --path)")
    click.echo(f"  caphv sandbox down{options}")


@sandbox.command(
    epilog="""\b
Examples:
  caphv sandbox status
  caphv sandbox status -o json | jq -r .network

Exit status: 0 all parts run, 1 otherwise.
""",
)
@sandbox_options
@output_option()
def status(name: str | None, folder: Path | None, output: str) -> None:
    """Show the parts of a sandbox."""
    state = named_sandbox(name, folder).status()
    state["remedy"] = _remedy(state, name, folder)
    if output == "text":
        _print_table(state)
    else:
        print_data(output, **fields_of({"processes": [], **state}, items="processes"))
    if state["status"] != "running":
        sys.exit(NOT_RUNNING)


@sandbox.command(
    short_help="Print the kubeconfig of an API server.",
    epilog="""\b
Examples:
  export KUBECONFIG=$(caphv sandbox kubeconfig --path)
  kubectl --kubeconfig <(caphv sandbox kubeconfig harvester) get vm -A
  kubectl create secret generic harvester --from-file kubeconfig=$(caphv sandbox kubeconfig \
identity --path)
""",
)
@sandbox_options
@click.option("--path", is_flag=True, help="Print the path of the file instead of its content.")
@click.argument("server", type=click.Choice(_SERVERS), default=_SERVERS[0])
def kubeconfig(name: str | None, folder: Path | None, *, path: bool, server: str) -> None:
    """Print the administrator's kubeconfig of an API server: management (the default) or harvester.

    With identity, print a kubeconfig for the identity Secret of a cluster. Clients with identity or
    harvester connect through a proxy that injects the transport faults of `caphv sandbox fault`;
    harvester-direct bypasses it.
    """
    box = running_sandbox(name, folder)
    file = box.kubeconfig(server)
    if not file.exists():
        raise click.ClickException(
            f"{file} does not exist: restart the sandbox with `caphv sandbox up`"
        )
    click.echo(str(file) if path else file.read_text(), nl=path)


@sandbox.command(
    short_help="Stop a sandbox and remove its directory.",
    epilog="""\b
Examples:
  caphv sandbox down
  caphv sandbox down --name second
""",
)
@sandbox_options
def down(name: str | None, folder: Path | None) -> None:
    """Stop all processes of a sandbox, whatever its state, and remove its directory."""
    box = named_sandbox(name, folder)
    with failures():
        removed = asyncio.run(box.down())
    click.echo(
        f"Sandbox {box.folder.name} {'removed' if removed else 'does not exist'}: {box.folder}"
    )


@sandbox.command(
    short_help="Restart a part of a sandbox.",
    epilog="""\b
Examples:
  caphv sandbox restart provider
  caphv sandbox restart simulator --name second
""",
)
@sandbox_options
@click.argument("part")
def restart(name: str | None, folder: Path | None, part: str) -> None:
    """Restart PART of a sandbox; its data stays.

    PART is etcd, management, harvester, core, simulator or provider.
    """
    box = running_sandbox(name, folder)
    with failures():
        asyncio.run(box.restart(part))
    click.echo(f"Restarted {part}")


@sandbox.command(
    short_help="Print the log of a part of a sandbox.",
    epilog="""\b
Examples:
  caphv sandbox logs provider
  caphv sandbox logs core --tail 20
  caphv sandbox logs provider --follow
""",
)
@sandbox_options
@click.option(
    "--tail",
    type=click.IntRange(0),
    metavar="LINES",
    help="Print only this many lines from the end.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until interrupted.")
@click.argument("part")
def logs(
    name: str | None, folder: Path | None, part: str, *, tail: int | None, follow: bool
) -> None:
    """Print the log of PART of a sandbox.

    PART is etcd, management, harvester, core, simulator or provider.
    """
    with failures():
        file = running_sandbox(name, folder).log(part)
    with file.open(encoding="utf-8", errors="replace") as log:
        lines = log.readlines() if tail is None else collections.deque(log, maxlen=tail)
        click.echo("".join(lines), nl=False)
        while follow:
            click.echo(log.read(), nl=False)
            time.sleep(_FOLLOW_SECONDS)


def _print_table(state: Mapping[str, Any]) -> None:
    names = [part["name"] for part in (*state.get("servers", ()), *state.get("processes", ()))]
    width = max(map(len, ("live page", *names)))
    click.echo(f"{state['name']}: {state['status']}")
    click.echo(f"  {'folder':<{width}}  {state['folder']}")
    if state["status"] == "absent":
        click.echo(state["remedy"])
        return

    click.echo(f"  {'created':<{width}}  {state['created']}")
    click.echo(f"  {'network':<{width}}  {state['network']}")
    for server in state["servers"]:
        click.echo(f"  {server['name']:<{width}}  {server['url']}  {server['kubeconfig']}")
    if "page" in state:
        click.echo(f"  {'live page':<{width}}  {state['page']}")
    for part in state["processes"]:
        click.echo(
            f"  {part['name']:<{width}}  pid {part['pid']:<8} "
            f"{'running' if part['running'] else 'not running'}"
        )
    if state["remedy"]:
        click.echo(state["remedy"])


def _remedy(state: Mapping[str, Any], name: str | None, folder: Path | None) -> str:
    """Say what to do about a sandbox that is not running; empty if it is running."""
    options = selecting_options(name, folder)
    if state["status"] == "running":
        return ""
    if state["status"] == "absent":
        return f"To start it: caphv sandbox up{options}"
    missing = [part["name"] for part in state["processes"] if not part["running"]]
    if not missing:
        return (
            "It is still starting, or its start was interrupted. To wait for it or to complete it: "
            f"caphv sandbox up{options}"
        )
    return (
        f"To restart {', '.join(missing)} and keep all clusters: caphv sandbox up{options}\n"
        f"To see why it stopped: caphv sandbox logs {missing[0]}{options}"
    )


sandbox.add_command(demo)
sandbox.add_command(fault)
