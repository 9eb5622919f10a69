"""What an untrusted server answers has the form of an object, or it is an error: nothing behind the client fails."""

import contextlib
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.object import CONFIG_MAPS, Obj, being_deleted, key_of, labels_of, uid_of, well_formed
from caphv.api.resources import HARVESTER_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Forbidden, NotFound, ServerFault
from tests.support.answering import serving

pytestmark = pytest.mark.unit

ONE: Obj = {"metadata": {"name": "one", "namespace": "ns"}}
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3))
ANY = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner), max_leaves=5
)
FIELDS = {
    "metadata": st.fixed_dictionaries(
        {"name": st.just("one") | ANY},
        optional={
            field: ANY | st.just(good)
            for field, good in {
                "namespace": "ns",
                "uid": "1",
                "labels": {"a": "b"},
                "finalizers": ["a/b"],
                "ownerReferences": [{"kind": "Machine"}],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }.items()
        },
    )
    | ANY,
    "spec": ANY,
    "data": ANY,
    "status": ANY | st.fixed_dictionaries({"conditions": ANY}),
}
ANSWERS = ANY | st.fixed_dictionaries({}, optional=FIELDS)


def client_of(answer: Any, **options: Any) -> contextlib.AbstractAsyncContextManager[ApiClient]:
    """A client of a server that answers everything with the same JSON."""

    async def handle(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=orjson.dumps(answer) + b"\n")

    return serving(handle, **options)


def read_as_objects_are(obj: Obj) -> None:
    """What reconciles do with any object."""
    assert key_of(obj).name == "one"
    uid_of(obj)
    being_deleted(obj)
    labels_of(obj).get("a")
    (obj.get("spec") or {}).get("a")
    (obj.get("data") or {}).get("a")
    for owner in obj["metadata"].get("ownerReferences") or ():
        owner.get("kind")
    for condition in (obj.get("status") or {}).get("conditions") or ():
        condition.get("type")


@settings(max_examples=50)
@given(ANSWERS)
async def test_answer_is_an_object_or_an_error(answer: Any) -> None:
    async with client_of(answer, untrusted=True, opaque=True) as client:
        for request in (
            client.get(CONFIG_MAPS, "one", "ns"),
            client.create(CONFIG_MAPS, ONE),
            client.replace(CONFIG_MAPS, ONE),
            client.patch(CONFIG_MAPS, "one", "ns", {}),
            client.apply(CONFIG_MAPS, ONE, manager="test"),
        ):
            try:
                read_as_objects_are(await request)
            except ServerFault as error:
                assert "does not answer like a Kubernetes API server" in error.message  # noqa: PT017
                assert client.limits
        with contextlib.suppress(ServerFault):
            if deleted := await client.delete(CONFIG_MAPS, "one", "ns"):
                assert being_deleted(deleted)


@settings(max_examples=50)
@given(st.lists(ANSWERS, max_size=3) | ANY)
async def test_list_has_objects_or_is_an_error(items: Any) -> None:
    async with client_of({"metadata": {"resourceVersion": "1"}, "items": items}, untrusted=True) as client:
        try:
            listed = (await client.list(CONFIG_MAPS))["items"]
            assert all(map(well_formed, listed))
            assert all(key_of(item).name for item in listed)
        except ServerFault:
            assert client.limits


async def test_answer_about_another_object_is_an_error() -> None:
    async with client_of({"metadata": {"name": "two"}}, untrusted=True) as client:
        with pytest.raises(ServerFault):
            await client.get(CONFIG_MAPS, "one", "ns")


@pytest.mark.parametrize("version", ["9" * 5_000, "9" * 21, "-1", "seven"])
async def test_answer_with_a_resource_version_that_is_not_a_number_is_an_error(version: str) -> None:
    answer = {"metadata": {"name": "one", "resourceVersion": version}, "items": []}
    async with client_of(answer, untrusted=True) as client:
        for request in (client.list(CONFIG_MAPS), client.get(CONFIG_MAPS, "one", "ns")):
            with pytest.raises(ServerFault):
                await request
        assert client.limits


@pytest.mark.parametrize("kind", ["ADDED", "BOOKMARK"])
async def test_event_about_an_object_without_a_name_is_an_error_unless_it_is_a_bookmark(kind: str) -> None:
    event = {"type": kind, "object": {"metadata": {"resourceVersion": "7"}}}
    async with client_of(event, untrusted=True) as client:
        watch = client.watch(CONFIG_MAPS, resource_version="1")
        with pytest.raises(ServerFault) if kind == "ADDED" else contextlib.nullcontext():
            assert await anext(watch) == (kind, event["object"])
        await watch.aclose()


async def test_error_names_the_client_that_asked() -> None:
    async def refuse(_request: web.BaseRequest) -> web.Response:
        return web.json_response({"kind": "Status", "message": "cannot"}, status=403)

    async with serving(refuse) as client:
        with pytest.raises(Forbidden) as error:
            await client.get(CONFIG_MAPS, "one", "ns")
        assert (error.value.server, str(error.value)) == ("test", "cannot")
        with pytest.raises(ApiError) as error:
            await anext(client.watch(CONFIG_MAPS, resource_version="1"))
        assert error.value.server == "test"


@pytest.mark.parametrize("opaque", [False, True])
async def test_kind_without_crd_is_named_unless_a_tenant_chose_the_server(opaque: bool) -> None:
    async def refuse(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"404 page not found\n", status=404)

    async with serving(refuse, opaque=opaque) as client:
        requests = (
            client.get(HARVESTER_MACHINES, "one", "ns"),
            client.list(HARVESTER_MACHINES),
            client.create(HARVESTER_MACHINES, ONE),
            anext(client.watch(HARVESTER_MACHINES, "ns", resource_version="1")),
        )
        for request in requests:
            with pytest.raises(NotFound) as error:
                await request
            path = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/harvestermachines"
            named = f"{client.server} does not serve {path}: install its CRDs there"
            hidden = "does not answer like a Kubernetes API server"
            assert (hidden if opaque else named) in error.value.message
