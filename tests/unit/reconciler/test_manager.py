"""The provider starts whenever the management cluster comes to answer it."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unauthorized, Unreachable, error_from
from reconciler import manager
from reconciler.manager import Provider, ProviderOptions

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


class Server:
    """Fails with these errors first; then it answers."""

    def __init__(self, *failures: ApiError | Unreachable) -> None:
        self.failures = list(failures)

    async def request(self, _method: str, _path: str) -> Obj:
        if self.failures:
            raise self.failures.pop(0)
        return {"versions": [{"version": "v1beta2"}]}

    async def get(self, _resource: Resource, name: str) -> Obj:
        return {"metadata": {"name": name, "uid": "management-uid"}}


async def connected(monkeypatch: pytest.MonkeyPatch, server: Server) -> dict[str, object]:
    made: dict[str, object] = {}
    monkeypatch.setattr(Provider, "__init__", lambda _self, _client, _options, **given: made.update(given))
    await Provider.connect(cast(ApiClient, server), ProviderOptions())
    return made


@pytest.mark.parametrize(
    "failure",
    [
        error_from(503, {"message": "etcd is starting"}),
        error_from(503, {"message": "shutting down"}, "1"),
        error_from(429, {}, "1"),
        error_from(404, {"message": "no such group"}),
        Unreachable("no answer"),
    ],
    ids=["503", "503 with Retry-After", "429", "404", "no answer"],
)
async def test_start_waits_for_a_management_cluster_that_fails(
    monkeypatch: pytest.MonkeyPatch, failure: ApiError | Unreachable
) -> None:
    made = await connected(monkeypatch, Server(failure, failure))
    assert (made["cluster_api_version"], made["management_cluster"]) == ("v1beta2", "management-uid")


async def test_start_waits_for_rights_and_says_which_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = 'namespaces "kube-system" is forbidden: User "caphv" cannot get resource "namespaces"'
    with caplog.at_level(logging.WARNING, manager.__name__):
        await connected(monkeypatch, Server(error_from(403, {"message": message})))
    assert caplog.messages == [f"management cluster refuses this provider, retrying in 0.5 s: {message}"]


async def test_start_ends_with_credentials_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unauthorized):
        await connected(monkeypatch, Server(error_from(401, {})))
