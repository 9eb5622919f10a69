"""The packager reads which Fleet runs, by a right that it can do without."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web

from caphv.api.object import Obj
from packager.controller.fleetrelease import add_fleet_release
from packager.rendering.options import RenderOptions
from tests.support.answering import serving

pytestmark = pytest.mark.unit

PATH = "/apis/apps/v1/namespaces/cattle-fleet-system/deployments/fleet-controller"


async def release(status: int, body: Obj) -> str:
    """Return the release that is used when the API server gives this answer."""

    async def answer(request: web.Request) -> web.Response:
        assert (request.method, request.path) == ("GET", PATH)
        return web.json_response(body, status=status)

    async with serving(answer) as client:
        return (await add_fleet_release(client, RenderOptions())).fleet_version


def deployment(image: str) -> Obj:
    return {"spec": {"template": {"spec": {"containers": [{"image": "busybox"}, {"image": image}]}}}}


def refusal(code: int, reason: str) -> Obj:
    return {"kind": "Status", "code": code, "reason": reason, "message": f"deployments is {reason}"}


async def test_release_of_the_running_fleet_is_used() -> None:
    assert await release(200, deployment("registry.example.com/rancher/fleet:v0.16.1")) == "v0.16.1"


async def test_an_unsupported_fleet_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert await release(200, deployment("rancher/fleet:v0.12.5")) == "v0.12.5"
    assert "older than 0.13.0" in caplog.text


@pytest.mark.parametrize("image", ["rancher/fleet:latest", "rancher/fleet@sha256:0", ""])
async def test_an_image_without_release_means_the_oldest_one(image: str) -> None:
    assert await release(200, deployment(image)) == ""


async def test_a_missing_right_is_named_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    assert await release(403, refusal(403, "Forbidden")) == ""
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Deployment cattle-fleet-system/fleet-controller cannot be read" in record.getMessage()
    assert "set CAPHV_FLEET_VERSION, or grant get on this Deployment" in record.getMessage()


async def test_without_fleet_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert await release(404, refusal(404, "NotFound")) == ""
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_given_release_is_not_looked_up() -> None:
    async def answer(_: web.Request) -> web.Response:
        raise AssertionError("a request")

    async with serving(answer) as client:
        options = await add_fleet_release(client, RenderOptions(fleet_version="v0.14.0"))
    assert options.fleet_version == "v0.14.0"
