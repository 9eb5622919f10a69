"""The manifests for Rancher Turtles lead to this release, or to the one that Turtles names, and bring all variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv import data
from tools.release import components

pytestmark = pytest.mark.unit

RELEASES = "https://github.com/rancher-sandbox/cluster-api-provider-harvester/releases"


def read(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((data.folder("deploy/turtles") / name).read_text())
    return dict(found)


def test_one_provider_stays_at_its_version_and_the_other_follows_new_ones() -> None:
    stays, follows = read("capiprovider.yaml"), read("capiprovider-automatic-updates.yaml")
    version = stays["spec"]["version"]
    # These are no addresses of files: clusterctl's library takes version and file name from this form (cluster-api,
    # cmd/clusterctl/client/repository/repository_github.go, NewGitHubRepository).
    assert stays["spec"].pop("fetchConfig") == {"url": f"{RELEASES}/{version}/infrastructure-components.yaml"}
    assert follows["spec"].pop("fetchConfig") == {"url": f"{RELEASES}/latest/infrastructure-components.yaml"}
    assert follows["spec"].pop("enableAutomaticUpdate") is True
    # In all else, name included, they are the same: applying one over the other changes between them.
    assert follows == stays
    assert (stays["apiVersion"], stays["kind"]) == ("turtles-capi.cattle.io/v1alpha1", "CAPIProvider")
    assert stays["metadata"] == {"name": "harvester", "namespace": "caphv-system"}
    assert (stays["spec"]["name"], stays["spec"]["type"]) == ("harvester", "infrastructure")


def test_documented_entry_of_turtles_names_the_version_that_a_provider_follows(checkout: Path) -> None:
    """Turtles finds it by name and type, and reads the version from the folder of its URL."""
    blocks = (checkout / "docs" / "installation.md").read_text().split("```yaml\n")[1:]
    (config,) = [yaml.safe_load(text) for block in blocks if "ClusterctlConfig" in (text := block.partition("```")[0])]
    # Turtles reads no other name, and only in its own namespace.
    assert config["metadata"] == {"name": "clusterctl-config", "namespace": "cattle-turtles-system"}
    follows = read("capiprovider-automatic-updates.yaml")["spec"]
    (entry,) = config["spec"]["providers"]
    assert (entry["name"], entry["type"]) == (follows["name"], f"{follows['type'].title()}Provider")
    assert entry["url"] == f"{RELEASES}/{follows['version']}/infrastructure-components.yaml"


def test_no_page_has_the_address_of_a_download_instead(checkout: Path) -> None:
    """Its version would be `download`, and its file one in a folder, which no release has."""
    pages = [*(checkout / "docs").rglob("*.md"), *(checkout / "deploy").rglob("*.yaml")]
    wrong = re.compile(r"releases/(?:latest/download|download/[^/\s]+)/\S+-components\.yaml")
    assert [page for page in pages if wrong.search(page.read_text())] == []


def test_their_version_is_one_of_the_contract_of_this_release() -> None:
    metadata = yaml.safe_load((data.folder("deploy/clusterctl") / "metadata.yaml").read_text())
    series = {(each["major"], each["minor"]): each["contract"] for each in metadata["releaseSeries"]}
    major, minor, _ = read("capiprovider.yaml")["spec"]["version"].removeprefix("v").split(".")
    wanted = f"{{major: {major}, minor: {minor}, contract: v1beta2}}"
    assert series.get((int(major), int(minor))) == "v1beta2", f"deploy/clusterctl/metadata.yaml: add {wanted}"


def test_the_secret_has_all_variables_with_their_defaults(checkout: Path) -> None:
    secret, provider = read("caphv-variables.yaml"), read("capiprovider.yaml")
    assert provider["spec"]["configSecret"] == {"name": secret["metadata"]["name"]}
    assert secret["metadata"]["namespace"] == provider["metadata"]["namespace"]
    objects = components.objects(checkout / "deploy" / "kustomize" / "base")
    text = components.dump(components.with_variables(objects))
    assert secret["stringData"] == dict(re.findall(r"\$\{(\w+):=([^}]*)\}", text))
