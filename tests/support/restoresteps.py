"""Steps of a restore of etcd on the servers of a cluster with three of them."""

from __future__ import annotations

from caphv.api.object import Key, Obj
from operations.change.clusterparts import cluster_and_parts
from operations.change.etcddistribution import Distribution, distribution_of
from operations.change.etcdsteps import Step, steps
from tests.support.clusters import Builder
from tests.support.restoreguest import AUTHORITY, RestoreGuest

NAME = "etcd-snapshot-cp-2-12"
ID = "0123abcd"
RKE2: Obj = {"spec": {}}


def three() -> Builder:
    return Builder(control_planes=3, workers=1)


def distribution(kind: str = "RKE2ControlPlane", control_plane: Obj | None = RKE2) -> Distribution:
    return distribution_of({"spec": {"controlPlaneRef": {"kind": kind}}}, control_plane)


def plan(
    builder: Builder,
    machine: str = "cp-2",
    snapshot: str = NAME,
    *,
    s3: bool = True,
    kind: str = "RKE2ControlPlane",
    control_plane: Obj | None = RKE2,
    identity: str = ID,
    authority: str = AUTHORITY,
    checks: bool = False,
) -> tuple[Step, ...]:
    _, _, cluster = cluster_and_parts(builder.objects(), Key("team", "shop"))
    users = {"cp-2": "sles", "cp-3": "-oProxyCommand=x"}
    result = steps(
        cluster,
        distribution(kind, control_plane),
        snapshot,
        machine,
        users,
        identity=identity,
        s3=s3,
        authority=authority,
    )
    return tuple(step for step in result if step.is_check is checks)


def steps_on(guest: RestoreGuest, **changes: str) -> tuple[Step, Step, Step, Step]:
    """Return the steps of the restored server, then those of another one: stop, restore; stop, join."""
    result = plan(three(), control_plane=guest.control_plane, **changes)
    return result[0], result[3], result[1], result[4]
