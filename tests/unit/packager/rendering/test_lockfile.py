"""The lockfile: versions stay, and what cannot change in a running cluster is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caphv import data
from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts
from packager.addons.versions import Versions, shipped_templates
from packager.git.folder import FILE_LIST, MARK, file_list
from packager.rendering import lockfile
from packager.rendering.renderer import Renderer
from tests.support.packager.examples import K3S, KUBEADM, cluster
from tests.support.packager.rendering import files, rules

pytestmark = pytest.mark.unit

FOLDER = "clusters/clusters/a"


def table(path: Path, *, charts: str) -> Path:
    """The shipped table as a later release may have it: one newer set, made for a newer Kubernetes."""
    content = json.loads((data.folder("fleet-bundles") / "versions.json").read_text())
    release = content["releases"][0]
    release |= {"name": "newer", "supports": {"kubernetes": {"from": "1.40", "to": "1.41"}}}
    release["charts"] = dict.fromkeys(release["charts"], charts)
    path.write_text(json.dumps(content))
    return path


def test_versions_stay_until_an_upgrade_is_asked_for(tmp_path: Path) -> None:
    first = files(cluster("a"))
    newer = table(tmp_path / "versions.json", charts="9.9.9")
    kept = Renderer(versions_file=newer).render_one(cluster("a"), first)
    assert dict(kept.tree) == first
    renderer = Renderer(versions_file=newer)
    renderer.render_one(cluster("a"), first)
    upgraded = renderer.render_one(cluster("a"), first, renderer.table.newest)
    assert 'version: "9.9.9"' in upgraded.tree["clusters/clusters/a/ccm/fleet.yaml"].decode()
    assert [finding.rule for finding in upgraded.findings if finding.advice] == ["bundles-kubernetes"]
    assert upgraded.ok


def by_other_templates(facts: ClusterFacts) -> tuple[dict[str, bytes], Versions]:
    """The repository of a cluster that another release rendered, and the versions in its lockfile."""
    tree = files(facts)
    name = f"{FOLDER}/caphv.yaml"
    tree[name] = tree[name].replace(shipped_templates().encode(), b"other")
    tree[f"{FOLDER}/ccm/fleet.yaml"] += b"# of those templates\n"
    tree[f"{FOLDER}/{FILE_LIST}"] = file_list(path.removeprefix(f"{FOLDER}/") for path in tree)
    return tree, lockfile.parse(tree[name]).versions


def test_bundles_of_other_templates_stay_until_an_upgrade_is_asked_for() -> None:
    before, versions = by_other_templates(cluster("a"))
    assert versions.templates == "other"
    for facts in (cluster("a"), cluster("a", {"cni": {"mtu": 1400}})):
        kept = Renderer().render_one(facts, before)
        assert {path: content for path, content in before.items() if not path.endswith(FILE_LIST)} == kept.tree
        (advice,) = kept.findings
        assert (advice.rule, advice.advice, kept.versions) == ("bundles-templates", True, versions)
        assert "caphv bundles upgrade, which shows the difference" in advice.detail

    renderer = Renderer()
    changed = cluster("a", {"cni": {"mtu": 1400}})
    upgraded = renderer.render_one(changed, before, renderer.table.newest)
    assert (upgraded.tree, upgraded.findings) == (files(changed), ())


def test_files_that_stay_are_those_of_the_repository_after_an_edit_by_hand() -> None:
    before, _ = by_other_templates(cluster("a"))
    edited = {**before, f"{FOLDER}/ccm/fleet.yaml": b"edited"}
    renderer = Renderer()
    renderer.render_one(cluster("a"), before)
    assert renderer.render_one(cluster("a"), edited).tree == Renderer().render_one(cluster("a"), edited).tree


def test_marks_of_the_packager_are_no_files_of_bundles_of_other_templates() -> None:
    before, _ = by_other_templates(cluster("a"))
    folder = next(path.rpartition("/")[0] for path in before if path.endswith(f"/{lockfile.FILE}"))
    names = [path.removeprefix(f"{folder}/") for path in before if not path.endswith(FILE_LIST)]
    marked = {
        **before,
        f"{folder}/{MARK}": b"moved",
        f"{folder}/{FILE_LIST}": file_list([*names, MARK, FILE_LIST]),
    }
    kept = Renderer().render_one(cluster("a"), marked)
    assert kept.ok
    assert {path for path in kept.tree if path.endswith((MARK, FILE_LIST))} == set()


def test_a_refused_change_is_refused_for_bundles_of_other_templates_too() -> None:
    before, _ = by_other_templates(cluster("a"))
    assert "live-network" in rules(cluster("a", {"cni": {"name": "cilium"}}), before)


def test_an_upgrade_to_other_templates_cannot_be_reverted_by_rendering() -> None:
    before, versions = by_other_templates(cluster("a"))
    result = Renderer().render_one(cluster("a"), files(cluster("a")), versions)
    assert not result.ok
    assert "revert the commit" in str(result.findings[0])
    # The reverted commit has their files and their lockfile again, and those stay.
    assert Renderer().render_one(cluster("a"), before).ok


@pytest.mark.parametrize(
    "addons",
    [
        {"cni": {"podCIDRs": ["10.7.0.0/16"]}},
        {"cni": {"serviceCIDRs": ["10.7.0.0/16"]}},
        {"cni": {"encapsulation": "VXLAN"}},
        {"cni": {"name": "cilium"}},
        {"cni": {"kubeProxyReplacement": True}},
    ],
)
def test_a_live_network_is_not_changed_unless_forced(addons: Obj) -> None:
    first = files(cluster("a"))
    refused = Renderer().render_one(cluster("a", addons), first)
    assert not refused.tree
    assert {finding.rule for finding in refused.findings} == {"live-network"}
    assert all("was rendered as" in finding.detail for finding in refused.findings)
    assert files(cluster("a", addons), first, force=True) != first
    allowed = cluster("a", addons)
    allowed.cluster["metadata"]["annotations"]["addons.caphv.io/allow-network-change"] = "true"
    assert files(allowed, first)


def storage(**fields: Any) -> Obj:
    return {"csi": {"storageClasses": [{"name": "fast", "hostStorageClass": "longhorn", **fields}]}}


@pytest.mark.parametrize(
    ("setting", "value"),
    [("hostStorageClass", "replicated"), ("reclaimPolicy", "Retain"), ("volumeBindingMode", "WaitForFirstConsumer")],
)
def test_what_cannot_be_changed_in_a_storage_class_is_refused_before_helm_fails(setting: str, value: str) -> None:
    first = files(cluster("a", storage()))
    refused = Renderer().render_one(cluster("a", storage(**{setting: value})), first)
    assert not refused.tree
    assert [(one.rule, one.field.rpartition(".")[2]) for one in refused.findings] == [("live-storage-class", setting)]


def test_a_storage_class_that_is_edited_by_hand_is_compared_again() -> None:
    facts = cluster("a", storage())
    before, other = files(facts), files(cluster("a", storage(reclaimPolicy="Retain")))
    path = f"{FOLDER}/storage-classes/storageclasses.yaml"
    renderer = Renderer()
    assert renderer.render_one(facts, before).ok
    refused = renderer.render_one(facts, {**before, path: other[path]})
    assert [finding.rule for finding in refused.findings] == ["live-storage-class"]
    assert renderer.render_one(facts, before).ok
    assert "add a class of another name" in refused.findings[0].detail


def test_other_fields_of_a_storage_class_and_new_classes_may_change() -> None:
    first = files(cluster("a", storage()))
    assert files(cluster("a", storage(allowVolumeExpansion=False, default=True)), first) != first
    more = storage()
    more["csi"]["storageClasses"].append({"name": "slow", "hostStorageClass": "replicated"})
    assert files(cluster("a", more), first)
    # One that was removed no longer exists in the cluster, and may be added again.
    removed = files(cluster("a"), first)
    assert files(cluster("a", storage(reclaimPolicy="Retain")), removed)


def test_other_settings_of_a_live_network_may_change() -> None:
    assert files(cluster("a", {"cni": {"mtu": 1400, "bgp": "Enabled"}}), files(cluster("a")))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b"versions: {}\n", b"versions: 1\nnetwork: {}\ncontentHash: x"]
)
def test_a_spoilt_record_is_refused(content: bytes) -> None:
    assert rules(cluster("a"), {"clusters/clusters/a/caphv.yaml": content}) == {"bundles-record"}


def details(facts: Any, previous: dict[str, bytes]) -> dict[str, str]:
    """Refusals by the setting that they are about."""
    found = Renderer().render_one(facts, previous)
    assert not found.tree
    assert {finding.rule for finding in found.findings} == {"live-network"}
    return {finding.field.rpartition("]")[2].removeprefix("."): finding.detail for finding in found.findings}


@pytest.mark.parametrize("spec", [{}, K3S, KUBEADM], ids=["rke2", "k3s", "kubeadm"])
@pytest.mark.parametrize("cni", ["calico", "none"])
@pytest.mark.parametrize("field", ["podCIDRs", "serviceCIDRs"])
def test_networks_never_change_whatever_the_cni(spec: Obj, cni: str, field: str) -> None:
    pods = {"podCIDRs": ["10.42.0.0/16"], "serviceCIDRs": ["10.43.0.0/16"]}
    before = files(cluster("a", {"cni": {"name": cni, **pods}}, spec=spec))
    pods[field] = ["10.42.0.0/17"] if field == "podCIDRs" else ["10.7.0.0/16"]
    found = details(cluster("a", {"cni": {"name": cni, **pods}}, spec=spec), before)
    assert list(found) == [f"cni.{field}"]
    assert ("new servers could not join" in found[f"cni.{field}"]) is (spec is not KUBEADM)


@pytest.mark.parametrize(("old", "new"), [("none", "cilium"), ("none", "calico"), ("calico", "none")])
def test_k3s_keeps_its_flannel_or_what_replaces_it(old: str, new: str) -> None:
    before = files(cluster("a", {"cni": {"name": old}}, spec=K3S))
    found = details(cluster("a", {"cni": {"name": new}}, spec=K3S), before)
    assert list(found) == ["cni.name"]
    assert f"was rendered as {old} and would become {new}" in found["cni.name"]
    assert files(cluster("a", {"cni": {"name": new}}, spec=K3S), before, force=True)


@pytest.mark.parametrize("spec", [{}, KUBEADM], ids=["rke2", "kubeadm"])
def test_elsewhere_a_cluster_without_a_cni_may_get_one(spec: Obj) -> None:
    before = files(cluster("a", {"cni": {"name": "none"}}, spec=spec))
    assert files(cluster("a", {"cni": {"name": "calico"}}, spec=spec), before)


def test_a_refusal_names_the_folder_of_a_deleted_cluster_of_the_same_name() -> None:
    before = files(cluster("a"))
    found = details(cluster("a", {"cni": {"name": "cilium", "encapsulation": "VXLAN"}}), before)
    assert all(f"remove folder {FOLDER} from the repository" in detail for detail in found.values())
    assert files(cluster("a", {"cni": {"name": "cilium"}}), {})
    moved = {"charts": {"installedBy": "HelmController"}}
    (finding,) = Renderer().render_one(cluster("a", moved), before).findings
    assert (finding.rule, f"remove folder {FOLDER} " in finding.detail) == ("charts-installer", True)


def test_a_lost_lockfile_makes_no_new_cluster() -> None:
    before = files(cluster("a"))
    listed = file_list(path.removeprefix(f"{FOLDER}/") for path in before)
    left = {path: content for path, content in before.items() if not path.endswith("/caphv.yaml")}
    renderer = Renderer()
    (finding,) = renderer.render_one(cluster("a"), {**left, f"{FOLDER}/{FILE_LIST}": listed}).findings
    assert (finding.rule, finding.path) == ("bundles-record", (f"{FOLDER}/caphv.yaml",))
    assert "restore it from the history of the repository" in finding.detail
    # The same renderer notices that it is restored, or that the folder was removed.
    assert renderer.render_one(cluster("a"), {**before, f"{FOLDER}/{FILE_LIST}": listed}).ok
    assert renderer.render_one(cluster("a"), {}).ok
    # An upgrade of its versions would not know what it changes, either.
    pin = renderer.table.newest
    assert not renderer.render_one(cluster("a"), {**left, f"{FOLDER}/{FILE_LIST}": listed}, pin).ok


def test_files_of_others_in_a_folder_are_no_lost_cluster() -> None:
    assert files(cluster("a"), {f"{FOLDER}/README.md": b"", f"{FOLDER}/{FILE_LIST}": file_list([])})
