"""What is rendered, diff_clusters with the CRDs and charts of others."""

from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from packager.rendering.gitrepo import git_repos
from packager.rendering.nodefiles import node_files
from packager.rendering.renderer import Renderer
from tests.support.foreign_crds import violations
from tests.support.packager.examples import EXAMPLES, OPTIONS, rendered
from tests.support.paths import CHECKOUT

SHARED = CHECKOUT.parent / "shared"
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not SHARED.is_dir(), reason="the CRDs and charts of others are not available"),
]

# Fields of fleet.yaml that are not of a Bundle's spec.
OF_THE_FILE = {"name", "labels", "overrideTargets"}


def crd(file: str, kind: str, version: str) -> Obj:
    for found in yaml.load_all((SHARED / "crds" / file).read_text(), Loader=LOADER):
        if found and found["spec"]["names"]["kind"] == kind:
            versions = {item["name"]: item for item in found["spec"]["versions"]}
            schema: Obj = versions[version]["schema"]["openAPIV3Schema"]
            return schema
    raise KeyError(kind)


def fleet_files() -> list[Obj]:
    return [
        yaml.load(content, Loader=LOADER)
        for result in rendered()
        for path, content in result.tree.items()
        if path.endswith("/fleet.yaml")
    ]


def test_fleet_files_have_fields_of_a_bundle() -> None:
    spec = crd("fleet.cattle.io.yaml", "Bundle", "v1alpha1")["properties"]["spec"]
    for document in fleet_files():
        own = {key: value for key, value in document.items() if key not in OF_THE_FILE}
        assert violations({"spec": own}, {"properties": {"spec": spec}}) == []
        targets = {"spec": {"targets": document["overrideTargets"], "targetRestrictions": document["overrideTargets"]}}
        assert violations(targets, {"properties": {"spec": spec}}) == []


def test_git_repos() -> None:
    settings = [result.settings for result in Renderer().render(EXAMPLES, {}) if result.settings]
    schema = crd("fleet.cattle.io.yaml", "GitRepo", "v1alpha1")
    for repo in git_repos(settings, OPTIONS):
        assert violations(repo, schema) == []


def test_server_config_of_rke2() -> None:
    file = "controlplane.cluster.x-k8s.io_rke2controlplanes.yaml"
    schema = crd(file, "RKE2ControlPlane", "v1beta2")["properties"]["spec"]["properties"]["serverConfig"]
    for result in rendered():
        config = dict(node_files(result).server_config)
        assert violations({"spec": config}, {"properties": {"spec": schema}}) == []


@pytest.mark.parametrize("chart", ["harvester-cloud-provider", "harvester-csi-driver"])
def test_values_are_those_of_the_chart(chart: str) -> None:
    known = yaml.load((SHARED / "charts" / chart / "values.yaml").read_text(), Loader=LOADER)
    if "kube-vip" in known:
        # A value of the chart that it depends on.
        known["kube-vip"]["fullnameOverride"] = ""
    seen = 0
    for document in fleet_files():
        if document["helm"].get("chart") == chart:
            seen += 1
            assert unknown(document["helm"]["values"], known) == []
    assert seen > 3


def unknown(values: Any, known: Any, path: str = "") -> list[str]:
    """Paths of values that the chart does not know; what it leaves open may hold anything."""
    if not isinstance(values, dict) or not known:
        return []
    if not isinstance(known, dict):
        return [path]
    found = [f"{path}.{key}" for key in values if key not in known]
    for key in values.keys() & known.keys():
        found += unknown(values[key], known[key], f"{path}.{key}")
    return found


def test_the_check_of_values_finds_what_is_wrong() -> None:
    assert unknown({"a": {"b": 1, "x": 1}, "y": 1}, {"a": {"b": 2}}) == [".y", ".a.x"]
