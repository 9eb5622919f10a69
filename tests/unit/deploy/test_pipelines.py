"""The example pipelines let no pull request use the token that may push to the repository that Fleet reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PIPELINES = CHECKOUT / "examples" / "pipelines"
READ, PUSH = "FLEET_READ_TOKEN", "FLEET_TOKEN"
TOKENS = {READ, PUSH, "COMMENT_TOKEN", "github.token"}


def pipeline(name: str) -> Obj:
    found: Obj = yaml.safe_load((PIPELINES / name).read_text(encoding="utf-8"))
    return found


def tokens(part: Any) -> set[str]:
    """The tokens that a part of a pipeline names."""
    text = yaml.safe_dump(part).replace(READ, "read-only")
    return {name for name in TOKENS if name.replace(READ, "read-only") in text}


def secrets(part: Any) -> set[str]:
    """The secrets of GitHub that a part of a pipeline names, however it is written."""
    text = yaml.safe_dump(part)
    return {word for word in ("secrets.", "secrets[", "toJSON(secrets", "secrets: inherit") if word in text}


def github_steps() -> Iterator[tuple[str, Obj]]:
    for job, content in pipeline("github.yaml")["jobs"].items():
        for step in content["steps"]:
            yield job, step


def test_on_github_only_the_step_that_publishes_sees_the_token_that_may_push() -> None:
    assert [(job, step["name"]) for job, step in github_steps() if PUSH in tokens(step)] == [("publish", "Publish")]
    assert [(job, step["name"]) for job, step in github_steps() if READ in tokens(step)] == [
        ("review", "Show what changes")
    ]
    # The environment of the workflow and of jobs is that of each step, also of those that install packages.
    found = pipeline("github.yaml")
    outside = [found | {"jobs": {}}, *(job | {"steps": []} for job in found["jobs"].values())]
    assert [(tokens(part), secrets(part)) for part in outside] == [(set(), set())] * 3


def test_on_github_a_pull_request_cannot_run_the_job_that_publishes() -> None:
    found = pipeline("github.yaml")
    # YAML 1.1 reads the key `on` as true.
    assert found[True]["push"] == {"branches": ["main"]}
    jobs = found["jobs"]
    assert {name: job["if"] for name, job in jobs.items()} == {
        "review": "github.event_name == 'pull_request'",
        "publish": "github.event_name == 'push'",
    }
    assert {name: job.get("environment") for name, job in jobs.items()} == {"review": None, "publish": "fleet"}
    assert "pull-requests" not in (found["permissions"] | jobs["publish"].get("permissions", {}))


def test_on_gitlab_only_the_job_that_publishes_sees_the_token_that_may_push() -> None:
    jobs = pipeline("gitlab.yaml")
    assert {name: found for name, job in jobs.items() if (found := tokens(job))} == {
        "changes": {READ, "COMMENT_TOKEN"},
        "publish": {PUSH},
    }
    # A variable of this name in the project's settings would reach each job.
    assert [name for name, job in jobs.items() if "CAPHV_GIT_PASSWORD" in job.get("variables", job)] == [
        "changes",
        "publish",
    ]
    assert jobs["publish"]["environment"] == "fleet"
    assert jobs["publish"]["rules"] == [{"if": "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH"}]
