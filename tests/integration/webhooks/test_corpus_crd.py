"""The corpus before a real API server that has our CRDs and no webhook: what the CRDs refuse by themselves.

What the webhook refuses they refuse too, except for what `tests/corpus/exceptions.yaml` gives a reason for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from caphv import data
from caphv.api.names import GROUP
from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Invalid
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests import corpus
from tests.support.waiting import until
from webhooks.admission import KINDS, RULES

pytestmark = pytest.mark.integration

NAMESPACE = "clusters"
DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)
# Rules over two fields, which stand in the CRDs at what holds both.
OF_NEIGHBOURS = {"load-balancer-pool", "volume-image"}
DEMANDS = {"enum", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minimum", "pattern"}
DEMANDS |= {"optionalOldSelf", "x-kubernetes-validations"}
_AT_ONCE = 16


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """The shared API server, with our CRDs."""

    async def define() -> None:
        crds = manifests.read(sorted(data.folder("deploy/crds").glob("infrastructure*.yaml")))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        async with api_server.client() as client:
            await manifests.apply(client, [*crds, namespace])

    asyncio.run(define())
    return api_server


@pytest.fixture(scope="module")
def wrong(server: ApiServer) -> dict[str, str]:
    """Answers to all wrong objects, by case."""
    return refusals(server, corpus.invalid())


async def refusal(client: ApiClient, case: corpus.Case, number: int) -> str:
    """What the API server answers, empty when it accepts."""
    resource = Resource(GROUP, case.version, KINDS[case.kind].plural, case.kind)
    try:
        if case.old is None:
            path = resource.path(NAMESPACE)
            await client.request("POST", path, resource=resource, body=case.object, query=DRY_RUN)
        else:
            await _changed(client, resource, case, f"case-{number}")
    except Invalid as error:
        return error.message
    return ""


async def _changed(client: ApiClient, resource: Resource, case: corpus.Case, name: str) -> None:
    assert case.old is not None
    path = resource.path(NAMESPACE, name)
    old, new = _named(case.old, name), _named(case.object, name)
    made = await client.request("POST", resource.path(NAMESPACE), resource=resource, body=old)
    try:
        if "status" in old:
            made = await client.request(
                "PUT", f"{path}/status", resource=resource, body={**made, "status": old["status"]}
            )
        new["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
        await client.request("PUT", path, resource=resource, body=new, query=DRY_RUN)
    finally:
        await client.delete(resource, name, NAMESPACE)


def _named(obj: Obj, name: str) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "name": name}}


def refusals(server: ApiServer, cases: Iterable[corpus.Case]) -> dict[str, str]:
    """Answers to all cases, by case."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(client: ApiClient, case: corpus.Case, number: int) -> tuple[str, str]:
        async with limit:
            return str(case), await refusal(client, case, number)

    async def scenario() -> dict[str, str]:
        async with server.client() as client:
            asked = [ask(client, case, number) for number, case in enumerate(cases)]
            return dict(await asyncio.gather(*asked))

    return asyncio.run(scenario())


def excused(case: corpus.Case) -> set[str]:
    """Rules broken by a case that the CRDs of its kind cannot refuse."""
    broken = {rule for _, rule in case.errors}
    found: set[str] = set()
    for row in corpus.exceptions():
        if case.kind in row["kinds"]:
            found |= (
                {rule for rule in broken if rule in RULES and not RULES[rule].refused_by_go}
                if row["rules"] == "new"
                else set()
            )
            found |= broken & set(row["rules"])
    return found


def test_right_objects_are_accepted(server: ApiServer) -> None:
    answers = refusals(server, corpus.valid())
    assert {case: answer for case, answer in answers.items() if answer} == {}


def test_wrong_objects_are_refused_except_for_a_reason(wrong: dict[str, str]) -> None:
    accepted = [case for case in corpus.invalid() if not wrong[str(case)]]
    assert [str(case) for case in accepted if {rule for _, rule in case.errors} != excused(case)] == []
    # No reason is listed for nothing.
    unused = [
        (rule, kind)
        for row in corpus.exceptions()
        for kind in row["kinds"]
        for rule in (row["rules"] if row["rules"] != "new" else [])
        if not any(case.kind == kind and rule in {broken for _, broken in case.errors} for case in accepted)
    ]
    assert unused == []


def test_refusals_name_the_field(wrong: dict[str, str]) -> None:
    silent = []
    for case in (case for case in corpus.invalid() if case.old is None and len(case.errors) == 1):
        ((field, _),) = case.errors
        # A rule over a whole list names the list, one over two fields may name what holds both.
        parts = [field, field.partition("[")[0], field.rpartition(".")[0]]
        if wrong[str(case)] and not any(part and part in wrong[str(case)] for part in parts):
            silent.append((str(case), wrong[str(case)]))
    assert silent == []


