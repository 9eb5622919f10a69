"""`caphv sandbox demo`: show the lifecycle of a cluster live."""

import asyncio
import contextlib
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api.object import at
from commands.main import CONTEXT_SETTINGS
from commands.sandbox.common import BOOT_SECONDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sandbox.scenario.lifecycle import Scenario
    from sandbox.scenario.view import MachineRow, Step

_MARKS = {True: "✗", False: "✓"}


@click.command(
    short_help="Show the lifecycle of a cluster.",
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv sandbox demo
  caphv sandbox demo --keep          then explore with kubectl
  caphv sandbox demo | cat           plain lines, for a log
""",
)
@click.option("--keep", is_flag=True, help="Keep the sandbox running at the end, for kubectl.")
@BOOT_SECONDS
def demo(*, keep: bool, boot_seconds: float) -> None:
    """Create a cluster on a simulated Harvester, break it, scale it, upgrade it and delete it.

    The demo starts its own sandbox with the real Cluster API core and the provider, and pushes a
    ClusterDefinition to a Git repository. The definition becomes add-on bundles and a Cluster of
    the ClusterClass harvester-rke2: three control plane machines and two workers with two disks
    each, in three zones, with addresses from two pools.

    Then a changed MTU becomes one small commit; the VMs of a worker and of a control plane machine
    are deleted and replaced; workers and control plane are scaled; a new Kubernetes version is
    rolled out; the cluster is deleted, and Harvester is searched for leftovers. The exit status is
    1 if any step fails.
    """
    from commands.sandbox.common import build_report, failures, print_part
    from sandbox.capi import core
    from sandbox.environment import Sandbox
    from sandbox.processes import binaries
    from sandbox.state import SandboxSettings

    with failures(), build_report() as report:
        binaries.prepare(report, core=core.program())

    # Unix sockets below the folder limit the length of its path.
    folder = Path(tempfile.mkdtemp(prefix="caphv-demo-"))
    box = Sandbox(folder, SandboxSettings(boot_seconds=boot_seconds, page=True))
    click.echo(f"Starting a sandbox in {folder}")
    started = time.monotonic()
    summary = ""
    try:
        with failures():
            summary = asyncio.run(_demo(box, print_part, keep=keep))
    finally:
        # Without a folder, the demo was interrupted and has removed its sandbox.
        if not summary and folder.exists():
            click.echo(
                f"FAILED after {time.monotonic() - started:.0f} s; logs are in {folder}. "
                "To remove it:"
            )
            click.echo(f"  caphv sandbox down --dir {shlex.quote(str(folder))}")
    if not summary:
        sys.exit(1)

    click.echo(summary.replace("SECONDS", f"{time.monotonic() - started:.0f} s"))
    if keep:
        # Each command fits into 80 columns.
        kubeconfig = shlex.quote(str(box.kubeconfig("management")))
        click.echo(f"  export KUBECONFIG={kubeconfig}")
        click.echo(f"  caphv sandbox down --dir {shlex.quote(str(folder))}")


async def _demo(box: Any, progress: Any, *, keep: bool) -> str:
    """Run the scenario; return its summary, empty on failure."""
    from sandbox.cluster import ClusterSpec
    from sandbox.scenario.lifecycle import Scenario, ScenarioError, in_network

    failed = False
    try:
        await box.up(progress)
        click.echo(f"Live page: {box.page()}")
        spec = in_network(ClusterSpec(), box.status()["network"])
        scenario = Scenario(box.folder, spec)
        with _showing(scenario):
            try:
                async with scenario.watching():
                    await scenario.run()
            except ScenarioError:
                failed = True
        return "" if failed else _summary(scenario)
    except Exception:
        failed = True
        raise
    finally:
        # The sandbox of a failed demo stays, because its logs say why it failed.
        if not keep and not failed:
            await box.down()


def _summary(scenario: "Scenario") -> str:
    counted = len([step for step in scenario.view.steps if not step.failed])
    return (
        f"OK: {counted} of {len(scenario.view.steps)} steps in SECONDS\n"
        "Created from a definition in Git, lost machines replaced, scaled, upgraded, deleted.\n"
        "Nothing is left on Harvester."
    )


@contextlib.contextmanager
def _showing(scenario: "Scenario") -> Iterator[None]:
    """Show a live tree on a terminal, otherwise print a line per change."""
    if not sys.stdout.isatty():
        with _lines(scenario):
            yield
        return
    from rich.console import Console
    from rich.live import Live

    # Completed steps scroll away, so that the current state fits into a small window.
    console = Console(highlight=False)
    with Live(
        get_renderable=lambda: tree(scenario),
        console=console,
        refresh_per_second=8,
        transient=True,
    ) as live:
        printed: list[Step] = []

        def print_steps() -> None:
            """Print the steps that have ended since the last call."""
            ended = [step for step in scenario.view.steps if step.seconds is not None]
            for step in ended[len(printed) :]:
                if step.failed:
                    live.console.print(tree(scenario))
                live.console.print(
                    _step_line(step), style="red" if step.failed else "green", markup=False
                )
                printed.append(step)

        scenario.on_change = print_steps
        yield


@contextlib.contextmanager
def _lines(scenario: "Scenario") -> Iterator[None]:
    """Print a line for each change of a step or machine."""
    seen: dict[str, str] = {}
    machines: set[str] = set()

    def print_changes() -> None:
        for step in scenario.view.steps:
            _print_change(seen, step.title, _step_line(step))
        lines = dict(_machine_lines(scenario))
        for name, line in lines.items():
            _print_change(seen, name, line)
        for name in machines - lines.keys():
            _print_change(seen, name, f"    {name}: deleted")
        machines.update(lines)

    scenario.on_change = print_changes
    yield
    # The last change may have come after the last call.
    print_changes()


def _print_change(seen: dict[str, str], key: str, line: str) -> None:
    if seen.get(key) != line:
        seen[key] = line
        click.echo(line)


def _step_line(step: "Step") -> str:
    if step.seconds is None:
        return f"▸ {step.title}"
    return f"{_MARKS[step.failed]} {step.title} ({step.seconds:.1f} s): {step.outcome}"


def _machine_lines(scenario: "Scenario") -> Iterator[tuple[str, str]]:
    for row in scenario.view.machine_rows():
        role = "control plane" if row.control_plane else "worker"
        facts = " ".join(
            fact for fact in (role, row.version, row.address, row.zone, row.host) if fact
        )
        yield row.name, f"    {row.name}: {row.state} ({facts})"


def tree(scenario: "Scenario") -> "RenderableType":
    """Return the cluster as a tree that fits into 80 columns, with the running step below it."""
    from rich.console import Group
    from rich.spinner import Spinner
    from rich.tree import Tree

    from commands.output.text import Text

    root = Tree(Text(f"Cluster {scenario.spec.namespace}/{scenario.spec.name}", style="bold"))
    infrastructure = scenario.view.harvester_cluster()
    if infrastructure:
        ready = bool(at(infrastructure, "status", "ready"))
        endpoint = scenario.view.endpoint() or "no control plane endpoint yet"
        root.add(Text(f"HarvesterCluster  {endpoint}", style="green" if ready else "yellow"))

    rows = scenario.view.machine_rows()
    for title, control_plane in (("Control plane", True), ("Workers", False)):
        group = [row for row in rows if row.control_plane is control_plane]
        if group:
            root.add(title).add(_table(group))
    return Group(
        root,
        *(Spinner("dots", text=step.title) for step in scenario.view.steps if step.seconds is None),
    )


def _table(rows: "Sequence[MachineRow]") -> "RenderableType":
    """Return a table of machines."""
    from rich.table import Table

    from commands.output.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(6):
        table.add_column(no_wrap=True, overflow="ellipsis")
    for row in rows:
        style = "yellow"
        if row.state == "Running":
            style = "green"
        elif "deleted" in row.state or "Fail" in row.state:
            style = "red"
        # The distribution's suffix, as in v1.36.3+rke2r1, is the same for all machines.
        version = row.version.partition("+")[0]
        table.add_row(
            row.name, version, row.address, row.zone, row.host, Text(row.state, style=style)
        )
    return table
