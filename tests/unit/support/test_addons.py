"""What the stand-in of Fleet takes for bundles, after `shouldCreateBundleForThisPath` of Fleet's `cli/apply`."""

from __future__ import annotations

import pytest

from tests.support.addons.bundles import bundles_of
from tests.support.addons.charts import opaque

pytestmark = pytest.mark.unit
POD = b"{apiVersion: v1, kind: Pod, metadata: {name: a}}"


def folders(files: dict[str, bytes], *paths: str) -> list[str]:
    return [found.folder for found in bundles_of(files, {"spec": {"paths": list(paths)}}, opaque)]


def test_folders_with_a_fleet_yaml_are_bundles_at_any_depth() -> None:
    files = {
        "a/fleet.yaml": b"{}",
        "a/pod.yaml": POD,
        "a/b/c/fleet.yaml": b"{}",
        "a/b/c/pod.yaml": POD,
        "z/pod.yaml": POD,
    }
    assert folders(files, "a") == ["a", "a/b/c"]
    assert folders(files, "*") == ["a", "a/b/c", "z"]


def test_a_path_without_fleet_yaml_is_a_bundle_only_for_manifests_that_no_other_bundle_has() -> None:
    files = {"a/one/fleet.yaml": b"{}", "a/one/pod.yaml": POD}
    assert folders(files, "a") == ["a/one"]
    assert folders({**files, "a/two/pod.yaml": POD}, "a") == ["a", "a/one"]


def test_a_folder_without_objects_is_no_bundle() -> None:
    assert folders({"a/fleet.yaml": b"{name: a}"}, "a") == []
    assert folders({"a/fleet.yaml": b"{helm: {chart: x}}"}, "a") == ["a"]


def test_a_path_is_a_folder_or_a_pattern_of_folders_and_nothing_else() -> None:
    files = {"clusters/x/a/caphv.yaml": b"{}", "clusters/x/a/cni/fleet.yaml": b"{}", "clusters/x/a/cni/pod.yaml": POD}
    assert folders(files, "clusters/*/*/*") == ["clusters/x/a/cni"]
    assert folders(files, "clusters/y/*") == []


def test_keep_resources_of_a_gitrepo_overrides_that_of_a_bundle() -> None:
    files = {"a/fleet.yaml": b"{keepResources: false}", "a/pod.yaml": POD}
    for flag in (True, False):
        (found,) = bundles_of(files, {"spec": {"paths": ["a"], "keepResources": flag}}, opaque)
        assert found.keep_resources is flag
