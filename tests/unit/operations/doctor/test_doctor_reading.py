"""What doctor reads on a management cluster, and what it passes over."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from caphv.api import names, resources
from caphv.api.clusterapi import cluster_name
from caphv.api.identities import cluster_identity
from caphv.api.object import Key, Obj, at, key_of
from caphv.api.tokenrenewal import SECRET_TYPE, issued_at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Unauthorized, Unreachable
from operations.doctor import reading
from operations.doctor.reading import read_management_facts
from operations.read.accounts import read_accounts
from operations.read.objects import ManagementObjects
from operations.read.servers import HARVESTER_SECONDS
from tests.support import kubeconfigs
from tests.support.clusters import Builder
from tests.support.doctor import ManagementServer, certificate_program
from tests.support.ippools import pool
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit


def webhooks(*configurations: Obj) -> Obj:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "caphv-validating-webhook-configuration"},
        "webhooks": [{"clientConfig": each} for each in configurations],
    }


def endpoints(name: str, service: str) -> Obj:
    labels = {"kubernetes.io/service-name": service}
    metadata = {"name": name, "namespace": "caphv-system", "labels": labels}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata}


SERVICE = {"service": {"name": "webhooks", "namespace": "caphv-system"}}


@pytest.mark.parametrize(
    ("configuration", "names"),
    [
        (webhooks(SERVICE), ["own"]),
        (webhooks({"url": "https://10.0.0.1"}), []),
        (webhooks(), []),
        (None, []),
    ],
)
async def test_endpoints_are_those_of_the_service_of_the_webhook(configuration: Obj | None, names: list[str]) -> None:
    server = ManagementServer(endpoints("own", "webhooks"), endpoints("other", "another"))
    if configuration:
        server.put(configuration)
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert (facts.version, facts.cluster_api) == ("v1.34.0", ("v1beta2", "v1beta1"))
    assert [obj["metadata"]["name"] for obj in facts.endpoints or ()] == names


OWN, LEFT, OTHER = "caphv-validating-webhook-configuration", "validating-webhook-configuration", "policies"
TO_US = {"service": {"name": "caphv-webhook-service", "namespace": "caphv-system"}}


@pytest.mark.parametrize(
    ("present", "own", "former"),
    [
        ({OWN: [TO_US], OTHER: [SERVICE]}, OWN, []),
        ({OWN: [TO_US], LEFT: [SERVICE, TO_US]}, OWN, [LEFT]),
        ({LEFT: [TO_US]}, LEFT, []),
        ({OTHER: [SERVICE, {"url": "https://10.0.0.1"}], LEFT: []}, None, []),
    ],
)
async def test_configurations_of_other_installations_are_those_that_lead_to_the_service(
    present: dict[str, list[Obj]], own: str | None, former: list[str]
) -> None:
    server = ManagementServer()
    for name, entries in present.items():
        server.put(webhooks(*entries) | {"metadata": {"name": name}})
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert facts.webhooks is None if own is None else facts.webhooks and key_of(facts.webhooks).name == own
    assert [key_of(each).name for each in facts.former_webhooks] == former


async def test_leases_of_providers_elsewhere_are_those_of_all_objects() -> None:
    server = ManagementServer()
    for namespace, name in (
        ("caphv-system", names.LEASE),
        ("elsewhere", names.LEASE),
        ("elsewhere", f"blue.{names.LEASE}"),
        ("kube-node-lease", "node-1"),
    ):
        metadata = {"name": name, "namespace": namespace}
        server.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert [str(key_of(lease)) for lease in facts.other_leases] == [f"elsewhere/{names.LEASE}"]


@pytest.mark.parametrize("has_deployment", [True, False])
@pytest.mark.parametrize("has_namespace", [True, False])
async def test_the_namespace_counts_without_the_deployment(has_deployment: bool, has_namespace: bool) -> None:
    server = ManagementServer()
    if has_namespace:
        metadata: Obj = {"name": "caphv-system", "annotations": {names.SANDBOX_ANNOTATION: "/srv/sandbox"}}
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    if has_deployment:
        metadata = {"name": "caphv-controller-manager", "namespace": "caphv-system"}
        server.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert facts.has_namespace is (has_namespace and not has_deployment)
    assert bool(facts.sandbox) is facts.has_namespace


async def test_definitions_that_do_not_exist_are_named() -> None:
    name = str(resources.HARVESTER_MACHINES)
    server = ManagementServer(named("apiextensions.k8s.io/v1", "CustomResourceDefinition", name))
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert [key_of(obj).name for obj in facts.crds] == [name]
    assert {each.partition(".")[0] for each in facts.absent_crds} == {
        "harvesterclusters",
        "harvesterclustertemplates",
        "harvestermachinetemplates",
        "harvesterclusteridentities",
    }


async def test_a_missing_right_is_noted_and_hides_nothing_else() -> None:
    server = ManagementServer()
    metadata = {"name": "caphv", "namespace": "caphv-system"}
    server.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
    server.errors["get Deployment"] = Forbidden(403, "Forbidden", "cannot get")
    server.errors["list Certificate"] = Forbidden(403, "Forbidden", "cannot list")
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert {each.what for each in facts.unseen} == {"deployments", "certificates"}
    assert (facts.deployment, facts.webhooks, facts.certificates, facts.releases, facts.crds) == (
        None,
        None,
        [],
        {},
        [],
    )


async def test_requests_that_fail_after_the_first_answer_hide_nothing_else() -> None:
    server = ManagementServer(named("v1", "Namespace", "caphv-system"))
    for request in ("get CustomResourceDefinition", "get Lease", "list Lease", "list Deployment"):
        server.errors[request] = Unreachable("no route")
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert {each.what for each in facts.unseen} == {"customresourcedefinitions", "leases"}
    assert (facts.lease, facts.cert_manager, facts.has_namespace) == (None, None, True)


def named(version: str, kind: str, name: str, namespace: str = "", **labels: str) -> Obj:
    metadata = {"name": name, "labels": labels} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def running(name: str, namespace: str, image: str) -> Obj:
    """A Deployment with one container."""
    containers = [{"image": f"registry.example.com/rancher/{image}"}]
    return named("apps/v1", "Deployment", name, namespace) | {
        "spec": {"template": {"spec": {"containers": containers}}}
    }


async def test_all_that_checks_need_is_read() -> None:
    fleet = named("fleet.cattle.io/v1alpha1", "Cluster", "shop", "fleet-default")
    server = ManagementServer(
        named("apiextensions.k8s.io/v1", "CustomResourceDefinition", str(resources.HARVESTER_MACHINES)),
        named("apps/v1", "Deployment", "caphv-controller-manager", "caphv-system"),
        running("fleet-controller", "cattle-fleet-system", "fleet:v0.16.1"),
        running("caapf-controller-manager", "fleet-addon-system", "cluster-api-addon-provider-fleet:v0.14.0"),
        running("rancher-turtles-controller-manager", "cattle-turtles-system", "turtles:v0.28.1"),
        certificate_program("issuer", "cert-manager", release="certs"),
        certificate_program("injector", "cainjector", release="certs"),
        certificate_program("admission", "webhook", release="policies"),
        named("cert-manager.io/v1", "Certificate", "own", "caphv-system"),
        named("cert-manager.io/v1", "Certificate", "another", "elsewhere"),
        named("runtime.cluster.x-k8s.io/v1beta2", "ExtensionConfig", "caphv"),
        {**named("management.cattle.io/v3", "Setting", "server-url"), "value": "https://rancher"},
    )
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert [key_of(obj).name for obj in facts.crds] == [str(resources.HARVESTER_MACHINES)]
    assert facts.deployment is not None
    assert [key_of(obj).name for obj in facts.certificates] == ["own"]
    assert [key_of(obj).name for obj in facts.cert_manager or ()] == ["injector", "issuer"]
    assert [key_of(obj).name for obj in facts.extensions] == ["caphv"]
    assert facts.rancher == {"cacerts": "", "agent-tls-mode": "", "server-url": "https://rancher"}
    assert facts.unseen == []
    # Of these, what else there is decides whether they matter.
    assert (facts.releases, facts.namespaces) == ({}, [])

    server.put(fleet)
    server.put(named("runtime.cluster.x-k8s.io/v1beta2", "ExtensionConfig", "second"))
    server.put(named("v1", "Namespace", "team"))
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert facts.releases == {"fleet": "v0.16.1", "caapf": "v0.14.0", "turtles": "v0.28.1"}
    assert [key_of(obj).name for obj in facts.namespaces] == ["team"]


async def test_programs_of_fleet_that_may_not_be_read_do_not_hide_whether_the_provider_runs() -> None:
    class Server(ManagementServer):
        async def get(self, resource: Any, name: str, namespace: str = "") -> Obj:
            if namespace in {"cattle-fleet-system", "cattle-turtles-system"}:
                raise Forbidden(403, "Forbidden", f"deployments of {namespace}")
            return await super().get(resource, name, namespace)

    fleet = named("fleet.cattle.io/v1alpha1", "Cluster", "shop", "fleet-default")
    provider = named("apps/v1", "Deployment", "caphv-controller-manager", "caphv-system")
    facts = await read_management_facts(cast("ApiClient", Server(fleet, provider)), "caphv-system")
    assert (facts.releases, facts.why_unseen("deployments")) == ({}, "")


@pytest.mark.parametrize(
    ("leases", "holder"),
    [
        ({}, None),
        ({names.LEASE: ("leader", 2)}, "leader"),
        ({names.LEASE: ("leader", 2), names.HEARTBEAT_LEASE: ("heartbeat", 1)}, "leader"),
        ({names.LEASE: ("leader", 1), names.HEARTBEAT_LEASE: ("heartbeat", 2)}, "heartbeat"),
        ({names.LEASE: ("leader", 1), f"team-a.{names.LEASE}": ("share", 3)}, "share"),
    ],
)
@pytest.mark.parametrize("may_list", [True, False])
async def test_the_newest_lease_of_the_provider_counts(
    leases: dict[str, tuple[str, int]], holder: str | None, may_list: bool
) -> None:
    server = ManagementServer()
    for name, (identity, minute) in leases.items():
        spec = {"holderIdentity": identity, "renewTime": f"2026-11-28T10:0{minute}:00Z"}
        server.put({**named("coordination.k8s.io/v1", "Lease", name, "caphv-system"), "spec": spec})
    if not may_list:
        server.errors["list Lease"] = Forbidden(403, "Forbidden", "cannot list")
        holder = "leader" if holder == "share" else holder
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert at(facts.lease, "spec", "holderIdentity") == holder


SHARED = cluster_identity("shared")


def sharing(namespace: str = "caphv-system") -> ManagementServer:
    """Identity `shared` for namespace `a` and those with label `team: x`; `b` has it, `c` does not."""
    kubeconfig = json.dumps(kubeconfigs.valid())
    secret = {**named("v1", "Secret", "identity", namespace), "stringData": {"kubeconfig": kubeconfig}}
    allowed = {"list": ["a"], "selector": {"matchLabels": {"team": "x"}}}
    reference = {"name": "identity", "namespace": namespace}
    identity = named("infrastructure.cluster.x-k8s.io/v1beta1", "HarvesterClusterIdentity", "shared")
    spec = {"secretRef": reference, "allowedNamespaces": allowed}
    labelled = named("v1", "Namespace", "b", team="x")
    return ManagementServer(secret, {**identity, "spec": spec}, labelled, named("v1", "Namespace", "c"))


def users(*namespaces: str) -> ManagementObjects:
    """A HarvesterCluster in each namespace that names the identity, each with a machine."""
    clusters, machines = [], []
    for namespace in namespaces:
        labels = {"cluster.x-k8s.io/cluster-name": "shop"}
        metadata = {"namespace": namespace, "name": "shop", "labels": labels}
        spec = {"identityRef": {"name": "shared"}, "targetNamespace": f"vms-{namespace}"}
        clusters.append({"metadata": metadata, "spec": spec})
        machines.append({"metadata": {**metadata, "name": "machine"}, "spec": {}})
    return ManagementObjects("https://management", harvester_clusters=clusters, harvester_machines=machines)


@pytest.mark.parametrize(("may_read", "refused", "unknown"), [(True, ["c"], []), (False, [], ["b", "c"])])
async def test_shared_credentials_are_used_only_for_clusters_that_they_allow(
    monkeypatch: pytest.MonkeyPatch, may_read: bool, refused: list[str], unknown: list[str]
) -> None:
    """Who may create a HarvesterCluster would otherwise choose what is read with the credentials of others."""
    asked: list[frozenset[str]] = []

    async def read_harvester(_client: object, namespaces: Iterable[str], **_: Any) -> Any:
        asked.append(frozenset(namespaces))
        raise Forbidden(403, "Forbidden", "enough")

    monkeypatch.setattr(reading, "read_harvester", read_harvester)
    server = sharing()
    if not may_read:
        server.errors["get Namespace"] = Forbidden(403, "Forbidden", "cannot get")
    (facts,) = await reading.read_harvester_facts(cast("ApiClient", server), users("a", "b", "c"), [SHARED], "a")
    assert (list(facts.refused), list(facts.unknown)) == (refused, unknown)
    allowed = [namespace for namespace in "abc" if namespace not in (*refused, *unknown)]
    assert asked == [{f"vms-{namespace}" for namespace in allowed}]
    for objs in (facts.clusters, facts.machines):
        assert [key_of(obj).namespace for obj in objs] == allowed


async def test_without_a_permitted_cluster_the_credentials_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server = sharing()
    server.errors["get Secret"] = Forbidden(403, "Forbidden", "it was read")
    (facts,) = await reading.read_harvester_facts(cast("ApiClient", server), users("c"), [SHARED], "c")
    assert (facts.kubeconfig, facts.error, list(facts.refused)) == (None, "", ["c"])
    (facts,) = await reading.read_harvester_facts(cast("ApiClient", server), users(), [SHARED], "c")
    assert facts.error == "HarvesterClusterIdentity shared has no cluster"


async def test_a_secret_that_the_provider_does_not_read_is_refused() -> None:
    server = sharing("elsewhere")
    (facts,) = await reading.read_harvester_facts(
        cast("ApiClient", server), users("a"), [SHARED], "a", provider_namespace="caphv-system"
    )
    assert facts.kubeconfig is None
    assert "its Secret is not in namespace caphv-system of the provider" in facts.refused["a"]


def identity() -> Obj:
    """An identity Secret, as a manifest."""
    kubeconfig = {"clusters": [{"name": "c", "cluster": {"server": "https://harvester:6443"}}]}
    kubeconfig |= {"users": [{"name": "u", "user": {"token": "t"}}], "current-context": "x"}
    kubeconfig |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
    return {**named("v1", "Secret", "identity", "team"), "stringData": {"kubeconfig": json.dumps(kubeconfig)}}


@pytest.mark.parametrize(
    ("allowed", "missing"),
    [(None, ["blog", "shop"]), ("blog", ["shop"]), ("shop, blog", []), ("*", [])],
)
async def test_namespaces_that_the_owner_of_a_secret_does_not_allow_are_found(
    allowed: str | None, missing: list[str]
) -> None:
    """The Go provider serves their clusters, so that no condition says it before a migration."""
    annotations = {} if allowed is None else {names.ALLOWED_NAMESPACES_ANNOTATION: allowed}
    secret = named("v1", "Secret", "identity", "team")
    secret["metadata"]["annotations"] = annotations
    management = ManagementServer(secret)
    objects = users("team", "blog", "shop")
    for obj in objects.harvester_clusters:
        obj["spec"] = {"identitySecret": {"name": "identity", "namespace": "team"}}
    (facts,) = await reading.read_harvester_facts(
        cast("ApiClient", management), objects, [Key("team", "identity")], "team"
    )
    assert sorted(facts.not_allowed) == missing
    assert all(f"caphv.io/allowed-namespaces: {namespace}" in why for namespace, why in facts.not_allowed.items())
    assert len(facts.clusters) == 3


def lend_harvester(monkeypatch: pytest.MonkeyPatch, *objs: Obj) -> MemoryServer:
    """Have each identity read this Harvester."""
    harvester = MemoryServer(*objs)

    @contextlib.asynccontextmanager
    async def lend(*_: object, **__: object) -> AsyncIterator[Any]:
        yield harvester

    monkeypatch.setattr(reading, "answering_client", lend)
    return harvester


async def test_owners_that_cannot_be_read_hide_no_harvester(monkeypatch: pytest.MonkeyPatch) -> None:
    lend_harvester(monkeypatch)
    management = ManagementServer(identity())
    for resource in (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES):
        management.serve(resource.api_version, resource.kind)
    management.errors["list HarvesterMachine"] = Unreachable("no route")
    identities = [Key("team", "identity")]
    (facts,) = await reading.read_harvester_facts(cast("ApiClient", management), ManagementObjects(), identities, "a")
    assert (facts.recorded_owners, facts.error) == (None, "")
    assert facts.objects is not None


@pytest.mark.parametrize("denied", [True, False])
@pytest.mark.parametrize("has_owners", [True, False])
async def test_all_that_checks_need_of_a_harvester_is_read(
    monkeypatch: pytest.MonkeyPatch, denied: bool, has_owners: bool
) -> None:
    head = {"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool"}
    harvester = lend_harvester(
        monkeypatch,
        named("apps/v1", "Deployment", "harvester", "harvester-system"),
        named("v1", "Service", "ingress-expose", "kube-system"),
        {**head, **pool("machines")},
        named("v1", "Node", "host"),
    )
    harvester.denied = {("create", "virtualmachines")} if denied else set()
    builder = Builder()
    objects = builder.objects()
    stranger = Builder("blog")
    stranger.harvester_cluster["spec"]["identitySecret"]["name"] = "another"
    objects.clusters.append(stranger.cluster)
    objects.harvester_clusters.append(stranger.harvester_cluster)
    objects.harvester_machines += stranger.harvester_machines.values()
    management = ManagementServer(identity(), named("v1", "Namespace", "kube-system"))
    for resource in (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES):
        management.serve(resource.api_version, resource.kind)
    if not has_owners:
        management.errors["list HarvesterMachine"] = Forbidden(403, "Forbidden", "cannot list")

    (facts,) = await reading.read_harvester_facts(
        cast("ApiClient", management), objects, [Key("team", "identity")], "team"
    )

    assert facts.error == ""
    assert facts.objects is not None
    assert [key_of(obj).name for obj in facts.objects.hosts] == ["host"]
    assert facts.denied is not None
    assert {right.resource for right in facts.denied} == ({"virtualmachines"} if denied else set())
    assert (facts.deployment is not None, facts.ingress is not None) == (True, True)
    assert [key_of(obj).name for obj in facts.clusters] == ["shop-x"]
    assert {cluster_name(obj) for obj in facts.machines} == {"shop"}
    assert (facts.recorded_owners is not None) is has_owners
    assert [report.name for report in facts.pools] == (["machines"] if has_owners else [])


@pytest.mark.parametrize(
    ("error", "words", "rejected"),
    [
        (Unauthorized(401, "Unauthorized", "expired"), "it rejects the credentials: ", True),
        (Unreachable("no route"), "it is unreachable: no route", False),
        (Forbidden(403, "Forbidden", "cannot list"), "it refuses requests: ", False),
        (TimeoutError(), f"no answer within {HARVESTER_SECONDS:.0f} s", False),
    ],
)
async def test_a_harvester_that_cannot_be_read_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str, rejected: bool
) -> None:
    async def read_harvester(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(reading, "read_harvester", read_harvester)
    (facts,) = await reading.read_harvester_facts(
        cast("ApiClient", ManagementServer(identity())), ManagementObjects(), [Key("team", "identity")], "team"
    )
    assert facts.error.startswith(words)
    assert (facts.objects, facts.rejected) == (None, rejected)


@pytest.mark.parametrize("error", [Unreachable("no route"), TimeoutError()])
async def test_a_harvester_that_stops_to_answer_counts_as_one_that_never_did(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    lend_harvester(monkeypatch)

    async def find_denied(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(reading.rights, "find_denied", find_denied)
    management = ManagementServer(identity())
    identities = [Key("team", "identity")]
    (facts,) = await reading.read_harvester_facts(cast("ApiClient", management), ManagementObjects(), identities, "a")
    assert facts.kubeconfig is not None
    assert (bool(facts.error), facts.objects) == (True, None)


async def test_what_a_harvester_refuses_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    harvester = lend_harvester(monkeypatch, named("v1", "Node", "host"), named("v1", "Service", "x", "kube-system"))

    async def refuse(*_: Any) -> Any:
        raise Forbidden(403, "Forbidden", "cannot review")

    monkeypatch.setattr(reading.rights, "find_denied", refuse)
    for refused in ("get Deployment", "list Deployment", "get Service", "list IPPool"):
        harvester.errors[refused] = Forbidden(403, "Forbidden", f"cannot {refused}")
    management = ManagementServer(identity())
    identities = [Key("team", "identity")]
    (facts,) = await reading.read_harvester_facts(cast("ApiClient", management), ManagementObjects(), identities, "a")
    assert facts.objects is not None
    assert [key_of(obj).name for obj in facts.objects.hosts] == ["host"]
    assert (facts.error, facts.denied, facts.deployment, facts.ingress, facts.pools) == ("", None, None, None, ())


async def test_a_server_that_answers_something_else_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other Harvesters are read nevertheless."""
    management = ManagementServer(identity())

    async def read_nonsense(*_: Any, **__: Any) -> Any:
        return [obj["spec"] for obj in cast("list[Any]", [5])]

    monkeypatch.setattr(reading, "read_harvester", read_nonsense)
    identities = [Key("team", "identity"), Key("team", "absent")]
    absent, odd = await reading.read_harvester_facts(
        cast("ApiClient", management), ManagementObjects(server="https://management"), identities, "team"
    )
    assert (odd.objects, odd.error) == (None, "its answers have another form than Harvester's (TypeError)")
    assert absent.kubeconfig is None


@pytest.mark.parametrize(
    ("minutes", "kept", "used"), [(10, SECRET_TYPE, "renewed"), (99, SECRET_TYPE, "own"), (10, "Opaque", "own")]
)
async def test_a_renewed_token_is_used_while_it_is_valid(minutes: int, kept: str, used: str) -> None:
    server = sharing()
    identity = server.find("HarvesterClusterIdentity", "shared")
    assert identity is not None
    server.put({**identity, "spec": {**identity["spec"], "tokenRenewal": {}}})
    issued = issued_at(datetime.now(UTC) - timedelta(minutes=minutes), 3600, "source", "scope")
    config = kubeconfigs.with_cluster(server="https://harvester")
    config["users"][0]["user"] = {"token": "renewed"}
    secret = named("v1", "Secret", "renewed-token.shared", "caphv-system")
    secret["metadata"]["annotations"] = issued.annotations()
    server.put({**secret, "type": kept, "stringData": {"kubeconfig": json.dumps(config)}})
    (account,), _ = await read_accounts(cast("ApiClient", server), users("a").harvester_clusters)
    assert (account.kubeconfig.token == "renewed", account.renewed is not None) == (used == "renewed",) * 2
