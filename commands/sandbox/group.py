"""`caphv sandbox`: start, look at and remove a sandbox on this machine."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from commands.main import CONTEXT_SETTINGS
from commands.sandbox.common import build_report, failures, named_sandbox, print_part, running_sandbox, sandbox_options
from commands.sandbox.demo import demo
from commands.sandbox.fault import fault

NOT_RUNNING = 1
_SERVERS = ("management", "harvester", "identity")


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
    """Real API servers and a simulated Harvester on this machine.

    A sandbox runs etcd, a management API server with the real Cluster API core, and an API server that stands for
    Harvester, as plain processes on loopback addresses: no containers, no root, nothing outside of one folder. Several
    can run side by side under different names.
    """


@sandbox.command(
    epilog="""\b
Examples:
  caphv sandbox up
  caphv sandbox up --name second --boot-seconds 20
  caphv sandbox up --no-provider       then: caphv run --kubeconfig $(caphv sandbox kubeconfig --path)
""",
)
@sandbox_options
@click.option("--provider/--no-provider", default=True, show_default=True, help="Run the provider in it, too.")
@click.option("--webhooks/--no-webhooks", default=False, help="Let that provider serve its admission webhooks.")
@click.option("--audit/--no-audit", default=False, help="Write audit logs: one line a request, with its user.")
@click.option(
    "--boot-seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="How long a virtual machine boots."
)
@click.option(
    "--boot-spread",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Boot times differ by up to this share, in both directions.",
)
@click.option(
    "--register-seconds",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="From the end of the boot until the node is registered.",
)
def up(name: str | None, folder: Path | None, **settings: Any) -> None:
    """Start a sandbox; it goes on in the background.

    The first time, etcd, kube-apiserver and the Cluster API core are built from their Go modules, unless they are on
    PATH or in the folder KUBEBUILDER_ASSETS: some ten minutes on two cores. Starting takes some ten seconds from then
    on. What a killed sandbox left is removed first; a running one is left as it is.
    """
    from sandbox.environment import Settings
    from sandbox.processes import binaries

    box = named_sandbox(name, folder, Settings(**settings))
    with failures():
        with build_report() as report:
            binaries.prepare(report)
        started = asyncio.run(box.up(print_part))
    click.echo(f"Sandbox {box.folder.name} {'is up' if started else 'is running already'}: {box.folder}")
    options = f" --dir {folder}" if folder else f" --name {name}" if name else ""
    click.echo(f"  export KUBECONFIG=$(caphv sandbox kubeconfig{options} --path)")
    click.echo(f"  caphv sandbox down{options}")


@sandbox.command(
    epilog="""\b
Examples:
  caphv sandbox status
  caphv sandbox status -o json | jq -r .network
""",
)
@sandbox_options
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True, help="Format."
)
def status(name: str | None, folder: Path | None, output: str) -> None:
    """Show the parts of a sandbox. Exit status 1 when it is not running, or not as a whole."""
    found = named_sandbox(name, folder).status()
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(found, sort_keys=False), nl=False)
    else:
        _print_table(found)
    if found["status"] != "running":
        sys.exit(NOT_RUNNING)


@sandbox.command(
    short_help="Print the kubeconfig of an API server.",
    epilog="""\b
Examples:
  export KUBECONFIG=$(caphv sandbox kubeconfig --path)
  kubectl --kubeconfig <(caphv sandbox kubeconfig harvester) get vm -A
  kubectl create secret generic harvester --from-file kubeconfig=$(caphv sandbox kubeconfig identity --path)
""",
)
@sandbox_options
@click.option("--path", is_flag=True, help="Print the name of the file, not what is in it.")
@click.argument("server", type=click.Choice(_SERVERS), default=_SERVERS[0])
def kubeconfig(name: str | None, folder: Path | None, *, path: bool, server: str) -> None:
    """Print the administrator's kubeconfig of an API server: management (default) or harvester.

    With identity, print one for the identity Secret of a cluster: it leads to Harvester by way of the fault proxy, so
    that the cluster meets what `caphv sandbox fault` causes.
    """
    box = running_sandbox(name, folder)
    file = box.kubeconfig(server)
    if not file.exists():
        raise click.ClickException(f"{file} is not there: start the sandbox again with `caphv sandbox up`")
    click.echo(str(file) if path else file.read_text(), nl=path)


@sandbox.command(
    short_help="Stop a sandbox and remove its folder.",
    epilog="""\b
Examples:
  caphv sandbox down
  caphv sandbox down --name second
""",
)
@sandbox_options
def down(name: str | None, folder: Path | None) -> None:
    """Stop all processes of a sandbox and remove its folder, whatever state it is in."""
    box = named_sandbox(name, folder)
    with failures():
        removed = asyncio.run(box.down())
    click.echo(f"Sandbox {box.folder.name} {'is removed' if removed else 'was not there'}: {box.folder}")


def _print_table(found: dict[str, Any]) -> None:
    click.echo(f"{found['name']}: {found['status']}")
    click.echo(f"  folder      {found['folder']}")
    if found["status"] == "absent":
        return
    click.echo(f"  created     {found['created']}")
    click.echo(f"  network     {found['network']}")
    for server in found["servers"]:
        click.echo(f"  {server['name']:<11} {server['url']}  {server['kubeconfig']}")
    for part in found["processes"]:
        click.echo(f"  {part['name']:<11} pid {part['pid']:<8} {'running' if part['running'] else 'not running'}")


sandbox.add_command(demo)
sandbox.add_command(fault)
