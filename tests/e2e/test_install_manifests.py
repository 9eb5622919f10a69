"""The Helm chart and the kustomizations give the same objects; helm and kustomize are the real ones."""

import os
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.processes import binaries
from tests.support.manifests import CLASSES, PACKAGER, PRODUCTION, SELF_SIGNED, call, parsed, template, webhooks_of
from tools.release.__main__ import contents

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("values", "kustomization"),
    [
        ({}, "base"),
        (PRODUCTION, "overlays/production"),
        ({"watchNamespace": "team-a"}, "overlays/one-namespace"),
    ],
)
def test_chart_and_kustomization_give_the_same_objects(
    checkout: Path, tmp_path: Path, values: Obj, kustomization: str
) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / kustomization)
    ours, theirs = parsed(template(tmp_path, values)), parsed(built)
    assert ours.keys() == theirs.keys()
    # A provider of one namespace renews no tokens, for which it would need rights to Secrets.
    assert (("Role", "caphv-system", "caphv-token-renewal-role") in ours) == ("watchNamespace" not in values)
    for key, obj in ours.items():
        assert obj == theirs[key], key


def test_components_give_what_values_of_the_chart_give(checkout: Path, tmp_path: Path) -> None:
    """Two components over `production`. The chart makes the Secret, and knows its CA; else the user does."""
    folder = checkout / "deploy" / "kustomize"
    names = ["overlays/production", "packager", "components/self-signed", "components/one-namespace"]
    places = [os.path.relpath(folder / name, tmp_path) for name in names]
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump({"kind": "Kustomization", "resources": places[:2], "components": places[2:]})
    )
    theirs = parsed(call(binaries.binary("kustomize"), "build", tmp_path))
    values = {**PRODUCTION, **PACKAGER, **SELF_SIGNED, "watchNamespace": "team-a"}
    ours = parsed(template(tmp_path, values))
    del ours["Secret", "caphv-system", "caphv-webhook-self-signed"]
    del ours["NetworkPolicy", "caphv-system", "caphv-packager"]
    packager = ours["Deployment", "caphv-system", "caphv-packager"]["spec"]["template"]
    assert packager["metadata"]["annotations"].pop("caphv.io/settings")
    assert "--namespace=team-a" in packager["spec"]["containers"][0]["args"]
    # Cluster-wide is only what is in no namespace of clusters.
    assert ("ClusterRole", "", "caphv-packager-role") not in ours
    assert ("Role", "team-a", "caphv-packager-role") in ours
    assert not {"harvesterclusters", "harvesterclusters/status", "events"} & {
        resource
        for key, obj in ours.items()
        if key[0] == "ClusterRole" and "packager" in key[2]
        for rule in obj["rules"]
        for resource in rule["resources"]
    }
    for webhook in webhooks_of(ours):
        del webhook["clientConfig"]["caBundle"]
    assert ours.keys() == theirs.keys()
    for key, obj in ours.items():
        assert obj == theirs[key], key


def test_component_of_updates_in_place_is_the_value_of_the_chart(checkout: Path, tmp_path: Path) -> None:
    folder = checkout / "deploy" / "kustomize"
    places = [os.path.relpath(folder / name, tmp_path) for name in ("overlays/production", "components/in-place")]
    kustomization = {"kind": "Kustomization", "resources": places[:1], "components": places[1:]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    theirs = parsed(call(binaries.binary("kustomize"), "build", tmp_path))
    ours = parsed(template(tmp_path, {**PRODUCTION, "inPlaceUpdates": {"enabled": True}}))
    assert ("ExtensionConfig", "", "caphv") in ours
    assert ours.keys() == theirs.keys()
    for key, obj in ours.items():
        assert obj == theirs[key], key

    values = {**SELF_SIGNED, "inPlaceUpdates": {"enabled": True, "policy": "Only"}}
    config = parsed(template(tmp_path, values, namespace="capi"))["ExtensionConfig", "", "caphv"]
    secret = config["metadata"]["annotations"]["runtime.cluster.x-k8s.io/inject-ca-from-secret"]
    assert secret == "capi/caphv-webhook-self-signed"
    assert config["spec"]["clientConfig"]["service"]["namespace"] == "capi"
    assert config["spec"]["settings"] == {"policy": "Only"}

    values["inPlaceUpdates"]["clientCASecret"] = "clients"
    objects = parsed(template(tmp_path, values))
    (pod,) = [obj["spec"]["template"]["spec"] for key, obj in objects.items() if key[0] == "Deployment"]
    (manager,) = pod["containers"]
    assert "--runtime-extension-client-ca=/etc/caphv/extension-clients/ca.crt" in manager["args"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "extension-clients"]
    assert volume["secret"] == {"secretName": "clients", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_overlay_without_cert_manager_has_nothing_of_it(checkout: Path) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / "overlays" / "self-signed")
    assert "cert-manager" not in built
    assert "secretName: caphv-webhook-self-signed" in built


def test_packager_of_the_chart_is_that_of_the_kustomization(checkout: Path, tmp_path: Path) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / "packager")
    ours, theirs = parsed(template(tmp_path, PACKAGER)), parsed(built)
    without = parsed(template(tmp_path, {}))
    assert ours.keys() - without.keys() == theirs.keys()
    annotations = ours["Deployment", "caphv-system", "caphv-packager"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations.pop("caphv.io/settings")
    for key, obj in theirs.items():
        assert obj == ours[key], key


def test_release_for_kubectl_is_the_base(checkout: Path) -> None:
    built = call(binaries.binary("kustomize"), "build", checkout / "deploy" / "kustomize" / "base")
    assert parsed(contents()["caphv.yaml"].decode()) == parsed(built)


def test_cluster_classes_are_where_their_clusters_are(checkout: Path, tmp_path: Path) -> None:
    objects = parsed(template(tmp_path, CLASSES))
    folder = checkout / "clusterclass" / "harvester-rke2"
    written = [obj for path in folder.glob("*.yaml") for obj in manifests.parse(path.read_text())]
    for namespace in CLASSES["clusterClasses"]["namespaces"]:
        found = {key: obj for key, obj in objects.items() if key[1] == namespace}
        assert len(found) == len(written)
        for obj in written:
            rendered = found[obj["kind"], namespace, obj["metadata"]["name"]]
            assert rendered["spec"] == obj["spec"]
            assert rendered["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    assert not {kind for kind, _, _ in parsed(template(tmp_path, {}))} & {"ClusterClass"}
