"""`caphv packager run` and the packager's process of `caphv run`: settings, wrong usage, and exit status."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.runtime import logs
from caphv.runtime.errors import ApiError
from caphv.runtime.kubeconfig import KubeconfigError
from caphv.runtime.manager import LeaseLost
from commands.main import cli
from commands.options.endpoints import ControllerOptions
from commands.packager import childprocess as child
from commands.packager.run import child_process
from packager.controller import childprocess, main
from packager.controller.config import PackagerOptions

pytestmark = pytest.mark.unit

REPO = ("--repo", "file:///srv/fleet.git")
ERRORS = [
    (LeaseLost("lost"), 3),
    (KubeconfigError("no kubeconfig"), 1),
    (ApiError(500, "", "broken"), 1),
    (OSError("the address is in use"), 1),
]


class Started:
    """What runs instead of the packager."""

    def __init__(self) -> None:
        self.options: list[PackagerOptions] = []
        self.error: Exception | None = None

    async def run(self, options: PackagerOptions, *_: object) -> None:
        self.options.append(options)
        if self.error:
            raise self.error


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    found = Started()
    monkeypatch.setattr(main, "run", found.run)
    monkeypatch.setattr(childprocess, "serve_child", found.run)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.delenv("CAPHV_GIT_REPO", raising=False)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["packager", "run", *words], prog_name="caphv")


def test_it_follows_the_repository_with_its_defaults(started: Started) -> None:
    result = run(*REPO)
    assert result.exit_code == 0, result.output
    (options,) = started.options
    assert (options.secure_metrics, options.metrics_certificate) == (False, None)


def test_a_certificate_needs_guarded_metrics(started: Started) -> None:
    assert run(*REPO, "--metrics-cert-dir", "certs").exit_code == 2
    assert run(*REPO, "--metrics-secure", "--metrics-cert-dir", "certs").exit_code == 0
    (options,) = started.options
    assert (options.secure_metrics, options.metrics_certificate) == (True, Path("certs"))


@pytest.mark.parametrize("flag", ["git-credentials", "git-cache", "source-credentials"])
def test_paths_reach_the_packager(started: Started, tmp_path: Path, flag: str) -> None:
    path = tmp_path / "given"
    path.mkdir()
    result = run(*REPO, "--source-repo", "file:///srv/definitions.git", f"--{flag}", str(path))
    assert result.exit_code == 0, result.output
    (options,) = started.options
    assert str(path) in repr(options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the repository with --repo URL"),
        (("--repo", "ftp://host/x"), ""),
        ((*REPO, "--chart-repo", "ftp://x"), "is not a chart repository"),
        ((*REPO, "--source-repo", "file:///srv/fleet.git"), ""),
        ((*REPO, "--review", "nonsense"), ""),
    ],
)
def test_wrong_usage_ends_it_before_it_starts(started: Started, words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert (result.exit_code, message in result.output, started.options) == (2, True, [])


def test_without_git_it_names_the_image_that_has_it(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    result = run(*REPO)
    assert (result.exit_code, "git is not in the PATH" in result.output, started.options) == (2, True, [])


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_its_exit_status_says_why_it_ended(started: Started, error: Exception, status: int) -> None:
    started.error = error
    assert run(*REPO).exit_code == status


# In a process of `caphv run`


def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("CAPHV_GIT_REPO", REPO[1])
    provider = ControllerOptions(
        kubeconfig="k",
        namespace="n",
        watch_filter="w",
        leader_elect=True,
        log_level="debug",
        log_format="json",
        metrics_bind_address="0",
        metrics_secure=False,
        metrics_cert_dir="",
        health_probe_bind_address="0",
    )
    process = child_process(provider)
    return dict(json.loads(process._settings))  # type: ignore[attr-defined]


def test_the_process_has_the_flags_of_the_provider(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(monkeypatch)
    assert (found["kubeconfig"], found["namespace"], found["watch_filter"]) == ("k", "n", "w")
    assert (found["log_level"], found["log_format"], found["leader_elect"]) == ("debug", "json", True)


def test_the_process_runs_as_its_settings_say(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["packager", json.dumps(settings(monkeypatch))])
    child.main()
    (options,) = started.options
    assert options.publisher is not None


@pytest.mark.parametrize("error", [error for error, _ in ERRORS], ids=lambda value: type(value).__name__)
def test_the_process_ends_with_status_1(started: Started, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["packager", json.dumps(settings(monkeypatch))])
    started.error = error
    with pytest.raises(SystemExit) as caught:
        child.main()
    assert caught.value.code == 1
