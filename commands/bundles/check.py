"""`caphv bundles check`: what bundles would install, with the real charts."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.bundles.common import DIFFERENT, DONE, UNREADABLE, bundler_of, output, render_options
from commands.options.charts import DEFAULT
from commands.options.clusters import InputError, cluster_options, progress, read_clusters
from commands.options.repository import names_repository, open_store, repository_options

if TYPE_CHECKING:
    from packager.checks.check import Checker
    from packager.git.snapshot import Snapshot
    from packager.tree import Tree

_THREADS = 4


def charts_options(command: Any) -> Any:
    """Add the options for charts and for the program that renders them."""
    for add in (
        click.option(
            "--helm",
            "program",
            envvar="CAPHV_HELM",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Program helm.  [default: from PATH, else the sandbox's]",
        ),
        click.option(
            "--fetch", is_flag=True, help="Pull charts from where the bundles name them; implied by --chart-repo."
        ),
        click.option(
            "--charts",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder with charts: <name>/Chart.yaml or <name>-<version>.tgz.",
        ),
    ):
        command = add(command)
    return command


@click.command(
    short_help="Render the charts, and find what clusters would reject.",
    epilog="""\b
Examples:
  caphv bundles check clusters/                                   manifests only: no chart is needed
  caphv bundles check clusters/ --charts charts/                  with charts from a folder
  caphv bundles check clusters/ --fetch --repo https://git.example.com/fleet.git
                                       with charts from their repositories, against what the repository holds
  caphv bundles check clusters/ --chart-repo https://charts.example.com -o json
                                       with charts of a mirror

\b
Exit status: 0 no errors, 1 errors, or clusters that cannot be rendered, 2 unreadable input, wrong usage, or no helm.
""",
)
@cluster_options
@render_options
@repository_options
@charts_options
@output("table", "json", "yaml")
def check(**flags: Any) -> None:
    """Check what the bundles of clusters would install, with charts rendered by helm.

    Reports values that a chart does not know, kinds that the distribution does not serve, references to objects that
    do not exist, and, with --repo or --folder, changes of immutable fields against what the repository holds.
    """
    from commands.output import bundles as out
    from commands.output.checks import CHECKED

    with progress() as step:
        given = read_clusters(flags, step)
        bundler = bundler_of(flags, step)
        with contextlib.ExitStack() as stack:
            snapshot = stack.enter_context(open_store(flags)).sync() if names_repository(flags) else None
            batch = bundler.render(given.clusters, snapshot.tree if snapshot else {})
            checker = stack.enter_context(open_checker(flags))
            jobs = [
                (dict(one.tree), one.settings, _before(snapshot, str(one.cluster))) for one in batch.rendered if one.ok
            ]
            step(f"checking {len(jobs)} clusters")
            with ThreadPoolExecutor(_THREADS) as pool:
                found = list(pool.map(lambda job: checker.check(*job), jobs))
    click.echo(CHECKED[flags["output"]](found), nl=False, color=out.colour())
    for line in out.problems(given, batch):
        click.echo(f"caphv bundles: {line}", err=True)
    failed = batch.failed or any(not located.finding.advice for one in found for located in one.findings)
    sys.exit(UNREADABLE if given.input.unreadable else DIFFERENT if failed else DONE)


@contextlib.contextmanager
def open_checker(flags: dict[str, Any]) -> Iterator[Checker]:
    """Yield a checker with the charts of `charts_options`; what it pulls is removed afterwards."""
    from packager.checks.charts import Charts
    from packager.checks.check import Checker
    from packager.checks.helm import Helm

    download = bool(flags["fetch"] or flags["chart_repo"] not in ("", DEFAULT))
    if not (flags["charts"] or download):
        yield Checker(None, None)
        return
    with tempfile.TemporaryDirectory(prefix="caphv-charts-") as scratch:
        helm = Helm(program(flags["program"]), Path(scratch))
        yield Checker(helm, Charts(helm, flags["charts"], download=download))


def program(given: Path | None) -> Path:
    """Return the program `helm`: the given one, else that of PATH, else one that the sandbox built.

    Raises InputError.
    """
    from sandbox.processes.binaries import cache_folder

    if found := given or shutil.which("helm"):
        return Path(found)
    if built := sorted((cache_folder() / "bin").glob("helm-*")):
        return built[-1]
    raise InputError("there is no helm: install it (https://helm.sh), or name the program with --helm")


def _before(snapshot: Snapshot | None, cluster: str) -> Tree:
    from packager.tree import CLUSTERS

    folder = f"{CLUSTERS}/{cluster}"
    paths = [f"{folder}/{path}" for path, entry in snapshot.files(folder).items() if entry.is_file] if snapshot else []
    return {path: snapshot.read(path) or b"" for path in paths} if snapshot else {}
