"""What credentials are exchanged for: account, rights, server, and what a hostile Harvester may claim."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
import yaml

from caphv.api.names import OWNER_ANNOTATION, OWNER_CLUSTER_ANNOTATION, OWNER_UID_ANNOTATION
from caphv.api.object import Key, Obj, annotations_of, at
from caphv.api.ownership import Owner, record
from caphv.api.tokenrenewal import Renewal, bound_name
from caphv.runtime.errors import Forbidden
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig
from reconciler.harvester import identityaccount, tokenexchange
from reconciler.harvester.accountobjects import Account
from reconciler.harvester.tokenexchange import Credentials, ExchangeError, Token
from tests.support import kubeconfigs
from tests.support.reconciler.tokenissuer import START, USER_TOKEN, Clock, Issuer, IssuerClient, encoded

pytestmark = pytest.mark.unit

OWNER = Owner("HarvesterClusterIdentity", "", "shared", "uid", "management")
RENEWAL = Renewal(600, Key("accounts", "caphv"), ("vms",))
BOUND = bound_name("uid", "management", "caphv")
OWN_BOUND = bound_name("uid", "management", "own")
RANCHER = "https://rancher.example.com/k8s/clusters/c-m-1"


def credentials(server: str = "https://harvester", token: str = USER_TOKEN, **cluster: str) -> Credentials:
    config = kubeconfigs.with_cluster(server=server, **cluster)
    config["users"][0]["user"] = {"token": token}
    text = yaml.safe_dump(config)
    return Credentials(text, parse_kubeconfig(text))


class Harvester(Issuer):
    """A Harvester that remembers who was connected where."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.servers: list[str] = []

    def connect(self, access: Kubeconfig) -> Any:
        self.servers.append(access.server)
        return IssuerClient(self, access)

    async def exchange(self, own: Credentials, renewal: Renewal = RENEWAL) -> Token:
        return await tokenexchange.exchange(self.connect, own, renewal, OWNER)


async def test_an_administrator_s_credentials_make_an_account_that_renews_and_revokes_itself_only() -> None:
    harvester = Harvester()
    token = await harvester.exchange(credentials())
    assert (token.account, token.seconds, token.is_bound) == (Key("accounts", "caphv"), 600, True)
    role = cast("Obj", harvester.find("Role", BOUND, "accounts"))
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in role["rules"]] == [
        (["serviceaccounts/token"], ["caphv"], ["create"]),
        (["secrets"], [BOUND], ["get", "delete"]),
    ]
    # With the Secret, Harvester deletes them, too.
    bound = cast("Obj", harvester.find("Secret", BOUND, "accounts"))
    for kind in ("Role", "RoleBinding"):
        (owner,) = cast("Obj", harvester.find(kind, BOUND, "accounts"))["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Secret", bound["metadata"]["uid"])
    assert "data" not in bound
    # There is no token that does not end.
    assert not [obj for obj in harvester.requests if obj.startswith("apply Secret")]


@pytest.mark.parametrize(
    ("server", "given", "address", "expected"),
    [
        ("https://harvester:6443", "", "10.0.0.1", "https://harvester:6443"),
        (RANCHER, "", "10.0.0.1", "https://10.0.0.1:6443"),
        (RANCHER, "", "", "https://rancher.example.com:6443"),
        (RANCHER, "https://harvester.example.com", "10.0.0.1", "https://harvester.example.com"),
    ],
)
async def test_tokens_are_sent_to_a_server_that_accepts_them(
    server: str, given: str, address: str, expected: str
) -> None:
    harvester = Harvester()
    if address:
        metadata = {"name": "ingress-expose", "namespace": "kube-system"}
        metadata["annotations"] = {"kube-vip.io/loadbalancerIPs": address}
        harvester.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
    own = credentials(server, **{"proxy-url": "http://proxy:3128"})
    token = await harvester.exchange(own, Renewal(600, RENEWAL.account, ("vms",), given))
    access = token.credentials.access
    assert (access.server, access.proxy_url) == (expected, "http://proxy:3128")
    assert harvester.servers == [server, expected], "it was tried there"


