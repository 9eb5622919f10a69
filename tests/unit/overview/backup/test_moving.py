"""What a move deletes on the source."""

from __future__ import annotations

import pytest

from caphv.api.object import Key, Obj
from overview.backup.files import Backup
from overview.backup.graph import belongings
from overview.backup.moving import owned, shared
from tests.support.backup import INFRASTRUCTURE, made, shared_template, whole_cluster

pytestmark = pytest.mark.unit


def backup_of(objs: list[Obj], *names: str) -> Backup:
    chosen = [Key("team", name) for name in names]
    return Backup(clusters=tuple(map(str, chosen)), objects=belongings(chosen, objs).objects)


def two_clusters_with_one_template() -> list[Obj]:
    """Clusters `team/a` and `team/b` that share a template, which owns a further one."""
    a, b = whole_cluster("a"), whole_cluster("b")
    template = shared_template("workers", *a, *b)
    return [*a, *b, template, made(INFRASTRUCTURE, "HarvesterMachineTemplate", "derived", template)]


def test_a_template_that_another_cluster_owns_stays_on_the_source() -> None:
    backup = backup_of(two_clusters_with_one_template(), "a")
    deleted = sorted(str(identity) for identity in owned(backup))
    assert deleted == [
        "Cluster team/a",
        "HarvesterCluster team/a-x7k2p",
        "HarvesterMachine team/a-0",
        "HarvesterMachine team/a-1",
        "Machine team/a-0",
        "Machine team/a-1",
        "MachineHealthCheck team/a-check",
        "RKE2Config team/a-0",
        "RKE2Config team/a-1",
        "RKE2ControlPlane team/a-cp",
        "Secret team/a-0",
        "Secret team/a-1",
        "Secret team/a-kubeconfig",
    ]
    assert [str(identity) for identity in shared(backup)] == ["HarvesterMachineTemplate team/workers"]


def test_a_template_is_deleted_when_all_its_owners_are_moved() -> None:
    backup = backup_of(two_clusters_with_one_template(), "a", "b")
    deleted = {str(identity) for identity in owned(backup)}
    assert {"HarvesterMachineTemplate team/workers", "HarvesterMachineTemplate team/derived"} <= deleted
    assert shared(backup) == []
