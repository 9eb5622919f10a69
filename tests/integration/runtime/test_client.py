"""Requests to a real API server, and what comes back when it refuses or does not answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from caphv.api.object import CONFIG_MAPS, NAMESPACES, SECRETS, Obj, Resource, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.children import free_ports
from tests.support.fixtures import entered

pytestmark = pytest.mark.integration


def config_map(name: str, **data: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": "runtime-client", "name": name},
        "data": data,
    }


@asynccontextmanager
async def admin(server: ApiServer) -> AsyncIterator[ApiClient]:
    async with server.client() as client:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "runtime-client"}}
        await client.apply(NAMESPACES, namespace, manager="test")
        yield client


@pytest.fixture
def client(api_server: ApiServer, runner: asyncio.Runner) -> Iterator[ApiClient]:
    """A client of the administrator, and a namespace for what the tests create."""
    with entered(admin(api_server), runner) as client:
        yield client


async def test_life_of_an_object(client: ApiClient) -> None:
    created = await client.create(CONFIG_MAPS, config_map("life", a="1"))
    assert await client.get(CONFIG_MAPS, "life", "runtime-client") == created
    merged = await client.patch(CONFIG_MAPS, "life", "runtime-client", {"data": {"a": None, "b": "2"}})
    assert merged["data"] == {"b": "2"}
    operations = [{"op": "add", "path": "/data/c", "value": "3"}]
    patched = await client.patch(CONFIG_MAPS, "life", "runtime-client", operations, patch_type="json")
    assert patched["data"] == {"b": "2", "c": "3"}
    replaced = await client.replace(CONFIG_MAPS, {**patched, "data": {"d": "4"}})
    assert replaced["data"] == {"d": "4"}
    applied = await client.apply(CONFIG_MAPS, config_map("life", d="5"), manager="another-client")
    assert applied["data"] == {"d": "5"}
    await client.delete(CONFIG_MAPS, "life", "runtime-client", uid=uid_of(created))
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "life", "runtime-client")


async def test_preconditions_protect_objects_of_others(client: ApiClient) -> None:
    created = await client.create(CONFIG_MAPS, config_map("precious", a="1"))
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAPS, config_map("precious"))
    with pytest.raises(NotFound, match="no longer exists"):
        await client.delete(CONFIG_MAPS, "precious", "runtime-client", uid="00000000-0000-0000-0000-000000000000")
    await client.patch(CONFIG_MAPS, "precious", "runtime-client", {"data": {"a": "2"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIG_MAPS, {**created, "data": {"a": "3"}})
    version = created["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "data": {"a": "3"}}
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, "precious", "runtime-client", patch)
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "precious", "runtime-client", uid=uid_of(created), resource_version=version)
    assert (await client.get(CONFIG_MAPS, "precious", "runtime-client"))["data"] == {"a": "2"}
    precious = await client.get(CONFIG_MAPS, "precious", "runtime-client")
    version = precious["metadata"]["resourceVersion"]
    await client.delete(CONFIG_MAPS, "precious", "runtime-client", resource_version=version)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "precious", "runtime-client")


async def test_dry_run_leaves_nothing_behind(client: ApiClient) -> None:
    assert uid_of(await client.create(CONFIG_MAPS, config_map("dry"), dry_run=True))
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "dry", "runtime-client")


async def test_pages_selectors_and_metadata_alone(client: ApiClient) -> None:
    for number in range(5):
        obj = config_map(f"page-{number}", payload="x")
        obj["metadata"]["labels"] = {"page": "odd" if number % 2 else "even"}
        await client.create(CONFIG_MAPS, obj)
    first = await client.list(CONFIG_MAPS, "runtime-client", label_selector="page", limit=3)
    token = first["metadata"]["continue"]
    rest = await client.list(
        CONFIG_MAPS, "runtime-client", label_selector="page", limit=3, continue_token=token, metadata_only=True
    )
    assert (len(first["items"]), len(rest["items"])) == (3, 2)
    assert all("data" not in obj for obj in rest["items"])
    odd = await client.list(CONFIG_MAPS, "runtime-client", label_selector="page=odd")
    assert [obj["metadata"]["name"] for obj in odd["items"]] == ["page-1", "page-3"]
    one = await client.list(CONFIG_MAPS, "runtime-client", field_selector="metadata.name=page-4")
    assert len(one["items"]) == 1


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../secrets/x", "a?b=c", "a#b", "a%2Fb", "ä ö", "a\nb", "x" * 300])
async def test_odd_names_reach_nothing_but_themselves(client: ApiClient, name: str) -> None:
    with pytest.raises((NotFound, Invalid)):
        await client.get(CONFIG_MAPS, name, "runtime-client")
    with pytest.raises((NotFound, Invalid)):
        await client.delete(CONFIG_MAPS, name, "runtime-client")
    with pytest.raises((NotFound, Invalid, ServerFault)):  # dots as a namespace are a 500 of the server itself
        await client.get(CONFIG_MAPS, "life", name)


async def test_refused_object_says_which_field(client: ApiClient) -> None:
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await client.create(CONFIG_MAPS, config_map("Not A Name"))


async def test_unknown_credentials_are_unauthorized(api_server: ApiServer) -> None:
    access = Kubeconfig(server=api_server.url, ca=api_server.ca.certificate.decode(), token="canary-token")
    client = access.client(name="test")
    with pytest.raises(Unauthorized) as caught:
        await client.get(SECRETS, "s", "default")
    assert "canary" not in repr(caught.value)
    await client.close()


async def test_no_answer_is_unreachable_and_names_the_server(api_server: ApiServer) -> None:
    (closed,) = free_ports(1)
    with_foreign_ca = Kubeconfig(server=api_server.url, token="canary-token")
    accesses = [
        Kubeconfig(server="https://no-such-host.invalid:6443", token="canary-token"),
        Kubeconfig(server=f"https://127.0.0.1:{closed}", token="canary-token"),
        Kubeconfig(server="https://a..b", token="canary-token"),
        Kubeconfig(server=api_server.url, token="canary-token", insecure=True, tls_server_name="a..b"),
        with_foreign_ca,
    ]

    for access in accesses:
        client = access.client(name="test", timeout=5)
        with pytest.raises(Unreachable) as caught:
            await client.get(SECRETS, "s", "default")
        assert access.server in str(caught.value)
        assert "canary" not in repr(caught.value)
        await client.close()


async def test_server_that_accepts_and_says_nothing_is_unreachable_in_time() -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Kubeconfig(server=f"https://127.0.0.1:{port}", token="t").client(name="test", timeout=0.5)
    with pytest.raises(Unreachable, match="timed out"):
        await asyncio.wait_for(client.get(SECRETS, "s", "default"), 5)
    await client.close()
    server.close()


async def test_closed_client_makes_no_new_connections(client: ApiClient) -> None:
    await client.close()
    with pytest.raises(Unreachable, match="closed"):
        await client.get(SECRETS, "s", "default")


async def test_watch_tells_refusals_by_type(client: ApiClient) -> None:
    unknown = Resource("", "v1", "nothings", "Nothing")
    with pytest.raises(NotFound):
        await anext(client.watch(unknown, resource_version="1"))
    with pytest.raises(ApiError):
        await anext(client.watch(CONFIG_MAPS, resource_version="not-a-version"))