async def test_the_provider_s_kubeconfig_has_nothing_else_of_the_user_s() -> None:
    """A kubeconfig of kubectl has other clusters and stale contexts, and names may occur twice."""
    config = yaml.safe_load(credentials(**{"tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}).text)
    user = config["contexts"][0]["context"]["user"]
    config["contexts"] += [{"name": "stale"}, {"name": config["current-context"], "context": {"user": "other"}}, "text"]
    config["users"] += [{"name": "other", "user": {"token": "other-credential"}}, {"name": user}]
    text = yaml.safe_dump(config)
    harvester = Harvester()
    token = await harvester.exchange(Credentials(text, parse_kubeconfig(text)))
    renewed = await tokenexchange.renew(harvester.connect, token.credentials, 600)
    assert renewed.credentials.access.token != token.credentials.access.token
    for found in (token, renewed):
        access = found.credentials.access
        assert (access.server, access.tls_server_name) == ("https://harvester", "kubernetes")
        assert access.proxy_url == "http://proxy:3128"
        assert "other" not in found.credentials.text
        assert [len(yaml.safe_load(found.credentials.text)[part]) for part in ("clusters", "users", "contexts")] == [
            1,
            1,
            1,
        ]


async def test_the_provider_s_kubeconfig_keeps_the_namespace_and_no_proxy_of_the_environment() -> None:
    config = yaml.safe_load(credentials().text)
    config["contexts"][0]["context"]["namespace"] = "team"
    text = yaml.safe_dump(config)
    access = replace(parse_kubeconfig(text), proxy_url="http://proxy:3128", proxy_of_environment=True)
    token = await Harvester().exchange(Credentials(text, access))
    assert yaml.safe_load(token.credentials.text)["contexts"][0]["context"]["namespace"] == "team"
    assert "proxy" not in token.credentials.text


async def test_thousands_of_bindings_of_others_do_not_disturb() -> None:
    """Rancher writes some for each member of a project, in each of its namespaces."""
    harvester = Harvester()
    harvester.longest_page = 500
    api_version = "rbac.authorization.k8s.io/v1"
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for number in range(600):
            metadata = {"name": f"rb-{number}", **({"namespace": "project"} if kind == "RoleBinding" else {})}
            harvester.put({"apiVersion": api_version, "kind": kind, "metadata": metadata})
    assert (await harvester.exchange(credentials())).is_bound


async def test_bindings_of_another_form_on_harvester_do_not_disturb() -> None:
    harvester = Harvester()
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
    reference = {"name": "harvesterhci.io:cloudprovider"}
    for number, more in enumerate(({}, {"roleRef": None}, {"roleRef": reference, "subjects": [{"kind": "User"}]})):
        harvester.put({**kind, "metadata": {"name": f"odd-{number}"}, **more})
    assert (await harvester.exchange(credentials())).is_bound


BINDING = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
SUBJECT = {"kind": "ServiceAccount", "name": "caphv", "namespace": "accounts"}


async def test_two_identities_of_a_management_cluster_never_share_an_account() -> None:
    """A token of one would be one of the other, whose later rights it would have."""
    harvester = Harvester()
    await harvester.exchange(credentials())
    other = Owner(OWNER.kind, "", "other", "other-uid", "management")

    async def exchange(targets: tuple[str, ...], owner: Owner = other) -> Token:
        renewal = Renewal(600, RENEWAL.account, targets)
        return await tokenexchange.exchange(harvester.connect, credentials(), renewal, owner)

    harvester.requests.clear()
    for targets in ((), ("vms",), ("vms", "more"), ("more",)):
        with pytest.raises(ExchangeError, match="was created for HarvesterClusterIdentity shared: name an account"):
            await exchange(targets)
    assert harvester.requests == [], "no right was added"
    # Its own identity may change what it asks for, and so may one of the same name that follows it.
    assert (await exchange(("vms", "more"), OWNER)).is_bound
    former, follower = OWNER, Owner(OWNER.kind, "", "shared", "uid-2", "management")
    with pytest.raises(ExchangeError, match="has other rights"):
        await exchange(("vms",), follower)
    assert (await exchange(("vms", "more", "most"), follower)).is_bound
    with pytest.raises(ExchangeError, match="has other rights"):
        await exchange(("vms",), former)
    # As after `clusterctl move`, which leaves the identity on the source.
    moved = Owner(OWNER.kind, "", "shared", "uid-3", "target")
    assert (await exchange(("vms", "more", "most"), moved)).is_bound
    with pytest.raises(ExchangeError, match="has other rights"):
        await exchange(("vms", "more", "most", "any"), moved)


async def test_an_account_of_a_user_gets_no_rights_by_its_name() -> None:
    harvester = Harvester()
    harvester.put(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "caphv", "namespace": "accounts"}}
    )
    reference = {"kind": "ClusterRole", "name": "cluster-admin"}
    harvester.put({**BINDING, "metadata": {"name": "x", "namespace": "a"}, "roleRef": reference, "subjects": [SUBJECT]})
    harvester.requests.clear()
    with pytest.raises(ExchangeError, match="ServiceAccount accounts/caphv on Harvester exists, and has other rights"):
        await harvester.exchange(credentials())
    assert harvester.requests == []


async def test_an_account_of_caphv_identity_create_with_the_same_rights_is_used() -> None:
    harvester = Harvester()
    connected = cast("Any", IssuerClient(harvester, credentials().access))
    await identityaccount.create(connected, Account("caphv", "accounts", ("vms",)), "", lasting_token=False)
    assert (await harvester.exchange(credentials())).account == RENEWAL.account


async def test_the_namespace_of_an_account_is_no_target_namespace() -> None:
    with pytest.raises(ExchangeError, match="namespace accounts is one of targetNamespaces"):
        await Harvester().exchange(credentials(), Renewal(600, RENEWAL.account, ("vms", "accounts")))


async def test_an_account_renews_its_own_token_and_no_objects_are_made_for_it() -> None:
    harvester = Harvester()
    claims = {"sub": "system:serviceaccount:accounts:own", "exp": (START + timedelta(days=1)).timestamp()}
    own = credentials(token=encoded(claims))
    token = await harvester.exchange(own, Renewal(600))
    assert (token.account, token.is_bound) == (Key("accounts", "own"), True)
    assert harvester.requests == [f"create Secret {OWN_BOUND}"]
    harvester.errors["create Secret"] = Forbidden(403, "Forbidden", "may not")
    token = await harvester.exchange(own, Renewal(600))
    assert not token.is_bound
    harvester.errors["create token"] = Forbidden(403, "Forbidden", "may not create serviceaccounts/token")
    with pytest.raises(ExchangeError, match=r"create serviceaccounts/token; set spec\.tokenRenewal\.serviceAccount"):
        await harvester.exchange(own, Renewal(600))
    with pytest.raises(ExchangeError, match=r"set spec\.tokenRenewal\.serviceAccount"):
        await harvester.exchange(credentials(), Renewal(600))


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"sub": "system:serviceaccount:accounts:caphv"},
        {"sub": "system:serviceaccount:accounts:caphv", "iat": 10, "exp": 5},
        {"sub": "user", "iat": 10, "exp": 50},
        {"sub": ["system:serviceaccount:a:b"], "iat": "x", "exp": {}},
    ],
)
async def test_a_token_that_states_no_end_is_refused(monkeypatch: pytest.MonkeyPatch, claims: Obj) -> None:
    harvester = Harvester()
    monkeypatch.setattr(harvester, "issue", lambda *_: {"status": {"token": encoded(claims)}})
    with pytest.raises(ExchangeError):
        await harvester.exchange(credentials())


