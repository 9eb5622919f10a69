"""The example pipelines, run step by step by a shell; the host's own programs are replaced by ones that write down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.harvester.identitysecrets import identity_secret
from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin
from tests.support.paths import CHECKOUT
from tools.release import krew
from tools.release.__main__ import project_version

pytestmark = pytest.mark.integration

PIPELINES = CHECKOUT / "examples" / "pipelines"
# In CI `pip` installs the command, and `gh` and `curl` are for the host's comments.
FUNCTIONS = f"""
caphv() {{ "{sys.executable}" -m caphv "$@"; }}
pip() {{ echo "$@" >> installed; }}
gh() {{ [ "$GITHUB_SERVER_URL" = https://github.com ] && cat "${{@: -1}}" > posted; }}
curl() {{ printf '%s\\n' "$@" > called; cat comment.md > posted; }}
"""
WHEEL = f"{krew.REPOSITORY}/releases/download/v{project_version()}/{krew.wheel_name(project_version())}"
HASH = "5e" * 32


def github(event: str) -> tuple[str, dict[str, str]]:
    """The steps of an event as a script, and the variables that have values in the file."""
    pipeline = yaml.safe_load((PIPELINES / "github.yaml").read_text())
    (job,) = (job for job in pipeline["jobs"].values() if job["if"] == f"github.event_name == '{event}'")
    # Each step is a shell of its own, which its first failing command ends; a failed step ends the job.
    steps = [f"(set -e\n{step['run']}\n)" for step in job["steps"] if "run" in step]
    fixed = {name: text for name, text in pipeline["env"].items() if "${{" not in text}
    return "set -e\n" + "\n".join(steps), {**fixed, "GITHUB_SERVER_URL": "https://github.com"}


def gitea(event: str) -> tuple[str, dict[str, str]]:
    """The same file, with the variables that Gitea and Forgejo set."""
    steps, fixed = github(event)
    server = {"GITHUB_SERVER_URL": "https://git.example.com/", "GITHUB_API_URL": "https://git.example.com/api/v1"}
    pull_request = {"GITHUB_REPOSITORY": "team/clusters", "PULL_REQUEST": "7", "GH_TOKEN": "of-the-job"}
    return steps, {**fixed, **server, **pull_request}


def gitlab(event: str) -> tuple[str, dict[str, str]]:
    pipeline = yaml.safe_load((PIPELINES / "gitlab.yaml").read_text())
    jobs = ("validate", "changes" if event == "pull_request" else "publish")
    scripts = ["\n".join([*pipeline["default"]["before_script"], *pipeline[job]["script"]]) for job in jobs]
    return "set -eo pipefail\n" + "\n".join(f"(\n{script}\n)" for script in scripts), pipeline["variables"]


@dataclass
class Project:
    """A checkout of definitions, in which a pipeline runs."""

    steps: Callable[[str], tuple[str, dict[str, str]]]
    checkout: Path
    fleet: str

    def run(self, event: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the steps of `push` or `pull_request`."""
        script, own = self.steps(event)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(CHECKOUT),
            "HOME": str(self.checkout.parent),
            "FLEET_REPO": self.fleet,
            **own,
            "CAPHV_WHEEL_SHA256": HASH,
            **variables,
        }
        command = ["bash", "-c", FUNCTIONS + script]
        return subprocess.run(command, cwd=self.checkout, env=environment, capture_output=True, text=True, check=False)

    def define(self, name: str = "prod", **spec: Any) -> None:
        (self.checkout / "clusters" / f"{name}.yaml").write_text(yaml.safe_dump(definition(name, **spec)))

    def read(self, name: str) -> str:
        return (self.checkout / name).read_text()


# Gitea runs the file of GitHub: all but its comments, which a test below is about, are the same commands.
@pytest.fixture(params=[github, pytest.param(gitea, marks=pytest.mark.long), gitlab])
def project(request: pytest.FixtureRequest, origin: Origin, tmp_path: Path) -> Project:
    checkout = tmp_path / "checkout"
    (checkout / "clusters").mkdir(parents=True)
    return Project(request.param, checkout, origin.url)


def test_pipeline_shows_and_publishes_a_change_and_says_why_it_fails(project: Project, origin: Origin) -> None:
    """It installs the wheel of a release by its hash.

    No index has caphv: another project could own the name there, and its package would run with the token.
    """
    assert project.run("push", CAPHV_WHEEL_SHA256="").returncode != 0
    assert not (project.checkout / "installed").exists()
    project.define()
    project.define("old")
    first = project.run("push")
    assert first.returncode == 0, first.stderr
    assert {*project.read("installed").splitlines()} == {f"install --only-binary :all: {WHEEL}#sha256={HASH}"}
    assert origin.count() == 1
    # A change is shown, and nothing is pushed before the merge.
    project.define(workers=[{"name": "workers", "replicas": 5}])
    shown = project.run("pull_request")
    assert shown.returncode == 0, shown.stderr
    assert "team-a/prod: workers 2→5" in project.read("posted")
    assert "team-a/prod: workers 2→5" in shown.stdout
    assert origin.count() == 1
    assert project.run("push").returncode == 0
    assert origin.message().startswith("team-a/prod: workers 2→5, ")
    # What is not valid is neither shown nor pushed.
    project.define(workers=[{"name": "workers", "replicas": -1}])
    assert project.run("push").returncode == 1
    assert origin.count() == 2
    # Before the merge: a removal that is not confirmed, and a repository that cannot be read.
    project.define(workers=[{"name": "workers", "replicas": 5}])
    (project.checkout / "clusters" / "old.yaml").unlink()
    held = project.run("pull_request")
    assert held.returncode == 1, held.stderr
    assert "left manifests/team-a/old" in project.read("posted")
    assert "left manifests/team-a/old" in held.stdout
    unreadable = project.run("pull_request", FLEET_REPO=f"{origin.url}-elsewhere")
    assert unreadable.returncode == 2, unreadable.stderr
    assert "error:" in project.read("posted").lower()


@pytest.mark.parametrize("project", [gitea], indirect=True)
def test_pipeline_comments_with_the_api_of_its_server(project: Project) -> None:
    """`gh` knows GitHub only."""
    project.define()
    assert project.run("pull_request").returncode == 0
    called = project.read("called").splitlines()
    assert called[-1] == "https://git.example.com/api/v1/repos/team/clusters/issues/7/comments"
    assert {"--fail", "Authorization: token of-the-job", "@comment.json"} <= set(called)
    assert json.loads(project.read("comment.json")) == {"body": project.read("comment.md")}


def test_external_secret_makes_an_identity() -> None:
    obj = yaml.safe_load((PIPELINES / "external-secret.yaml").read_text())
    wanted = identity_secret("harvester-identity", "team-a", "")
    assert obj["spec"]["target"]["name"] == wanted["metadata"]["name"]
    assert obj["metadata"]["namespace"] == wanted["metadata"]["namespace"]
    assert obj["spec"]["target"]["template"]["metadata"]["labels"] == wanted["metadata"]["labels"]
    assert [row["secretKey"] for row in obj["spec"]["data"]] == list(wanted["stringData"])
