"""`caphv bundles check`: what bundles would install, with the real charts."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.bundles.common import (
    BundleOptions,
    exit_status,
    render_options,
    rendered_clusters,
)
from commands.errors import InputError
from commands.options.charts import DEFAULT
from commands.options.clusters import cluster_options
from commands.options.formats import output_option
from commands.options.groups import fill, with_options
from commands.options.repository import repository_options
from commands.output.progress import progress

if TYPE_CHECKING:
    from packager.checks.check import Checker
    from packager.git.snapshot import Snapshot
    from packager.tree import Tree

_THREADS = 4


@dataclass(frozen=True, kw_only=True)
class CheckOptions(BundleOptions):
    """Options of a command that renders charts, of `charts_options`."""

    charts: Path | None
    fetch: bool
    program: Path | None


def charts_options(command: Any) -> Any:
    """Add the options for charts and for the program that renders them."""
    return with_options(
        command,
        click.option(
            "--helm",
            "program",
            envvar="CAPHV_HELM",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Path of helm.  [default: from PATH, else the sandbox's]",
        ),
        click.option(
            "--fetch",
            is_flag=True,
            help=(
                "Pull the charts from the repositories that the bundles name; implied by "
                "--chart-repo."
            ),
        ),
        click.option(
            "--charts",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Directory with charts: NAME/Chart.yaml or NAME-VERSION.tgz.",
        ),
    )


@click.command(
    short_help="Render the charts, and find what clusters would reject.",
    epilog="""\b
Examples:
  caphv bundles check clusters/                                   only manifests, without charts
  caphv bundles check clusters/ --charts charts/                  with charts from a directory
  caphv bundles check clusters/ --fetch --repo https://git.example.com/fleet.git
                                       with charts from their repositories, compared with a \
Git repository
  caphv bundles check clusters/ --chart-repo https://charts.example.com -o json
                                       with charts from a mirror

Exit status: 0 no errors, 1 errors, or clusters that cannot be rendered, 2 usage error, unreadable
input, or no helm.
""",
)
@cluster_options
@render_options
@repository_options
@charts_options
@output_option()
@fill(options=CheckOptions)
def check(options: CheckOptions) -> None:
    """Check what the bundles of clusters would install, with charts rendered by helm.

    The command reports values that a chart does not know, kinds that the distribution does not
    serve, and references to objects that do not exist. With --repo or --folder, it also reports
    changes of immutable fields against the repository.
    """
    from commands.output import bundles as out
    from commands.output.bundle_checks import CHECKED

    with (
        progress() as step,
        rendered_clusters(options, step) as (selected, batch, snapshot),
        open_checker(options) as checker,
    ):
        jobs = [
            (dict(result.tree), result.settings, _before(snapshot, str(result.cluster)))
            for result in batch.rendered
            if result.ok
        ]
        step(f"checking {len(jobs)} clusters")
        with ThreadPoolExecutor(_THREADS) as pool:
            results = list(pool.map(lambda job: checker.check(*job), jobs))
    click.echo(CHECKED[options.output](results), nl=False, color=out.colour())
    for line in out.problems(selected, batch):
        click.echo(f"caphv bundles: {line}", err=True)

    failed = batch.failed or any(
        not located.finding.advice for result in results for located in result.findings
    )
    sys.exit(exit_status(selected, is_different=bool(failed)))


@contextlib.contextmanager
def open_checker(options: CheckOptions) -> Iterator[Checker]:
    """Yield a checker with the charts of `charts_options`; pulled charts are removed afterwards."""
    from packager.checks.charts import Charts
    from packager.checks.check import Checker
    from packager.checks.helm import Helm

    download = bool(options.fetch or options.chart_repo not in ("", DEFAULT))
    if not (options.charts or download):
        yield Checker(None, None)
        return
    with tempfile.TemporaryDirectory(prefix="caphv-charts-") as scratch:
        helm = Helm(program(options.program), Path(scratch))
        yield Checker(helm, Charts(helm, options.charts, download=download))


def program(named: Path | None) -> Path:
    """Return the program `helm` that the user named, else from PATH, else from the sandbox.

    Raises `InputError`.
    """
    from sandbox.processes.binaries import cache_folder

    if path := named or shutil.which("helm"):
        return Path(path)
    if builds := sorted((cache_folder() / "bin").glob("helm-*")):
        return builds[-1]
    raise InputError(
        "there is no helm: install it (https://helm.sh), or name the program with --helm"
    )


def _before(snapshot: Snapshot | None, cluster: str) -> Tree:
    """Return the files of a cluster in the repository; none without a repository."""
    from packager.tree import CLUSTERS

    if snapshot is None:
        return {}
    folder = f"{CLUSTERS}/{cluster}"
    paths = [f"{folder}/{path}" for path, entry in snapshot.files(folder).items() if entry.is_file]
    return {path: snapshot.read(path) or b"" for path in paths}
