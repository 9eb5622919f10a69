"""The manifests for Rancher Turtles lead to this release, or to the newest one, and bring all of its variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv import data
from release import components

pytestmark = pytest.mark.unit

RELEASES = "https://github.com/rancher-sandbox/cluster-api-provider-harvester/releases"


def read(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((data.folder("deploy/turtles") / name).read_text())
    return dict(found)


def test_one_provider_stays_at_its_version_and_the_other_follows_new_ones() -> None:
    stays, follows = read("capiprovider.yaml"), read("capiprovider-automatic-updates.yaml")
    version = stays["spec"]["version"]
    assert stays["spec"].pop("fetchConfig") == {"url": f"{RELEASES}/download/{version}/infrastructure-components.yaml"}
    assert follows["spec"].pop("fetchConfig") == {"url": f"{RELEASES}/latest/download/infrastructure-components.yaml"}
    assert follows["spec"].pop("enableAutomaticUpdate") is True
    # In all else, name included, they are the same: applying one over the other changes between them.
    assert follows == stays
    assert (stays["apiVersion"], stays["kind"]) == ("turtles-capi.cattle.io/v1alpha1", "CAPIProvider")
    assert stays["metadata"] == {"name": "harvester", "namespace": "caphv-system"}
    assert (stays["spec"]["name"], stays["spec"]["type"]) == ("harvester", "infrastructure")


def test_their_version_is_one_of_the_contract_of_this_release() -> None:
    metadata = yaml.safe_load((data.folder("deploy/clusterctl") / "metadata.yaml").read_text())
    series = {(each["major"], each["minor"]): each["contract"] for each in metadata["releaseSeries"]}
    major, minor, _ = read("capiprovider.yaml")["spec"]["version"].removeprefix("v").split(".")
    assert series[int(major), int(minor)] == "v1beta2"


def test_the_secret_has_all_variables_with_their_defaults(checkout: Path) -> None:
    secret, provider = read("caphv-variables.yaml"), read("capiprovider.yaml")
    assert provider["spec"]["configSecret"] == {"name": secret["metadata"]["name"]}
    assert secret["metadata"]["namespace"] == provider["metadata"]["namespace"]
    objects = components.objects(checkout / "deploy" / "kustomize" / "base")
    text = components.dump(components.with_variables(objects))
    assert secret["stringData"] == dict(re.findall(r"\$\{(\w+):=([^}]*)\}", text))
