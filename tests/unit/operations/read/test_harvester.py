"""Identities of tenants: what one Secret holds must not hide the others."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, cast

import click
import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner

from caphv.api.identities import cluster_identity
from caphv.api.object import NODES, Key, Obj, Resource
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError
from commands.options.harvesters import insecure_option
from operations.read.accounts import kubeconfig_of, read_accounts, secrets_with_token
from operations.read.harvester import Harvesters, read_harvesters
from operations.read.management import list_all
from operations.read.objects import HarvesterObjects, Unseen
from operations.read.servers import answering_client
from operations.read.workload import read_nodes
from tests.support.answering import serving

# It parses: that its body is no certificate shows only when it is used.
BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
# A port where nothing listens.
SERVER = "https://127.0.0.1:9"
NOT_BASE64 = "Secret team/broken: key kubeconfig is not base64"


def secret(**cluster: Any) -> Obj:
    """An identity Secret whose kubeconfig has these fields of its cluster."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **cluster}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
    }
    return {"data": {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}}


class Management:
    """A management cluster with Secrets of namespace `team`."""

    def __init__(self, **secrets: Obj) -> None:
        self._secrets = secrets

    async def get(self, _resource: Resource, name: str, _namespace: str) -> Obj:
        if name == "forbidden":
            raise Forbidden(403, "Forbidden", "")
        if name not in self._secrets:
            raise NotFound(404, "NotFound", "")
        return self._secrets[name]


INSECURE = secret(**{"insecure-skip-tls-verify": True})


def read(**secrets: Obj) -> Harvesters:
    clusters = [{"spec": {"identitySecret": {"namespace": "team", "name": name}}} for name in secrets]
    client: Any = Management(**secrets)
    return asyncio.run(read_harvesters(client, clusters))


def test_a_certificate_that_cannot_be_used_hides_no_other_harvester() -> None:
    broken = secret(**{"certificate-authority-data": base64.b64encode(BROKEN.encode()).decode()})
    found = read(broken=broken, other=secret())
    assert list(found.accounts) == [Key("team", "other")]
    why = {each.what: each.why for each in found.unseen}
    assert why["identity Secret team/broken"].startswith(f"certificate data of {SERVER} cannot be used")
    assert f"Harvester {SERVER} by identity team/other" in why


class Sharing(Management):
    """A management cluster with HarvesterClusterIdentity `shared` for namespaces `a` and those with label `team: x`."""

    def __init__(self, **labels: str) -> None:
        super().__init__(shared=secret())
        self.labels = labels
        self.refusal: ApiError | None = None
        self.asked: list[tuple[str, str]] = []

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        self.asked.append((namespace, name))
        if resource.kind == "Namespace":
            if self.refusal:
                raise self.refusal
            return {"metadata": {"name": name, "labels": self.labels if name == "b" else {}}}
        if resource.kind == "HarvesterClusterIdentity":
            if name != "shared":
                raise NotFound(404, "NotFound", "")
            allowed = {"list": ["a"], "selector": {"matchLabels": {"team": "x"}}}
            reference = {"name": "shared", "namespace": "caphv-system"}
            return {"metadata": {"name": name}, "spec": {"secretRef": reference, "allowedNamespaces": allowed}}
        return await super().get(resource, name, namespace)


