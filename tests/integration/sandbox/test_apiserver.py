"""What clients see of the API servers of a sandbox."""

import json
from collections.abc import Awaitable, Callable

import pytest

from caphv.api.object import NAMESPACES, NODES, Obj
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import Forbidden, NotFound, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, Token

pytestmark = pytest.mark.integration


def namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def test_admin_may_write_and_others_only_what_rbac_allows(api_server: ApiServer) -> None:
    async with api_server.client() as admin, api_server.client("stranger", ["testers"]) as stranger:
        await admin.create(NAMESPACES, namespace("made-by-admin"))
        with pytest.raises(Forbidden, match='User "stranger"'):
            await stranger.get(NAMESPACES, "made-by-admin")


async def test_kubeconfig_opens_its_own_server_only(
    api_server: ApiServer, new_api_server: Callable[..., Awaitable[ApiServer]]
) -> None:
    other = await new_api_server()

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


async def test_servers_of_one_etcd_do_not_share_objects(
    api_server: ApiServer, new_api_server: Callable[..., Awaitable[ApiServer]]
) -> None:
    other = await new_api_server()

    async with api_server.client() as here, other.client() as there:
        await here.create(NAMESPACES, namespace("only-here"))
        with pytest.raises(NotFound):
            await there.get(NAMESPACES, "only-here")


async def test_given_ca_tokens_names_and_audit_log(new_api_server: Callable[..., Awaitable[ApiServer]]) -> None:
    ca = pki.CA.create("workload-ca")
    server = await new_api_server(
        ca=ca, tokens=[Token("t0ken", "jane", ("system:masters",))], extra_sans=["workload.example"], audit=True
    )

    access = Kubeconfig(
        server=server.url, ca=ca.certificate.decode(), token="t0ken", tls_server_name="workload.example"
    )
    client = access.client(name="test")
    await client.list(NODES)
    await client.close()
    entries = [json.loads(line) for line in server.audit_log.read_text().splitlines()]
    mine = [entry for entry in entries if entry["user"]["username"] == "jane"]
    assert [(entry["verb"], entry["objectRef"]["resource"]) for entry in mine] == [("list", "nodes")]


async def test_a_server_that_starts_again_has_port_and_objects_from_before(
    new_api_server: Callable[..., Awaitable[ApiServer]],
) -> None:
    server = await new_api_server()

    url = server.url
    async with server.client() as client:
        await client.create(NAMESPACES, namespace("kept"))
    await server.stop()
    assert server.process is not None
    assert not server.process.alive
    await server.start()
    assert server.url == url
    async with server.client() as client:
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
