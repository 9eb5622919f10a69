"""All examples use one version of Kubernetes, and upgrades lead to one other version."""

import importlib.util
from types import ModuleType

import pytest

from packager.definitions.flags import KUBERNETES_VERSION
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("versions", CHECKOUT / "website" / "versions.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_examples_use_the_versions_of_the_file() -> None:
    assert load().others() == []


def test_the_versions_are_used() -> None:
    versions = load()
    text = "".join(path.read_text(encoding="utf-8") for path in versions.covered())
    assert len(versions.covered()) > 20
    assert [version for version in versions.current().values() if version not in text] == []


def test_new_clusters_get_the_version_of_the_examples() -> None:
    assert load().current()["kubernetes"] == KUBERNETES_VERSION
