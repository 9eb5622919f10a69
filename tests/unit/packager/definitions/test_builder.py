"""A builder keeps its last results until the repository changes where they were read from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Key
from packager.contents.folders import compare_folders
from packager.definitions.builder import Builder
from packager.definitions.buildresult import NAMESPACE_ROOT, BuildResult
from packager.definitions.files import NAMES
from packager.definitions.source import Reader
from packager.git.commit import Reason
from packager.git.directory import Directory
from packager.git.pruning import Pruning
from packager.rendering.renderer import Renderer
from packager.rendering.vendored import ROOT, VendoredChart, folder_of
from tests.support.packager.definitions import definition

pytestmark = pytest.mark.unit

NO_REMOVALS = Pruning(complete=True, budget=0, scope=())
CHART = VendoredChart("harvester-cloud-provider", "0.2.15", "", {"Chart.yaml": b"name: harvester-cloud-provider\n"})


class Site:
    """A repository in a folder with one definition, whose builder works on."""

    def __init__(self, folder: Path) -> None:
        addons = {"csi": {"storageClasses": [{"name": "fast", "hostStorageClass": "longhorn"}]}}
        obj = definition("demo", addons=addons, addonDelivery="Fleet")
        self.bundles = folder / "clusters" / obj["metadata"]["namespace"] / "demo"
        self._definition = {"demo.yaml": yaml.safe_dump(obj).encode()}
        self._store = Directory(folder, names=NAMES)
        self._reader = Reader(lambda _: [])
        self._builder = Builder(Renderer())
        self.commit()

    def build(self) -> BuildResult:
        return self._builder.build(self._reader.read(self._definition), self._store.sync())

    def commit(self) -> None:
        built = self.build()
        self._store.commit(lambda snapshot: compare_folders(snapshot, built.wanted, NO_REMOVALS), Reason(""))

    def errors(self) -> str:
        return "; ".join(problem.message for problem in self.build().errors)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_unchanged_definition_is_not_built_again(site: Site) -> None:
    (first,) = site.build().objects.values()
    (second,) = site.build().objects.values()
    assert first is second


def test_a_storage_class_that_is_edited_by_hand_is_compared_again(site: Site) -> None:
    assert site.errors() == ""
    classes = site.bundles / "storage-classes" / "storageclasses.yaml"
    valid = classes.read_text()
    classes.write_text(valid.replace("longhorn", "other"))
    assert "StorageClass fast, which exists in the cluster" in site.errors()
    classes.write_text(valid)
    assert site.errors() == ""


def test_a_cluster_with_an_invalid_lockfile_is_new_again_after_its_folder_was_removed(site: Site) -> None:
    (site.bundles / "caphv.yaml").write_text("damaged")
    assert "restore it from the history" in site.errors()
    shutil.rmtree(site.bundles)
    assert site.errors() == ""


def test_a_vendored_chart_that_is_edited_by_hand_is_refused_until_it_is_restored(site: Site, tmp_path: Path) -> None:
    (folders,) = folder_of([CHART]).values()
    for name, folder in folders.items():
        for path, content in folder.files.items():
            file = tmp_path / ROOT.name / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    (chart,) = tmp_path.glob(f"{ROOT.name}/**/Chart.yaml")
    chart.write_text("name: other\n")
    assert "does not match its digest" in site.errors()
    chart.write_bytes(CHART.files["Chart.yaml"])
    assert site.errors() == ""


def test_the_class_of_a_definition_does_not_replace_one_of_the_source_that_is_invalid(tmp_path: Path) -> None:
    store = Directory(tmp_path, names=NAMES)
    obj = definition("demo")
    source = Reader(lambda _: []).read({"demo.yaml": yaml.safe_dump(obj).encode()})
    groups = Builder(Renderer()).build(source, store.sync()).wanted[NAMESPACE_ROOT]
    (of_class,) = (name for name in groups if "harvester" in name)
    source.invalid_groups.add(Key(*of_class.split("/")))
    assert groups.keys() - Builder(Renderer()).build(source, store.sync()).wanted[NAMESPACE_ROOT].keys() == {of_class}
