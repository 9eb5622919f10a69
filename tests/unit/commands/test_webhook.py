"""`caphv webhook`: what it needs to start, and how API servers find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.runtime import client, clientconfig, manager
from commands.main import cli
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit


class Started:
    """What the command has a manager run; nothing is served."""

    def __init__(self) -> None:
        self.kubeconfigs: list[str] = []
        self.runnables: list[str] = []
        self.secured: list[bool] = []
        self.certificates: list[Path | None] = []
        self.client = MemoryServer()
        self.failure: Exception | None = None

    async def configuration(self, name: str) -> Any:
        self.kubeconfigs.append(name)
        return SimpleNamespace()

    def manager(self, **options: Any) -> Any:
        self.secured.append(options["metrics_auth"] is not None)
        return SimpleNamespace(add_runnable=lambda each: self.runnables.append(type(each).__name__), run=self._run)

    def guard(self, _client: object, folder: Path | None) -> object:
        self.certificates.append(folder)
        return object()

    async def _run(self, _stop: object) -> None:
        if self.failure:
            raise self.failure


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    found = Started()
    monkeypatch.setattr(clientconfig, "process_configuration", found.configuration)
    monkeypatch.setattr(manager, "Manager", found.manager)
    monkeypatch.setattr(client, "ApiClient", lambda *_, **__: found.client)
    monkeypatch.setattr("caphv.runtime.logs.configure", lambda *_: None)
    monkeypatch.setattr("caphv.runtime.metrics_auth.MetricsAuth", found.guard)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return found


@pytest.fixture
def webhook(started: Started, tmp_path: Path) -> Callable[..., Result]:
    def call(*words: str, **env: str) -> Result:
        arguments = ["webhook", "--webhook-cert-dir", str(tmp_path), *words]
        return CliRunner(env=env).invoke(cli, arguments, prog_name="caphv")

    return call


def test_without_a_cluster_it_only_serves(webhook: Callable[..., Result], started: Started) -> None:
    assert webhook().exit_code == 0
    assert (started.runnables, started.kubeconfigs, started.client.closed) == (["WebhookServer"], [], False)


@pytest.mark.parametrize("words", [("--webhook-url", "https://10.0.0.7:9443"), ("--webhook-service", "team/webhooks")])
def test_where_api_servers_find_it_is_registered(
    webhook: Callable[..., Result], started: Started, words: tuple[str, ...]
) -> None:
    assert webhook(*words, "--kubeconfig", "management.yaml").exit_code == 0
    assert started.runnables == ["WebhookServer", "Registration"]
    assert (started.kubeconfigs, started.client.closed) == (["management.yaml"], True)


def test_in_a_pod_it_registers_its_service_unless_a_kubeconfig_is_given(
    webhook: Callable[..., Result], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clientconfig, "own_namespace", lambda: "caphv-system")
    assert webhook(KUBERNETES_SERVICE_HOST="10.43.0.1").exit_code == 0
    assert started.runnables == ["WebhookServer", "Registration"]
    started.runnables.clear()
    assert webhook("--kubeconfig", "x", KUBERNETES_SERVICE_HOST="10.43.0.1").exit_code == 0
    assert started.runnables == ["WebhookServer"]


def test_guarded_metrics_need_a_client_but_no_registration(webhook: Callable[..., Result], started: Started) -> None:
    assert webhook("--metrics-secure").exit_code == 0
    assert (started.runnables, started.secured, started.client.closed) == (["WebhookServer"], [True], True)
    assert webhook("--webhook-url", "https://10.0.0.7").exit_code == 0
    assert started.secured == [True, False]
    assert webhook("--metrics-secure", "--metrics-cert-dir", "certs").exit_code == 0
    assert started.certificates == [None, Path("certs")]


@pytest.mark.parametrize(
    "words",
    [
        ("--webhook-url", "https://10.0.0.7", "--webhook-service", "team/webhooks"),
        ("--webhook-url", "http://10.0.0.7"),
        ("--webhook-service", "webhooks"),
        ("--webhook-bind-address", "nowhere"),
        ("--webhook-bind-address", "0"),
        ("--metrics-cert-dir", "certs"),
        ("--metrics-bind-address", "nowhere"),
        ("--health-probe-bind-address", "nowhere"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(
    webhook: Callable[..., Result], started: Started, words: tuple[str, ...]
) -> None:
    assert webhook(*words).exit_code == 2
    assert started.runnables == []


def test_a_failure_ends_it_with_status_1(webhook: Callable[..., Result], started: Started) -> None:
    started.failure = OSError("the address is in use")
    assert webhook("--webhook-url", "https://10.0.0.7").exit_code == 1
    assert started.client.closed
