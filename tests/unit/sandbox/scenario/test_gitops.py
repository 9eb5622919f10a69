"""A sandbox pushes definitions as a user with an editor would."""

import subprocess
from pathlib import Path

import pytest
import yaml

from caphv.validation import schema
from sandbox.cluster import ClusterSpec, definition
from sandbox.scenario.gitops import GitOps

pytestmark = pytest.mark.unit

SPEC = ClusterSpec(gateway="127.5.0.1")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_each_push_is_a_commit_with_the_definition_as_it_is(tmp_path: Path) -> None:
    gitops = GitOps(tmp_path)
    gitops.create()
    gitops.push(definition(SPEC, 1450), "first")
    gitops.push(definition(SPEC, 1400), "second")
    source = tmp_path / "clusters.git"
    assert git(source, "log", "--format=%s", "main").split() == ["second", "first"]
    assert yaml.safe_load(git(source, "show", "main:demo.yaml")) == definition(SPEC, 1400)
    assert git(source, "show", "--numstat", "--format=", "main").split() == ["1", "1", "demo.yaml"]


def test_the_definition_is_one() -> None:
    assert schema.load("clusterdefinition.json").findings(definition(SPEC, 1450)) == []
