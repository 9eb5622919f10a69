"""Read the clusters that options select, from files or the management cluster."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from commands.errors import InputError
from commands.options.clusters import ClusterOptions
from commands.output.progress import Step

if TYPE_CHECKING:
    from packager.addons.facts import ClusterFacts
    from packager.addons.inputs import Input


@dataclass(frozen=True)
class SelectedClusters:
    """The selected clusters; with `has_selector`, a label selector may have left out others."""

    input: Input
    namespace: str
    has_selector: bool

    @property
    def clusters(self) -> tuple[ClusterFacts, ...]:
        """Facts about the clusters, by namespace and name."""
        return self.input.clusters


def read_clusters(options: ClusterOptions, step: Step) -> SelectedClusters:
    """Read the clusters of `cluster_options`, from files or else from the management cluster.

    Raises `InputError` if the management cluster cannot be read; problems in files are part of the
    result.
    """
    from packager.addons.facts import labels_of_cluster
    from packager.addons.inputs import read_files

    paths = options.paths
    namespace = options.namespace
    if paths and (options.kubeconfig or options.context):
        raise click.UsageError("give either files or a management cluster, not both")
    chosen = _selector(options.selector)

    if paths:
        step("reading files")
        source = read_files(paths, sys.stdin.buffer)
    else:
        step("reading the management cluster")
        source = _live(options.kubeconfig, options.context, namespace)

    clusters = tuple(
        facts
        for facts in source.clusters
        if namespace in ("", facts.key.namespace) and chosen(labels_of_cluster(facts))
    )
    return SelectedClusters(replace(source, clusters=clusters), namespace, bool(options.selector))


def _selector(text: str) -> Callable[[Any], bool]:
    from packager.addons.selector import selector

    if not text:
        return lambda _labels: True
    try:
        return selector(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--selector") from None


def _live(kubeconfig: str, context: str, namespace: str) -> Input:
    """Read the clusters of a management cluster. Raises `InputError`."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from packager.addons import cluster_reader
    from packager.addons.cluster_objects import facts_of
    from packager.addons.inputs import Input

    async def read() -> Input:
        client = ApiClient(await own_configuration(kubeconfig, context), name="management")
        try:
            return Input(tuple(facts_of(await cluster_reader.objects(client, namespace))))
        finally:
            await client.close()

    try:
        return asyncio.run(read())
    except (KubeconfigError, RequestError) as error:
        hint = "; alternatively, give files or folders with clusters"
        if kubeconfig or context:
            hint = ""
        raise InputError(f"cannot read the management cluster: {error}{hint}") from None