def using(namespace: str, name: str = "shared") -> Obj:
    spec = {"identityRef": {"name": name}, "targetNamespace": f"vms-{namespace}"}
    return {"metadata": {"name": "demo", "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize(
    ("labels", "namespaces", "targets"), [({}, "a", {"vms-a"}), ({"team": "x"}, "ab", {"vms-a", "vms-b"})]
)
def test_shared_credentials_are_read_for_namespaces_that_they_allow(
    labels: dict[str, str], namespaces: str, targets: set[str]
) -> None:
    client: Any = Sharing(**labels)
    accounts, hidden = asyncio.run(read_accounts(client, map(using, "abc")))
    (account,) = accounts
    assert (account.identity, account.namespaces) == (cluster_identity("shared"), targets)
    assert {item.what for item in hidden} == {"HarvesterClusterIdentity shared"}
    refused = [namespace for namespace in "abc" if any(f"namespace {namespace};" in item.why for item in hidden)]
    assert refused == [namespace for namespace in "abc" if namespace not in namespaces]


def test_a_cluster_that_may_not_use_an_identity_has_no_harvester() -> None:
    (account,), hidden = asyncio.run(read_accounts(cast(Any, Sharing()), map(using, "ab")))
    objects = HarvesterObjects(server=SERVER)
    found = Harvesters({account.identity: objects}, {account.identity: account}, hidden)
    assert (found.of(using("a")), found.account_of(using("a"))) == (objects, account)
    assert (found.of(using("b")), found.account_of(using("b"))) == (None, None)


@pytest.mark.parametrize("refusal", [Forbidden(403, "Forbidden", "no"), NotFound(404, "NotFound", "no")])
def test_a_namespace_that_is_allowed_by_name_needs_no_labels(refusal: ApiError) -> None:
    client: Any = Sharing(team="x")
    client.refusal = refusal
    (account,), hidden = asyncio.run(read_accounts(client, map(using, "ab")))
    assert account.namespaces == {"vms-a"}
    assert [item.why for item in hidden] == ["labels of namespace b cannot be read: no"]
    assert ("", "a") not in client.asked


@pytest.mark.parametrize("name", ["shared", "absent"])
def test_shared_credentials_are_not_read_for_others(name: str) -> None:
    client: Any = Sharing()
    accounts, (hidden,) = asyncio.run(read_accounts(client, [using("c", name)]))
    assert accounts == []
    assert f"{name}: does not exist, or does not allow namespace c" in hidden.why
    assert ("caphv-system", "shared") not in client.asked


def test_a_kubeconfig_may_be_text_as_in_a_file() -> None:
    encoded = secret(**{"insecure-skip-tls-verify": False})["data"]["kubeconfig"]
    text = base64.b64decode(encoded).decode()
    name = Key("team", "identity")
    for obj in ({"stringData": {"kubeconfig": text}}, {"data": {"kubeconfig": encoded}}):
        assert kubeconfig_of(name, obj).server == SERVER
    assert kubeconfig_of(name, {"data": {"value": encoded}}, "value").server == SERVER
    credential = "harvestercredentialConfig-kubeconfigContent"
    for value in (encoded, base64.b64encode(encoded.encode()).decode()):
        assert kubeconfig_of(name, {"data": {credential: value}}).server == SERVER
    for obj in ({}, {"stringData": None, "data": None}, {"data": {"kubeconfig": ""}}):
        with pytest.raises(KubeconfigError, match="Secret team/identity has no key kubeconfig"):
            kubeconfig_of(name, obj)


def test_a_token_counts_as_shared_also_where_it_cannot_be_used_now() -> None:
    broken = secret(**{"certificate-authority-data": base64.b64encode(BROKEN.encode()).decode()})
    client: Any = Management(broken=broken, insecure=INSECURE, text={"data": {"kubeconfig": "ä"}})
    found = [Key("team", name) for name in ("broken", "insecure", "text", "forbidden", "absent")]
    assert asyncio.run(secrets_with_token(client, found, "t")) == (["team/broken", "team/insecure"], ["team/forbidden"])
    assert asyncio.run(secrets_with_token(client, found, "u")) == ([], ["team/forbidden"])


@pytest.mark.parametrize("content", ["ä", "a", 7])
def test_a_secret_that_is_not_base64_hides_no_other(content: Any) -> None:
    found = read(broken={"data": {"kubeconfig": content}}, other=secret())
    assert [each.why for each in found.unseen if each.what == "identity Secret team/broken"] == [NOT_BASE64]
    assert list(found.accounts) == [Key("team", "other")]
    client: Any = Management(**{"a-kubeconfig": {"data": {"value": content}}})
    nodes = asyncio.run(read_nodes(client, [Key("team", "a")]))
    assert nodes == {
        Key("team", "a"): Unseen("Nodes of cluster team/a", "Secret team/a-kubeconfig: key value is not base64")
    }


def test_credentials_are_not_sent_to_a_server_that_is_not_verified_unless_the_user_allows_it() -> None:
    found: list[Harvesters] = []

    @click.command()
    @insecure_option
    def command() -> None:
        found.append(read(identity=INSECURE))

    for arguments in ([], ["--allow-insecure-identities"], []):
        assert CliRunner().invoke(command, arguments).exit_code == 0
    refused, allowed, again = ({each.what: each.why for each in one.unseen} for one in found)
    assert list(refused) == ["identity Secret team/identity"]
    for part in (f"not sent to {SERVER}", "certificate-authority-data", "--allow-insecure-identities"):
        assert part in refused["identity Secret team/identity"]
    assert list(allowed) == [f"Harvester {SERVER} by identity team/identity"]
    assert again == refused


def paged(pages: int, pause: float) -> Any:
    """A server whose collection has so many pages of one object, each after a pause."""

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(pause)
        page = int(request.query.get("continue") or 0) + 1
        rest = {"continue": str(page)} if page < pages else {}
        return web.json_response(
            {"metadata": {"resourceVersion": "10", **rest}, "items": [{"metadata": {"name": f"node-{page}"}}]}
        )

    return answer


async def test_a_server_with_many_pages_may_take_longer_than_one_that_is_silent() -> None:
    async with serving(paged(10, 0.1)) as other:
        async with answering_client(Kubeconfig(server=other.server), "harvester", 0.7) as client:
            assert len(await list_all(client, NODES)) == 10
        with pytest.raises(TimeoutError):
            async with answering_client(Kubeconfig(server=other.server), "harvester", 0.05) as client:
                await list_all(client, NODES)


async def test_a_server_whose_pages_do_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operations.read.servers._MAX_DELAY_FACTOR", 1)
    async with serving(paged(10**6, 0.01)) as other:
        with pytest.raises(TimeoutError):
            async with answering_client(Kubeconfig(server=other.server), "harvester", 0.3) as client:
                await list_all(client, NODES)