@pytest.mark.parametrize("answer", [{}, {"status": None}, {"status": {"token": ""}}, [], "token"])
async def test_an_answer_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    harvester = Harvester()
    monkeypatch.setattr(harvester, "issue", lambda *_: answer)
    with pytest.raises(ExchangeError, match="without a token"):
        await harvester.exchange(credentials())


async def test_a_token_does_not_live_longer_than_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = Harvester()
    claims = {"sub": "system:serviceaccount:accounts:caphv", "iat": 0, "exp": 10**12, "kubernetes.io": "x"}
    monkeypatch.setattr(harvester, "issue", lambda *_: {"status": {"token": encoded(claims)}})
    monkeypatch.setattr(harvester, "check", lambda _: None)
    token = await harvester.exchange(credentials())
    assert (token.seconds, token.is_bound) == (600, False)


async def test_only_the_secret_of_the_identity_is_deleted() -> None:
    harvester = Harvester()
    token = await harvester.exchange(credentials())
    bound = cast("Obj", harvester.find("Secret", BOUND, "accounts"))
    foreign = {**bound, "metadata": {**bound["metadata"], "annotations": {"caphv.io/owner-uid": "another"}}}
    harvester.put(foreign)
    await tokenexchange.revoke(harvester.connect, token.credentials, "management")
    harvester.put(bound)
    await tokenexchange.revoke(harvester.connect, token.credentials, "another")
    assert at(harvester.find("Secret", BOUND, "accounts"), "metadata", "name") == BOUND
    await tokenexchange.revoke(harvester.connect, token.credentials, "management")
    assert harvester.find("Secret", BOUND, "accounts") is None


