"""Options that select clusters, how they are read, and progress output."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caphv.api.plaintext import one_line
from commands.options.completion import complete_namespaces
from commands.output.echo import echo

if TYPE_CHECKING:
    from packager.addons.settings import ClusterFacts
    from packager.inputs import Input

_Command = TypeVar("_Command", bound=Callable[..., Any])
Step = Callable[[str], None]
"""Called with a description of the current step."""

_QUIET_SECONDS = 5.0


class CommandError(click.ClickException):
    """A command failed: exit status 1. Each line of the message may quote files, objects and servers.

    What they say has no line of its own, nor anything that a terminal could obey.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(map(one_line, lines)))


class InputError(CommandError):
    """An input file, server or repository cannot be read: exit status 2."""

    exit_code = 2


def cluster_options(command: _Command) -> _Command:
    """Add the options for the source and the selection of clusters."""
    for add in (
        click.option(
            "-l", "--selector", default="", metavar="LABELS", help="Label selector for clusters, e.g. a=b,c!=d."
        ),
        click.option(
            "-n",
            "--namespace",
            default="",
            shell_complete=complete_namespaces,
            help="Namespace of the clusters.  [default: all]",
        ),
        click.option("--context", default="", help="Context in the kubeconfig."),
        click.option("--kubeconfig", default="", help="Kubeconfig of the management cluster."),
        click.argument("paths", metavar="[FILE|FOLDER|-]...", nargs=-1, type=click.Path(allow_dash=True)),
    ):
        command = add(command)
    return command


@dataclass(frozen=True)
class SelectedClusters:
    """The selected clusters; `selected` is set if a label selector applied, so there may be others."""

    input: Input
    namespace: str
    selected: bool

    @property
    def clusters(self) -> tuple[ClusterFacts, ...]:
        """Facts about the clusters, by namespace and name."""
        return self.input.clusters


def read_clusters(flags: dict[str, Any], step: Step) -> SelectedClusters:
    """Read the clusters selected by `cluster_options`, from files or else from the management cluster.

    Raises InputError if the management cluster cannot be read; problems in files are part of the result.
    """
    from packager.addons.gather import labels_of_cluster
    from packager.inputs import read_files

    paths, namespace = flags["paths"], flags["namespace"]
    if paths and (flags["kubeconfig"] or flags["context"]):
        raise click.UsageError("give either files or a management cluster, not both")
    chosen = _selector(flags["selector"])
    if paths:
        step("reading files")
        found = read_files(paths, sys.stdin.buffer)
    else:
        step("reading the management cluster")
        found = _live(flags["kubeconfig"], flags["context"], namespace)
    clusters = tuple(
        facts for facts in found.clusters if namespace in ("", facts.key.namespace) and chosen(labels_of_cluster(facts))
    )
    return SelectedClusters(replace(found, clusters=clusters), namespace, bool(flags["selector"]))


def _selector(text: str) -> Callable[[Any], bool]:
    from packager.selector import selector

    if not text:
        return lambda _labels: True
    try:
        return selector(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--selector") from None


def _live(kubeconfig: str, context: str, namespace: str) -> Input:
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from packager import cluster_reader
    from packager.cluster_objects import facts_of
    from packager.inputs import Input

    async def read() -> Input:
        client = ApiClient(await own_configuration(kubeconfig, context), name="management")
        try:
            return Input(tuple(facts_of(await cluster_reader.objects(client, namespace))))
        finally:
            await client.close()

    try:
        return asyncio.run(read())
    except (KubeconfigError, ApiError, Unreachable) as error:
        hint = "" if kubeconfig or context else "; alternatively, give files or folders with clusters"
        raise InputError(f"cannot read the management cluster: {error}{hint}") from None


@contextlib.contextmanager
def progress() -> Iterator[Step]:
    """Show the current step: a spinner on a terminal, otherwise a line when it takes long."""
    if not sys.stderr.isatty():
        reported = time.monotonic()

        def report(text: str) -> None:
            nonlocal reported
            if time.monotonic() - reported > _QUIET_SECONDS:
                reported = time.monotonic()
                echo(f"{text} …", err=True)

        yield report
        return
    from rich.console import Console

    from commands.output.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(Text(f"{text} …"))
