"""The example pipelines, run step by step by a shell; the host's own programs are replaced by ones that write down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.harvester.identityaccount import identity_secret
from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.integration

PIPELINES = CHECKOUT / "examples" / "pipelines"
# In CI `pip` installs the command, and `gh` and `curl` are for the host's comments.
FUNCTIONS = f"""
set -e
caphv() {{ "{sys.executable}" -m caphv "$@"; }}
pip() {{ :; }}
gh() {{ cat "${{@: -1}}" > posted; }}
curl() {{ cat comment.md > posted; }}
"""


def github(event: str) -> str:
    pipeline = yaml.safe_load((PIPELINES / "github.yaml").read_text())
    (job,) = pipeline["jobs"].values()
    steps = [step for step in job["steps"] if "run" in step]
    return "\n".join(
        step["run"] for step in steps if step.get("if", f"github.event_name == '{event}'").endswith(f"'{event}'")
    )


def gitlab(event: str) -> str:
    pipeline = yaml.safe_load((PIPELINES / "gitlab.yaml").read_text())
    jobs = ("validate", "changes" if event == "pull_request" else "publish")
    lines = [*pipeline["default"]["before_script"], *(line for job in jobs for line in pipeline[job]["script"])]
    return "\n".join(lines)


@pytest.mark.parametrize("steps", [github, gitlab])
def test_pipeline_shows_and_publishes_a_change(steps: Any, origin: Origin, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "clusters").mkdir(parents=True)

    def run(event: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(CHECKOUT),
            "HOME": str(tmp_path),
            "FLEET_REPO": origin.url,
        }
        script = ["bash", "-c", FUNCTIONS + steps(event)]
        return subprocess.run(script, cwd=checkout, env=environment, capture_output=True, text=True, check=False)

    def define(**spec: Any) -> None:
        (checkout / "clusters" / "prod.yaml").write_text(yaml.safe_dump(definition("prod", **spec)))

    define()
    first = run("push")
    assert first.returncode == 0, first.stderr
    assert origin.count() == 1
    # A change is shown, and nothing is pushed before the merge.
    define(workers=[{"name": "workers", "replicas": 5}])
    shown = run("pull_request")
    assert shown.returncode == 0, shown.stderr
    assert "team-a/prod: workers 2→5" in (checkout / "posted").read_text()
    assert origin.count() == 1
    assert run("push").returncode == 0
    assert origin.message().startswith("team-a/prod: workers 2→5, ")
    # What is not valid is neither shown nor pushed.
    define(workers=[{"name": "workers", "replicas": -1}])
    assert run("push").returncode == 1
    assert origin.count() == 2


def test_external_secret_makes_an_identity() -> None:
    obj = yaml.safe_load((PIPELINES / "external-secret.yaml").read_text())
    wanted = identity_secret("harvester-identity", "team-a", "")
    assert obj["spec"]["target"]["name"] == wanted["metadata"]["name"]
    assert obj["metadata"]["namespace"] == wanted["metadata"]["namespace"]
    assert obj["spec"]["target"]["template"]["metadata"]["labels"] == wanted["metadata"]["labels"]
    assert [row["secretKey"] for row in obj["spec"]["data"]] == list(wanted["stringData"])