@pytest.mark.parametrize("missing", [OWNER_ANNOTATION, OWNER_UID_ANNOTATION, OWNER_CLUSTER_ANNOTATION])
async def test_a_secret_with_a_part_of_a_record_is_not_deleted(missing: str) -> None:
    harvester = Harvester()
    token = await harvester.exchange(credentials())
    bound = cast("Obj", harvester.find("Secret", BOUND, "accounts"))
    rest = {name: value for name, value in annotations_of(bound).items() if name != missing}
    harvester.put({**bound, "metadata": {**bound["metadata"], "annotations": rest}})
    await tokenexchange.revoke(harvester.connect, token.credentials, "management")
    assert harvester.find("Secret", BOUND, "accounts")


async def test_two_identities_that_name_one_account_at_once_do_not_share_rights() -> None:
    class Yielding(IssuerClient):
        def __getattr__(self, name: str) -> Any:
            method = IssuerClient.__getattr__(self, name)

            async def call(*words: Any, **options: Any) -> Any:
                answer = await method(*words, **options)
                await asyncio.sleep(0)
                return answer

            return call

    harvester = Issuer(Clock())

    async def exchange(name: str) -> Any:
        owner = Owner("HarvesterClusterIdentity", "", name, f"{name}-uid", "management")
        renewal = Renewal(600, Key("accounts", "caphv"), (f"vms-{name}",))
        return await tokenexchange.exchange(lambda access: Yielding(harvester, access), credentials(), renewal, owner)

    results = await asyncio.gather(exchange("a"), exchange("b"), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["ExchangeError", "Token"]


async def test_bindings_that_an_account_left_behind_are_rights_too() -> None:
    harvester = Issuer(Clock())
    subject = {"kind": "ServiceAccount", "name": "caphv", "namespace": "accounts"}
    reference = {"kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "x"}}
    harvester.put({**binding, "roleRef": reference, "subjects": [subject]})
    owner = Owner("HarvesterClusterIdentity", "", "a", "uid", "management")
    with pytest.raises(ExchangeError, match="other rights"):
        await tokenexchange.exchange(
            lambda access: IssuerClient(harvester, access),
            credentials(),
            Renewal(600, Key("accounts", "caphv"), ("vms",)),
            owner,
        )


async def test_an_account_without_a_right_to_the_published_ca_uses_that_of_the_user() -> None:
    harvester = Issuer(Clock())
    harvester.errors["get ConfigMap"] = Forbidden(403, "Forbidden", "configmaps kube-root-ca.crt is forbidden")
    claims = {"sub": "system:serviceaccount:accounts:own", "exp": (harvester.clock.now + timedelta(days=1)).timestamp()}
    owner = Owner("HarvesterClusterIdentity", "", "a", "uid", "management")
    renewal = Renewal(600, None, (), "https://10.0.0.1:6443")
    await tokenexchange.exchange(
        lambda access: IssuerClient(harvester, access), credentials(token=encoded(claims)), renewal, owner
    )


async def test_no_account_may_issue_tokens_of_another_one() -> None:
    """In its target namespaces, an account may create tokens of any ServiceAccount: neither of two comes second."""
    harvester = Harvester()

    async def exchange(name: str, namespace: str, target: str) -> Token:
        owner = Owner(OWNER.kind, "", name, f"{name}-uid", "management")
        renewal = Renewal(600, Key(namespace, name), (target,))
        return await tokenexchange.exchange(harvester.connect, credentials(), renewal, owner)

    await exchange("first", "accounts", "vms")
    harvester.requests.clear()
    with pytest.raises(ExchangeError, match="target namespace accounts has account accounts/first"):
        await exchange("second", "others", "accounts")
    with pytest.raises(ExchangeError, match="namespace vms is a target namespace of another account"):
        await exchange("second", "vms", "team")
    assert harvester.requests == []
    assert (await exchange("second", "accounts", "vms")).is_bound


async def test_an_account_that_was_created_meanwhile_is_another_identity_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look for it and its creation."""
    harvester = Harvester()
    create = harvester.create
    other = Owner(OWNER.kind, "", "other", "other-uid", "management")

    async def be_late(resource: Any, obj: Obj, **options: Any) -> Obj:
        if resource.kind == "ServiceAccount" and not harvester.stored(resource):
            harvester.put(
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    **obj,
                    "metadata": {**obj["metadata"], "annotations": record(other)},
                }
            )
        return await create(resource, obj, **options)

    monkeypatch.setattr(harvester, "create", be_late)
    with pytest.raises(ExchangeError, match="was created for HarvesterClusterIdentity other"):
        await harvester.exchange(credentials())
    assert not harvester.find("ClusterRoleBinding", "caphv-account:accounts:caphv")
