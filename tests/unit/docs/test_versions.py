"""All examples use one version of Kubernetes, and upgrades lead to one other version."""

import importlib.util
from types import ModuleType

import pytest

from packager.definitions.flags import KUBERNETES_VERSION
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("versions", CHECKOUT / "tools" / "website" / "versions.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_use_the_versions_of_the_file() -> None:
    assert load().find_other_versions() == []


def test_the_versions_are_used() -> None:
    versions = load()
    text = "".join(path.read_text(encoding="utf-8") for path in versions.files())
    assert len(versions.files()) > 20
    assert [version for version in versions.read_versions().values() if version not in text] == []


def test_new_clusters_get_the_version_of_the_examples() -> None:
    assert load().read_versions()["kubernetes"] == KUBERNETES_VERSION
