"""Manifests in the repository that a user has edited: whatever a field holds, clusters can be built."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts
from packager.addons.settings import settings_of
from packager.definitions import dropped, kubevip, started
from packager.definitions.files import released_files
from packager.definitions.manifest import parse_manifest
from packager.definitions.nodeconfig import NodeConfig, keep_files
from packager.definitions.protection import protect
from tests.support.edits import edited_objects
from tests.support.packager.definitions import built, definition, k3s, kubeadm

pytestmark = pytest.mark.unit

FACTS = ClusterFacts({"metadata": {"name": "production", "namespace": "team-a"}})
SETTINGS = settings_of(FACTS).settings
assert SETTINGS
KUBE_VIP = {"ipamType": "none", "endpoint": {"host": "172.16.0.5"}, "kubeVip": {}}


@pytest.mark.parametrize("individual", [True, False], ids=["individual", "class"])
@pytest.mark.parametrize("make", [definition, k3s, kubeadm])
def test_any_field_of_an_existing_object_may_hold_anything(make: Callable[..., Obj], individual: bool) -> None:
    snapshots = {"etcdSnapshots": {"retention": 3}} if make is not kubeadm else {}
    objects = built(make(individualObjects=individual, loadBalancer=KUBE_VIP, **snapshots)).objects
    for index, obj in enumerate(objects):
        for changed in edited_objects(obj):
            existing = [*objects[:index], changed, *objects[index + 1 :]]
            keep_files(NodeConfig(), existing, objects)
            started.check_changes(existing, objects)
            list(started.check_cni(existing, FACTS, SETTINGS))
            list(kubevip.check_change(existing, objects))
            dropped.staying_pools(existing, objects[:1], "team-a")
            dropped.empty_pools(existing, objects[:1], "team-a")
            protect([changed])
            released_files([changed], "team-a")


def test_values_that_json_does_not_have_are_read_as_an_api_server_reads_them() -> None:
    text = b"kind: Cluster\nmetadata: {name: a}\nspec: {7: 2026-01-01, true: .inf, b: !!binary aGk=}\n"
    (obj,) = parse_manifest(text)
    assert obj["spec"]["7"] == "2026-01-01"
    content = released_files([obj], "team-a")["cluster/cluster.yaml"]
    assert parse_manifest(content) == [obj]
