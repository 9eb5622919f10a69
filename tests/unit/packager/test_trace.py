"""A setting is followed to its object; the first stage that stops it is named, and who reverted it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from packager.git.directory import Directory
from packager.git.history import Change
from packager.git.snapshot import Snapshot
from packager.rendering.bundles import bundle_name
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.rendering.vendored import ROOT, VendoredChart, folder_of
from packager.trace import BranchState, LiveState, Trace, bundles_of, manifests, setting_stage, trace
from packager.tree import CLUSTERS
from tests.support.observed import records
from tests.support.packager.examples import K3S, cluster

pytestmark = pytest.mark.unit
FACTS = cluster("demo", {"cni": {"name": "cilium", "mtu": 1400}}, spec=K3S, namespace="team-a")
NAME = bundle_name(FACTS.key, "cni")
CHART = b"{apiVersion: v2, name: harvester-cloud-provider, version: 0.2.15}\n"
COMMIT = "b" * 40
BRANCH = BranchState(COMMIT)


@pytest.fixture
def rendered() -> Rendered:
    found = Renderer().render_one(FACTS, {})
    assert found.ok
    return found


@pytest.fixture
def snapshot(rendered: Rendered, tmp_path: Path) -> Snapshot:
    for path, content in rendered.tree.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    return Directory(tmp_path, names=(CLUSTERS,)).sync()


def live(rendered: Rendered, **changes: Any) -> LiveState:
    """Fleet and the cluster as they are when all has arrived."""
    objects = {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj
        for obj in manifests(rendered, "cni")
    }
    repo: Obj = {
        "metadata": {"name": "caphv-0"},
        "spec": {"paths": ["clusters/team-a/*/*"]},
        "status": {"commit": COMMIT},
    }
    bundle: Obj = {
        "metadata": {"name": NAME, "generation": 1, "labels": {"fleet.cattle.io/commit": COMMIT}},
        "status": {"observedGeneration": 1, "summary": {"desiredReady": 1, "ready": 1}, "display": {"state": "Active"}},
    }
    status = {"appliedDeploymentID": "1", "ready": True, "nonModified": True, "release": "kube-system/harvester-cni"}
    deployment: Obj = {
        "metadata": {"name": NAME, "namespace": "cluster-x"},
        "spec": {"deploymentID": "1"},
        "status": status,
    }
    found: dict[str, Any] = {
        "git_repos": [repo],
        "bundles": {NAME: bundle},
        "deployments": {NAME: deployment},
        "objects": objects,
    }
    return LiveState(**{**found, **changes})


def stopped(found: Trace) -> tuple[str, str]:
    assert found.stopped, found.stages
    return found.stopped.name, found.stopped.detail


def test_a_setting_that_arrived_stops_nowhere(rendered: Rendered, snapshot: Snapshot) -> None:
    setting = setting_stage(FACTS, ("cni", "mtu"), "demo.yaml:7", None)
    assert (setting.ok, setting.place) == (True, "demo.yaml:7")
    assert setting.detail.startswith("cni.mtu = 1400, from metadata.annotations.addons.caphv.io/values.cni.mtu")
    assert bundles_of(rendered, ("cni", "mtu")) == ["cni"]
    found = trace(rendered, "cni", snapshot, live(rendered), BRANCH)
    assert found.stopped is None
    assert [stage.ok for stage in found.stages] == [True] * len(found.stages)
    names = [stage.name for stage in found.stages]
    assert names == ["rendered", "repository", "GitRepo", "Bundle", "BundleDeployment", "object"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cni.name", "calico"),
        ("cni.podCIDRs", "[10.42.0.0/16]"),
        ("cloudProviderName", "external"),
        ("cloudConfig.secretName", "harvester-cloud-config"),
        ("fleet.importedBy", "caapf"),
        ("cni.mtu", "the default"),
    ],
)
def test_a_default_has_no_origin(setting: str, value: str) -> None:
    found = setting_stage(cluster("demo", {}), tuple(setting.split(".")), "demo.yaml:7", Change("c" * 40))
    assert (found.ok, found.place, found.detail) == (None, setting, f"is not set: {value} applies")


def test_an_object_with_a_default_has_the_origin_of_the_field_that_is_set() -> None:
    found = setting_stage(FACTS, ("cni",), "demo.yaml:7", None)
    assert (found.ok, found.place) == (True, "demo.yaml:7")
    assert "from metadata.annotations.addons.caphv.io/values.cni.mtu" in found.detail


def test_the_line_of_a_definition_is_only_that_of_its_own_settings() -> None:
    network = {"clusterNetwork": {"pods": {"cidrBlocks": ["10.50.0.0/16"]}}}
    found = setting_stage(cluster("demo", {}, spec=network), ("cni", "podCIDRs"), "demo.yaml:7", Change("c" * 40))
    assert (found.place, found.detail) == (
        "spec.clusterNetwork.pods.cidrBlocks",
        "cni.podCIDRs = [10.50.0.0/16]",
    )


def test_what_is_not_pushed_stops_at_the_repository(rendered: Rendered, snapshot: Snapshot) -> None:
    other = Renderer().render_one(cluster("demo", {"cni": {"name": "cilium"}}, spec=K3S, namespace="team-a"), {})
    assert stopped(trace(other, "cni", snapshot, live(other)))[0] == "repository"
    without = trace(rendered, "cni", None, live(rendered)).stages[1]
    assert (without.name, without.ok) == ("repository", None)


def test_fleet_stops_it_in_many_ways(rendered: Rendered, snapshot: Snapshot) -> None:
    repo = live(rendered).git_repos[0]  # type: ignore[index]
    conditions = [{"type": "Stalled", "status": "True", "message": "authentication required"}]
    bundle = live(rendered).bundles[NAME]  # type: ignore[index]
    newer = {**bundle, "metadata": {**bundle["metadata"], "generation": 2}}
    deployment = live(rendered).deployments[NAME]  # type: ignore[index]
    modified = [{"kind": "HelmChart", "name": "rke2-cilium", "patch": "{…}"}]
    for changes, expected in (
        ({"git_repos": []}, ("GitRepo", "none in this namespace")),
        ({"git_repos": [{**repo, "status": {"commit": "old"}}]}, ("GitRepo", "is at commit old, the branch at bbbb")),
        ({"git_repos": [{**repo, "status": {"conditions": conditions}}]}, ("GitRepo", "authentication required")),
        ({"bundles": {}}, ("Bundle", "does not exist")),
        ({"bundles": {NAME: newer}}, ("Bundle", "Fleet has not processed it yet")),
        ({"deployments": {}}, ("BundleDeployment", "no Fleet Cluster matches")),
        ({"deployments": {NAME: {**deployment, "spec": {"deploymentID": "2"}}}}, ("BundleDeployment", "not applied")),
        (
            {"deployments": {NAME: {**deployment, "status": {**deployment["status"], "modifiedStatus": modified}}}},
            ("BundleDeployment", "HelmChart rke2-cilium was changed"),
        ),
    ):
        name, detail = stopped(trace(rendered, "cni", snapshot, live(rendered, **changes), BRANCH))
        assert (name, expected[1] in detail) == (expected[0], True), (changes, detail)


def test_a_conflict_that_fleet_does_not_report_points_to_the_log_and_names_fields_without_values(
    rendered: Rendered, snapshot: Snapshot
) -> None:
    (status,) = (
        record.outcome for record in records("rancher-fleet/statuses.yaml") if record.name.startswith("a-conflict")
    )
    bundle = live(rendered).bundles[NAME]  # type: ignore[index]
    deployment = {**live(rendered).deployments[NAME], "status": status["deployment"]}  # type: ignore[index]
    changed = {**bundle, "status": {**bundle["status"], **status["bundle"]}}
    found = trace(rendered, "cni", snapshot, live(rendered, bundles={NAME: changed}), BRANCH)
    assert "ConfigMap default/pools was changed in data.mtu, data.pool" in stopped(found)[1]

    found = trace(rendered, "cni", snapshot, live(rendered, deployments={NAME: deployment}), BRANCH)
    name, detail = stopped(found)
    assert (name, "the log of Deployment cattle-fleet-system/fleet-agent" in detail) == ("BundleDeployment", True)
    assert detail.endswith("ConfigMap default/pools was changed in data.mtu, data.pool")


def test_the_path_of_the_repository_is_part_of_what_gitrepos_read(rendered: Rendered, snapshot: Snapshot) -> None:
    repo = live(rendered).git_repos[0]  # type: ignore[index]
    found = live(rendered, git_repos=[{**repo, "spec": {"paths": ["add-ons/clusters/team-a/*/*"]}}])
    assert trace(rendered, "cni", snapshot, found, BRANCH, path="add-ons").stopped is None
    assert stopped(trace(rendered, "cni", snapshot, found, BRANCH))[0] == "GitRepo"
    _, detail = stopped(trace(rendered, "cni", snapshot, live(rendered), BRANCH, path="add-ons"))
    assert detail == "none in this namespace has a path for add-ons/clusters/team-a/demo/*; create one"


def test_a_folder_has_no_commit_to_compare(rendered: Rendered, snapshot: Snapshot) -> None:
    found = trace(rendered, "cni", snapshot, live(rendered), BranchState())
    assert found.stopped is None
    assert [stage.detail for stage in found.stages[1:3]] == ["the folder", f"commit {COMMIT[:12]}"]


def test_a_reverted_object_names_its_writer(rendered: Rendered, snapshot: Snapshot) -> None:
    ((key, obj),) = live(rendered).objects.items()  # type: ignore[union-attr]
    older = yaml.safe_load(obj["spec"]["valuesContent"]) | {"MTU": 1500}
    fields = {"f:spec": {"f:valuesContent": {}}}
    entries = [
        {"manager": "fleetagent", "time": "2026-11-22T05:00:00Z", "fieldsV1": fields},
        {"manager": "deploy@server", "time": "2026-11-22T06:00:00Z", "fieldsV1": fields},
    ]
    found = {
        **obj,
        "metadata": {**obj["metadata"], "managedFields": entries},
        "spec": {**obj["spec"], "valuesContent": yaml.safe_dump(older)},
    }
    name, detail = stopped(trace(rendered, "cni", snapshot, live(rendered, objects={key: found})))
    assert name == "object"
    assert detail == (
        "spec.valuesContent was changed by deploy@server at 2026-11-22T06:00:00Z: a later writer reverted it"
    )
    assert "does not exist" in stopped(trace(rendered, "cni", snapshot, live(rendered, objects={})))[1]


def test_a_failing_helm_controller_is_reported_although_fleet_is_content(
    rendered: Rendered, snapshot: Snapshot
) -> None:
    ((key, obj),) = live(rendered).objects.items()  # type: ignore[union-attr]
    failed = [{"type": "Failed", "status": "True", "message": "Job has reached configured number of retries"}]
    found = {**obj, "status": {"conditions": failed}}
    _, detail = stopped(trace(rendered, "cni", snapshot, live(rendered, objects={key: found})))
    assert detail.startswith("the Helm controller failed: Job has reached")


def test_what_cannot_be_read_is_unknown_and_no_fault(rendered: Rendered, snapshot: Snapshot) -> None:
    found = trace(rendered, "cni", snapshot, LiveState(why="Fleet cannot be read: Forbidden"))
    assert found.stopped is None
    assert [(stage.name, stage.ok) for stage in found.stages[2:]] == [("Fleet", None), ("object", None)]


def test_a_vendored_chart_is_named_and_its_templates_are_no_manifests() -> None:
    facts = cluster("demo", {"distribution": "kubeadm"}, namespace="team-a")
    template = b"metadata: {name: {{ .Release.Name }}\n"
    chart = VendoredChart("harvester-cloud-provider", "0.2.15", "", {"Chart.yaml": CHART, "templates/a.yaml": template})
    vendor = {
        f"{ROOT.name}/{name}/{file}": text
        for name, one in folder_of([chart])[ROOT].items()
        for file, text in one.files.items()
    }
    found = Renderer().render_one(facts, vendor)
    assert found.ok, found.findings
    (stage, *_) = trace(found, "ccm", None, LiveState()).stages
    assert stage.detail == "chart harvester-cloud-provider 0.2.15 from the repository"
    assert manifests(found, "ccm") == []


def test_a_chart_of_an_oci_registry_is_named_with_its_source() -> None:
    facts = cluster("demo", {"distribution": "kubeadm"}, namespace="team-a")
    found = Renderer(RenderOptions(chart_repository="oci://registry.example.com/charts")).render_one(facts, {})
    (stage, *_) = trace(found, "ccm", None, LiveState()).stages
    assert stage.detail == "chart harvester-cloud-provider 0.2.15 from oci://registry.example.com/charts"
