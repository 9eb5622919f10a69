"""Check for bootstrap settings that RKE2's provider cannot use, which only its log reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from caphv.api import rke2
from caphv.api.object import Key, Obj, key_of
from operations.status.check import Check, Result
from operations.status.model import Cluster


def checks(clusters: Iterable[Cluster], control_planes: Mapping[Key, Obj]) -> Iterator[Check]:
    """Yield the checks of clusters, with their control plane objects by key of the Cluster."""
    for cluster in clusters:
        control_plane = control_planes.get(cluster.key, {})
        if control_plane.get("kind") not in rke2.KINDS:
            continue
        kind = control_plane["kind"]
        name = key_of(control_plane).name
        remedy = f"Correct it in the topology's variables, or in {kind} {name}"

        # A cluster works without a setting that is lost. With a setting that is refused, no Node is
        # created.
        for problem in rke2.problems(control_plane.get("spec") or {}, cluster.version):
            result = Result.WARNING if problem.lost else Result.ERROR
            message = f"spec.{'.'.join(problem.path)}: {problem.detail}"
            yield Check(
                "bootstrap", f"Cluster {cluster.key}", result, message=message, remedy=remedy
            )
