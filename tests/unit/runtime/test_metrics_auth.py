"""The guard of the metrics: whom it lets in, how often it asks, and by which certificate it is known."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from caphv.api.object import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Obj, Resource
from caphv.runtime import metrics_auth
from caphv.runtime.errors import Unreachable
from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.metrics_auth import Decision, MetricsAuth, TokenAuthorizer
from commands.main import cli
from sandbox.processes import children, pki
from tests.support import memory

pytestmark = pytest.mark.unit

GOOD, POOR = "token-of-prometheus", "token-of-a-guest"


class Server:
    """An API server that knows two accounts, of which one may read metrics."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Obj]] = []
        self.away = False

    async def request(self, _method: str, _path: str, *, resource: Resource, body: Obj) -> Obj:
        self.asked.append((resource.kind, body["spec"]))
        if self.away:
            raise Unreachable("https://management: away")
        await asyncio.sleep(0)
        if resource is TOKEN_REVIEWS:
            known = body["spec"]["token"] in (GOOD, POOR)
            user = {"username": body["spec"]["token"].removeprefix("token-of-"), "groups": ["system:authenticated"]}
            return {"status": {"authenticated": known, "user": user} if known else {}}
        assert resource is SUBJECT_ACCESS_REVIEWS
        return {"status": {"allowed": body["spec"]["user"] == "prometheus"}}

    @property
    def count(self) -> int:
        return len(self.asked)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def reviews() -> tuple[Server, Clock, TokenAuthorizer]:
    server, clock = Server(), Clock()
    return server, clock, TokenAuthorizer(server, clock=clock)  # type: ignore[arg-type]


async def test_api_server_says_who_it_is_and_whether_that_account_may_get_the_path() -> None:
    server, _, authorizer = reviews()
    assert await authorizer.authorize(GOOD, "/metrics") is Decision.ALLOWED
    spec = {"user": "prometheus", "uid": "", "groups": ["system:authenticated"], "extra": {}}
    asked = {**spec, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    assert server.asked == [("TokenReview", {"token": GOOD}), ("SubjectAccessReview", asked)]
    assert await authorizer.authorize(POOR, "/metrics") is Decision.FORBIDDEN
    assert await authorizer.authorize("token-of-an-impostor", "/metrics") is Decision.UNKNOWN


async def test_answers_are_remembered_for_a_minute_and_refusals_for_ten_seconds() -> None:
    server, clock, authorizer = reviews()
    for token, lasts, each in ((GOOD, 60, 2), (POOR, 10, 2), ("other", 10, 1)):
        start, before = clock.now, server.count
        for seconds in (0, lasts / 2, lasts - 0.1):
            clock.now = start + seconds
            await authorizer.authorize(token, "/metrics")
        assert server.count - before == each
        clock.now = start + lasts
        await authorizer.authorize(token, "/metrics")
        assert server.count - before == 2 * each


async def test_what_is_allowed_for_one_path_is_not_for_another() -> None:
    server, _, authorizer = reviews()
    await authorizer.authorize(GOOD, "/metrics")
    await authorizer.authorize(GOOD, "/other")
    assert [spec["nonResourceAttributes"]["path"] for _, spec in server.asked[1::2]] == ["/metrics", "/other"]


async def test_many_at_once_with_one_token_ask_little_and_many_tokens_fill_no_memory() -> None:
    server, _, authorizer = reviews()
    await asyncio.gather(*(authorizer.authorize(GOOD, "/metrics") for _ in range(100)))
    assert server.count <= 8
    sizes = []
    for start in (0, 600):
        for number in range(start, start + 600):
            await authorizer.authorize(f"guess-{number}", "/metrics")
        server.asked.clear()
        sizes.append(memory.size(authorizer))
    assert sizes[1] <= sizes[0]
    assert not any("guess" in str(value) for value in memory.held(authorizer) if isinstance(value, str | bytes))


class Running:
    """A process that serves protected metrics."""

    def __init__(self, folder: Path | None = None) -> None:
        (self.port,) = children.free_ports(1)
        self.server = Server()
        guard = MetricsAuth(self.server, folder)  # type: ignore[arg-type]
        manager = Manager(addresses=BindAddresses(f"127.0.0.1:{self.port}", ""), metrics_auth=guard)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(manager.run(self.stop))

    async def get(self, authorization: str | None, ca: pki.CA | None = None, path: str = "/metrics") -> tuple[int, str]:
        context = ssl.create_default_context(cadata=ca.certificate.decode()) if ca else False
        headers = {"Authorization": authorization} if authorization is not None else {}
        async with asyncio.timeout(20):
            while True:
                try:
                    async with (
                        aiohttp.ClientSession() as session,
                        session.get(f"https://127.0.0.1:{self.port}{path}", ssl=context, headers=headers) as answer,
                    ):
                        return answer.status, await answer.text()
                except aiohttp.ClientConnectorCertificateError:
                    raise
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.02)

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.task


async def test_only_accounts_that_may_read_metrics_get_them() -> None:
    async with Running() as running:
        for header in (None, "", "Basic Zm9v", "Bearer", "Bearer  ", f"Bearer {GOOD}\u00e9"):
            status, text = await running.get(header)
            assert (status, "caphv_" in text) == (401, False)
        assert running.server.count == 0
        assert (await running.get("Bearer token-of-an-impostor"))[0] == 401
        assert (await running.get(f"Bearer {POOR}"))[0] == 403
        assert (await running.get(None, path="/other"))[0] == 401
        status, text = await running.get(f"bearer {GOOD}")
        assert (status, "caphv_leader" in text) == (200, True)


async def test_while_the_api_server_is_unreachable_no_one_new_is_let_in_and_no_token_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Running() as running:
        running.server.away = True
        assert (await running.get(f"Bearer {GOOD}"))[0] == 503
        running.server.away = False
        assert (await running.get(f"Bearer {GOOD}"))[0] == 200
        running.server.away = True
        assert (await running.get(f"Bearer {GOOD}"))[0] == 200
    assert "cannot authorize a request for /metrics" in caplog.text
    assert GOOD not in caplog.text


def put(folder: Path, ca: pki.CA) -> None:
    pair = ca.server(["127.0.0.1"])
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "tls.crt").write_bytes(pair.certificate)


async def test_certificate_of_a_folder_is_followed_and_until_then_there_is_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_auth, "_LOOK_SECONDS", 0.05)
    first, second = pki.CA.create("first"), pki.CA.create("second")
    async with Running(tmp_path) as running:
        assert (await running.get(f"Bearer {GOOD}"))[0] == 200
        for ca in (first, second):
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await running.get(f"Bearer {GOOD}", ca)
            put(tmp_path, ca)
            async with asyncio.timeout(20):
                while True:
                    try:
                        assert (await running.get(f"Bearer {GOOD}", ca))[0] == 200
                        break
                    except aiohttp.ClientConnectorCertificateError:
                        await asyncio.sleep(0.1)


def test_options_of_a_certificate_that_nothing_would_serve_are_refused() -> None:
    repository = ["--repo", "https://git.example.com/fleet.git"]
    for command in (["run"], ["webhook"], ["packager", "run", *repository]):
        result = CliRunner().invoke(cli, [*command, "--metrics-cert-dir", "certificates"])
        assert result.exit_code == 2
        assert "--metrics-secure" in result.output
