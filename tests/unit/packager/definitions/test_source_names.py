"""A file may have any name that Git stores, and problems with it can be written to the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from caphv.api.object import Key
from packager.definitions.builder import Builder
from packager.definitions.files import NAMES, STATUS
from packager.definitions.source import Reader, Source
from packager.git.directory import Directory
from packager.git.snapshot import Unread
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Bundler
from packager.rendering.renderer import Renderer

pytestmark = pytest.mark.unit

# Names in Latin-1, as Python reads bytes that are not UTF-8.
FILE = "caf\udce9.yaml"
FOLDER = "caf\udce9"
NAMELESS = b"apiVersion: caphv.io/v1alpha1\nkind: ClusterDefinition\n"
CLUSTER = b"apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: demo, namespace: team-a}\n"
OTHER = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: team-a}\n"


def status(source: Source, folder: Path) -> str:
    """The status file that a commit for the source writes."""
    planner = Planner(Bundler(), Builder(Renderer()))
    plan = planner.plan(Directory(folder, names=NAMES).sync(), ManagementState(), source).plan
    return plan.write[STATUS].decode()


def test_problem_of_a_file_whose_name_is_not_utf8_is_in_the_status_file(tmp_path: Path) -> None:
    source = Reader(lambda _: []).read({FILE: NAMELESS})
    assert not source.complete
    assert r'file: "caf\\udce9.yaml"' in status(source, tmp_path)


def test_problem_of_a_link_whose_name_is_not_utf8_is_in_the_status_file(tmp_path: Path) -> None:
    source = Reader(lambda _: []).read({}, {FILE: Unread("is a symbolic link", is_folder=False)})
    assert r'file: "caf\\udce9.yaml"' in status(source, tmp_path)


def test_files_of_a_folder_whose_name_is_not_utf8_belong_together() -> None:
    source = Reader(lambda _: []).read({f"{FOLDER}/a.yaml": CLUSTER, f"{FOLDER}/b.yaml": OTHER})
    (entry,) = source.clusters
    assert entry.key == Key("team-a", "demo")
    assert [item.key.name for item in entry.others] == ["other"]