@pytest.mark.parametrize(
    ("kind", "one_of"),
    [
        ("HarvesterCluster", 1),
        ("HarvesterMachine", 1),
        # A template repeats the rules of what is made from it.
        ("HarvesterClusterTemplate", 4),
        ("HarvesterMachineTemplate", 4),
        pytest.param("HarvesterClusterTemplate", 1, marks=pytest.mark.long),
        pytest.param("HarvesterMachineTemplate", 1, marks=pytest.mark.long),
    ],
)
async def test_what_was_stored_before_the_rules_can_be_changed_elsewhere(
    server: ApiServer, kind: str, one_of: int
) -> None:
    """Every wrong object that a CRD without our rules takes: its neighbours, status and metadata continue changing."""
    resource = Resource(GROUP, "v1beta1", KINDS[kind].plural, kind)
    name = f"{resource.plural}.{GROUP}"
    cases = [case for case in corpus.invalid() if (case.kind, case.version, case.old) == (kind, "v1beta1", None)]
    tried = cases[::one_of]

    async with server.client() as client:
        whole = await client.get(CRDS, name, "")
        probe = next(case for case in cases if {rule for _, rule in case.errors} <= OF_NEIGHBOURS)
        try:
            await client.patch(CRDS, name, "", {"spec": {"versions": _without_rules(whole)}})
            await _until_created(client, resource, _named(probe.object, "older"))
            stored = [case for number, case in enumerate(tried) if await _made(client, resource, case, number)]
        finally:
            await client.patch(CRDS, name, "", {"spec": {"versions": whole["spec"]["versions"]}})
        if kind != "HarvesterMachine":
            await _until_refused(client, resource, _named(probe.object, "newer"))
        refused = {}
        for case in stored:
            try:
                await _changed_elsewhere(client, resource, f"older-{tried.index(case)}")
            except Invalid as error:
                refused[str(case)] = error.message
        assert refused == {}
        assert len(stored) > 20


async def _made(client: ApiClient, resource: Resource, case: corpus.Case, number: int) -> bool:
    try:
        await client.create(resource, _named(case.object, f"older-{number}"))
    except Invalid:
        return False
    return True


async def _changed_elsewhere(client: ApiClient, resource: Resource, name: str) -> None:
    await client.patch(resource, name, NAMESPACE, {"metadata": {"labels": {"a": "b"}, "finalizers": ["a.b/c"]}})
    # A machine without a spec gets no VM that could give it an identity.
    if resource.kind == "HarvesterMachine" and "spec" in await client.get(resource, name, NAMESPACE):
        await client.patch(resource, name, NAMESPACE, {"spec": {"providerID": "harvester://0c4f1a52"}})
    if resource.kind == "HarvesterCluster":
        found = await client.get(resource, name, NAMESPACE)
        spec: Obj = {"server": "https://harvester.example.com", "loadBalancerConfig": {"description": "changed"}}
        if "vmNetworkConfig" in found["spec"]:
            spec["vmNetworkConfig"] = {"dnsServers": ["9.9.9.9"]}
        await client.patch(resource, name, NAMESPACE, {"spec": spec})
    if not resource.kind.endswith("Template"):
        await client.patch(resource, name, NAMESPACE, {"status": {"ready": True}}, subresource="status")
    await client.delete(resource, name, NAMESPACE)
    await client.patch(resource, name, NAMESPACE, {"metadata": {"finalizers": None}})


def _without_rules(crd: Obj) -> list[Obj]:
    def stripped(node: object) -> object:
        if isinstance(node, dict):
            return {key: stripped(value) for key, value in node.items() if key not in DEMANDS}
        return [stripped(item) for item in node] if isinstance(node, list) else node

    versions = stripped(crd["spec"]["versions"])
    assert isinstance(versions, list)
    return versions


async def _accepts(client: ApiClient, resource: Resource, obj: Obj, *, dry_run: bool = False) -> bool:
    try:
        await client.create(resource, obj, dry_run=dry_run)
    except Invalid:
        return False
    return True


async def _until_created(client: ApiClient, resource: Resource, obj: Obj) -> None:
    await until(lambda: _accepts(client, resource, obj), "the CRD without rules still refuses the object")


async def _until_refused(client: ApiClient, resource: Resource, obj: Obj) -> None:
    async def refused() -> bool:
        return not await _accepts(client, resource, obj, dry_run=True)

    await until(refused, "the CRD with rules accepts the object")
