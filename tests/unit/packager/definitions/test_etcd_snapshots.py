"""Snapshots of etcd in a definition: the same with a ClusterClass and without, and when servers are replaced."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from caphv.clusterclass.templates import Part, apply_patches, variables_of
from packager.definitions.build import build
from packager.definitions.etcdsnapshots import k3s_commands, rke2_etcd, server_files
from tests.support.clusterclasses import objects, templates
from tests.support.packager.definitions import RENDERER, built, definition, k3s, one, variables

pytestmark = pytest.mark.unit

DEMO = Key("team", "demo")
S3 = {
    "endpoint": "s3.example.com",
    "bucket": "etcd",
    "folder": "team-a/production",
    "retention": 84,
    "credentialsSecretName": "etcd-s3",
}
SNAPSHOTS = {"schedule": "0 */6 * * *", "retention": 28, "s3": S3}


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Obj]:
    return st.fixed_dictionaries({}, optional=fields)


STORES = some(
    region=st.just("eu-central-1"),
    retention=st.integers(1, 10_000),
    caSecretName=st.just("ca"),
    insecureSkipVerify=st.booleans(),
).map(lambda fields: {**S3, **fields})
SETTINGS = some(schedule=st.sampled_from(["@daily", "0 */6 * * *"]), retention=st.integers(1, 1000), s3=STORES)


def server_of_the_class(distribution: str, snapshots: Obj) -> Obj:
    name = f"harvester-{distribution}"
    (cluster_class,) = (obj for obj in objects(name) if obj["kind"] == "ClusterClass")
    (template,) = (obj for _, obj in templates(name) if obj["kind"].endswith("ControlPlaneTemplate"))
    values = {"cni": "calico" if distribution == "rke2" else "flannel"}
    if snapshots:
        values["etcdSnapshots"] = snapshots
    topology = {"variables": [{"name": name, "value": value} for name, value in values.items()]}
    cluster = {"metadata": {"name": "demo", "namespace": "team"}, "spec": {"topology": topology}}
    spec = apply_patches(cluster_class, Part("controlPlane", template), variables_of(cluster_class, cluster))
    return spec["kthreesConfigSpec"] if distribution == "k3s" else spec


def parsed(files: Any) -> Any:
    return [file | ({"content": yaml.safe_load(file["content"])} if "content" in file else {}) for file in files]


@given(SETTINGS)
@settings(max_examples=40, deadline=None)
def test_servers_are_configured_as_by_the_class(snapshots: Obj) -> None:
    rke2, k3s_server = server_of_the_class("rke2", snapshots), server_of_the_class("k3s", snapshots)
    assert rke2["serverConfig"].get("etcd", {}) == rke2_etcd(snapshots, DEMO)
    assert parsed(rke2.get("files", ())) == parsed(server_files("rke2", snapshots))
    assert parsed(k3s_server.get("files", ())) == parsed(server_files("k3s", snapshots))
    assert k3s_server.get("preK3sCommands", []) == k3s_commands(snapshots)


def test_snapshots_are_a_variable_of_a_class() -> None:
    result = built(definition(etcdSnapshots=SNAPSHOTS))
    assert variables(result)["etcdSnapshots"] == SNAPSHOTS
    assert "etcdSnapshots" not in variables(built(definition()))
    # The patches of the class add their own files.
    assert not any("etcd" in file["path"] for file in variables(result)["controlPlaneFiles"])


def test_objects_one_by_one_have_the_snapshots() -> None:
    rke2 = one(built(definition(etcdSnapshots=SNAPSHOTS, individualObjects=True)), "RKE2ControlPlane")["spec"]
    assert rke2["serverConfig"]["etcd"]["backupConfig"]["s3"]["s3CredentialSecret"]["namespace"] == "team-a"
    server = one(built(k3s(etcdSnapshots=SNAPSHOTS, individualObjects=True)), "KThreesControlPlane")["spec"]
    assert len(server["kthreesConfigSpec"]["preK3sCommands"]) == 1
    assert "etcd" not in one(built(definition(individualObjects=True)), "RKE2ControlPlane")["spec"]["serverConfig"]


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}])
@pytest.mark.parametrize("snapshots", [SNAPSHOTS, {"schedule": "@daily"}])
def test_files_of_addons_are_refreshed_with_servers_that_are_replaced_anyway(snapshots: Obj, individual: Obj) -> None:
    existing = built(definition(**individual)).objects
    addons = {"cni": {"name": "calico", "mtu": 1400}}
    kept = str(build(definition(**individual, addons=addons), RENDERER, {}, existing).objects)
    assert "mtu: 1450" in kept
    replaced = definition(**individual, addons=addons, etcdSnapshots=snapshots)
    assert "mtu: 1450" not in str(build(replaced, RENDERER, {}, existing).objects)


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}])
@pytest.mark.parametrize("example", [definition, k3s])
def test_snapshots_refresh_the_files_of_servers_because_they_replace_them(example: Any, individual: Obj) -> None:
    def files(result: Any) -> Any:
        (obj,) = (obj for obj in result.objects if obj["kind"].endswith("ControlPlane") or "topology" in obj["spec"])
        if "topology" in obj["spec"]:
            return variables(result)
        return obj["spec"].get("files") or obj["spec"]["kthreesConfigSpec"].get("files")

    existing = built(example(**individual)).objects
    wanted = example(**individual, etcdSnapshots=SNAPSHOTS)
    first = build(wanted, RENDERER, {}, existing)
    assert files(first) == files(built(wanted))
    # Another setting, no change, and none any more.
    other = example(**individual, etcdSnapshots={**SNAPSHOTS, "retention": 7})
    for next_wanted in (other, wanted, example(**individual)):
        assert files(build(next_wanted, RENDERER, {}, first.objects)) == files(built(next_wanted))
