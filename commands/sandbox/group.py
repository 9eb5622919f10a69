"""`caphv sandbox`: start, inspect and remove a sandbox on this machine."""

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
    """Run real API servers and a simulated Harvester on this machine.

    A sandbox runs etcd, a management API server with the real Cluster API core, and an API server that simulates
    Harvester, as plain processes on loopback addresses. It needs no containers and no root, and writes to one folder
    only. Several sandboxes can run side by side under different names.
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
@click.option("--provider/--no-provider", default=True, show_default=True, help="Also run the provider.")
@click.option("--webhooks/--no-webhooks", default=False, help="Have the provider serve its admission webhooks.")
@click.option("--audit/--no-audit", default=False, help="Write audit logs with one line per request.")
@click.option(
    "--boot-seconds", type=click.FloatRange(0), default=2.0, show_default=True, help="Boot time of a virtual machine."
)
@click.option(
    "--boot-spread",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Variation of boot times, as a fraction.",
)
@click.option(
    "--register-seconds",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Time from the end of the boot until the Node registers.",
)
def up(name: str | None, folder: Path | None, **settings: Any) -> None:
    """Start a sandbox in the background.

    The first start builds etcd, kube-apiserver and the Cluster API core from their Go modules, unless they are on PATH
    or in the folder KUBEBUILDER_ASSETS. This takes about ten minutes on two cores; later starts take about ten seconds.
    Leftovers of a killed sandbox are removed first; a running sandbox is left unchanged.
    """
    from sandbox.environment import Settings
    from sandbox.processes import binaries

    box = named_sandbox(name, folder, Settings(**settings))
    with failures():
        with build_report() as report:
            binaries.prepare(report)
        started = asyncio.run(box.up(print_part))
    click.echo(f"Sandbox {box.folder.name} {'is up' if started else 'is already running'}: {box.folder}")
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
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def status(name: str | None, folder: Path | None, output: str) -> None:
    """Show the parts of a sandbox. The exit status is 1 unless all of them are running."""
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
@click.option("--path", is_flag=True, help="Print the path of the file instead of its content.")
@click.argument("server", type=click.Choice(_SERVERS), default=_SERVERS[0])
def kubeconfig(name: str | None, folder: Path | None, *, path: bool, server: str) -> None:
    """Print the administrator's kubeconfig of an API server: management (default) or harvester.

    With identity, print a kubeconfig for the identity Secret of a cluster. It connects to Harvester through the fault
    proxy, so that the transport faults of `caphv sandbox fault` affect the cluster.
    """
    box = running_sandbox(name, folder)
    file = box.kubeconfig(server)
    if not file.exists():
        raise click.ClickException(f"{file} does not exist: restart the sandbox with `caphv sandbox up`")
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
    """Stop all processes of a sandbox and remove its folder, in any state."""
    box = named_sandbox(name, folder)
    with failures():
        removed = asyncio.run(box.down())
    click.echo(f"Sandbox {box.folder.name} {'removed' if removed else 'does not exist'}: {box.folder}")


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
