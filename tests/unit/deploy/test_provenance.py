"""The provenance of a release names each file, the commit, and who built it."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools.release import provenance
from tools.release.__main__ import SUMS, contents, project_version, with_provenance

pytestmark = pytest.mark.unit

RUN = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "rancher-sandbox/cluster-api-provider-harvester",
    "GITHUB_WORKFLOW_REF": "rancher-sandbox/cluster-api-provider-harvester/.github/workflows/release.yaml@refs/tags/v1",
    "GITHUB_REF": "refs/tags/v1",
    "GITHUB_RUN_ID": "7",
    "GITHUB_RUN_ATTEMPT": "2",
}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return with_provenance(contents())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of Git with one commit."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=Example", "-c", "user.email=example@example.com"]
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=first"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def statement(files: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files[provenance.NAME])
    return found


def test_statement_is_one_of_in_toto_with_the_predicate_of_slsa(files: dict[str, bytes]) -> None:
    found = statement(files)
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    definition, details = found["predicate"]["buildDefinition"], found["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"version": project_version()}
    assert definition["buildType"].startswith("https://")
    assert details["builder"]["id"].startswith("https://")


def test_each_file_is_a_subject_with_its_digest_and_the_sums_cover_the_statement(files: dict[str, bytes]) -> None:
    subjects = {entry["name"]: entry["digest"]["sha256"] for entry in statement(files)["subject"]}
    assert subjects == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in files.items()
        if name not in (provenance.NAME, SUMS)
    }
    assert f"{hashlib.sha256(files[provenance.NAME]).hexdigest()}  {provenance.NAME}\n" in files[SUMS].decode()


def test_same_files_have_the_same_provenance(files: dict[str, bytes]) -> None:
    assert with_provenance(files) == files


def test_inputs_of_the_build_have_digests(checkout: Path) -> None:
    source = provenance.Source("c" * 40, ref="refs/tags/v1")
    whole = json.loads(provenance.document({"a": b""}, "1", checkout, source))
    found = whole["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert found[0] == {"uri": f"git+{provenance.REPOSITORY}@refs/tags/v1", "digest": {"gitCommit": "c" * 40}}
    assert {entry.get("name") for entry in found} >= {"requirements.lock", "tools/release/uv.lock"}
    (image,) = [entry for entry in found if entry.get("uri", "").startswith("pkg:docker/python@")]
    assert f"{image['uri'].partition('@')[2]}@sha256:{image['digest']['sha256']}" in (
        checkout / "Dockerfile"
    ).read_text(encoding="utf-8")


def test_a_run_of_the_workflow_is_named_with_its_commit(repository: Path) -> None:
    git = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.source(repository, RUN) == provenance.Source(
        commit,
        "https://github.com/rancher-sandbox/cluster-api-provider-harvester/.github/workflows/release.yaml@refs/tags/v1",
        "https://github.com/rancher-sandbox/cluster-api-provider-harvester/actions/runs/7/attempts/2",
        "refs/tags/v1",
    )
    assert provenance.source(repository, {}) == provenance.Source(commit)


def test_without_git_no_commit_is_claimed(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    source = provenance.source(tmp_path, {})
    assert source == provenance.Source("")
    found = json.loads(provenance.document({}, "1", checkout, source))["predicate"]
    assert "gitCommit" not in str(found)
    assert found["runDetails"] == {"builder": {"id": provenance.LOCAL_BUILDER}}
