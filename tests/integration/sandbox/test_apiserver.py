"""What clients see of the API servers of a sandbox."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from caphv.api.object import NAMESPACES, NODES, Obj
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import Forbidden, NotFound, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, Token

pytestmark = pytest.mark.integration


WORKLOAD_CA = pki.CA.create("workload-ca")


@pytest.fixture(scope="module")
def other(etcd_folder: Path) -> Iterator[ApiServer]:
    """A second API server, with a CA, a token and a name that were given to it."""
    tokens = [Token("t0ken", "jane", ("system:masters",))]
    server = ApiServer(etcd_folder, "other", ca=WORKLOAD_CA, tokens=tokens, extra_sans=["workload.example"], audit=True)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


def namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def test_admin_may_write_and_others_only_what_rbac_allows(api_server: ApiServer) -> None:
    async with api_server.client() as admin, api_server.client("stranger", ["testers"]) as stranger:
        await admin.create(NAMESPACES, namespace("made-by-admin"))
        with pytest.raises(Forbidden, match='User "stranger"'):
            await stranger.get(NAMESPACES, "made-by-admin")


async def test_kubeconfig_opens_its_own_server_only(api_server: ApiServer, other: ApiServer) -> None:
    stranger = pki.CA.create("stranger").client("admin", ["system:masters"])
    certificate, key = stranger.certificate.decode(), stranger.key.decode()
    ca = other.ca.certificate.decode()
    with_foreign_certificate = Kubeconfig(server=other.url, ca=ca, client_certificate=certificate, client_key=key)
    with_foreign_ca = Kubeconfig(server=other.url, ca=api_server.ca.certificate.decode(), token="none")
    for access, error in ((with_foreign_certificate, Unauthorized), (with_foreign_ca, Unreachable)):
        client = access.client(name="test")
        with pytest.raises(error):
            await client.list(NODES)
        await client.close()


async def test_servers_of_one_etcd_do_not_share_objects(api_server: ApiServer, other: ApiServer) -> None:
    async with api_server.client() as here, other.client() as there:
        await here.create(NAMESPACES, namespace("only-here"))
        with pytest.raises(NotFound):
            await there.get(NAMESPACES, "only-here")


async def test_given_ca_tokens_names_and_audit_log(other: ApiServer) -> None:
    access = Kubeconfig(
        server=other.url, ca=WORKLOAD_CA.certificate.decode(), token="t0ken", tls_server_name="workload.example"
    )
    client = access.client(name="test")
    await client.list(NODES)
    await client.close()
    entries = [json.loads(line) for line in other.audit_log.read_text().splitlines()]
    mine = [entry for entry in entries if entry["user"].get("username") == "jane"]
    assert [(entry["verb"], entry["objectRef"]["resource"]) for entry in mine] == [("list", "nodes")]


async def test_a_server_that_starts_again_has_port_and_objects_from_before(other: ApiServer) -> None:
    url = other.url
    async with other.client() as client:
        await client.create(NAMESPACES, namespace("kept"))
    await other.stop()
    assert other.process is not None
    assert not other.process.alive
    await other.start()
    assert other.url == url
    async with other.client() as client:
        await client.get(NAMESPACES, "kept")


async def test_apply_creates_updates_and_serves_crds_before_their_objects(api_server: ApiServer) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "lighthouses.test.example"},
        "spec": {
            "group": "test.example",
            "names": {"plural": "lighthouses", "kind": "Lighthouse"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    lighthouse = {
        "apiVersion": "test.example/v1",
        "kind": "Lighthouse",
        "metadata": {"name": "one", "namespace": "shore"},
        "light": "red",
    }

    async with api_server.client() as client:
        await manifests.apply(client, [lighthouse, namespace("shore"), crd])
        await manifests.apply(client, [{**lighthouse, "light": "green"}])
        resource = await Discovery(client).resource(lighthouse)
        assert resource.plural == "lighthouses"
        assert (await client.get(resource, "one", "shore"))["light"] == "green"
        with pytest.raises(LookupError, match="Boat"):
            await Discovery(client).resource({"apiVersion": "test.example/v1", "kind": "Boat"})
