"""What objects would be: by the way in which they were applied, and without what no user wrote."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound
from operations.capacity.machinechanges import Action
from operations.change.plan.reading import ObjectChange, Preview, read_preview, three_way
from tests.support.memoryserver import MemoryServer, merged

pytestmark = pytest.mark.unit

CORE = "cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta1"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def pool(*, annotations: Obj | None = None, managers: tuple[tuple[str, str], ...] = (), **spec: Any) -> Obj:
    """A HarvesterMachineTemplate `team/a`."""
    metadata: Obj = {"name": "a", "namespace": "team"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if managers:
        metadata["managedFields"] = [{"manager": name, "operation": operation} for name, operation in managers]
    return {"apiVersion": INFRASTRUCTURE, "kind": "HarvesterMachineTemplate", "metadata": metadata, "spec": spec}


def server(*objs: Obj) -> MemoryServer:
    return Recording(*objs, served=[(CORE, "Cluster"), (INFRASTRUCTURE, "HarvesterMachineTemplate")])


class Recording(MemoryServer):
    """Also knows which dry runs it was asked for."""

    def __init__(self, *objs: Obj, **more: Any) -> None:
        super().__init__(*objs, **more)
        self.managers: list[str] = []
        self.patches: list[Obj] = []

    async def apply(self, *arguments: Any, manager: str, **more: Any) -> Obj:
        self.managers.append(manager)
        answer = await super().apply(*arguments, manager=manager, **more)
        # As an API server does it in dry runs, too.
        answer["metadata"] |= {"generation": 5, "managedFields": [{"manager": manager, "time": "now"}]}
        return answer

    async def patch(self, resource: Any, name: str, namespace: str, patch: Any, **more: Any) -> Obj:
        self.patches.append(patch)
        return await super().patch(resource, name, namespace, patch, **more)


async def previewed(found: MemoryServer, *manifests: Obj) -> Preview:
    return await read_preview(cast("ApiClient", found), manifests, "team")


async def only_change(found: MemoryServer, manifest: Obj) -> ObjectChange:
    (change,) = (await previewed(found, manifest)).changes
    return change


def paths(change: ObjectChange) -> list[str]:
    return [field.path for field in change.fields]


@pytest.mark.parametrize("last", ["", "{", "[]", "null"])
async def test_object_that_kubectl_did_not_apply_is_applied_by_the_server(last: str) -> None:
    found = server(pool(annotations={LAST_APPLIED: last} if last else None, cpu=2, memory="4Gi"))
    change = await only_change(found, pool(cpu=4))
    assert (change.action, paths(change)) == (Action.CHANGE, ["spec.cpu"])
    assert found.managers == ["kubectl"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("managers", "expected"),
    [
        ((("argocd", "Apply"),), "argocd"),
        ((("manager", "Update"), ("argocd", "Apply")), "argocd"),
        ((("capi-topology", "Apply"),), "kubectl"),
        ((("capi-topology", "Apply"), ("flux", "Apply")), "flux"),
        ((("manager", "Update"),), "kubectl"),
    ],
)
async def test_fields_are_applied_by_the_name_of_who_applied_them(
    managers: tuple[tuple[str, str], ...], expected: str
) -> None:
    found = server(pool(managers=managers, cpu=2))
    await only_change(found, pool(cpu=4))
    assert found.managers == [expected]  # type: ignore[attr-defined]


async def test_field_that_is_not_applied_any_more_is_removed_and_others_stay() -> None:
    last = json.dumps(pool(cpu=2, tpm={"enabled": True}, networks=["a"]))
    live = pool(annotations={LAST_APPLIED: last}, cpu=2, tpm={"enabled": True}, networks=["a"], memory="4Gi")
    found = server(live)
    change = await only_change(found, pool(cpu=2, networks=["a", "b"]))
    assert found.patches == [{"spec": {"tpm": None, "networks": ["a", "b"]}}]  # type: ignore[attr-defined]
    assert sorted(paths(change)) == ["spec.networks", "spec.tpm"]
    unchanged = await only_change(server(live), json.loads(last))
    assert (unchanged.action, unchanged.fields) == (None, ())


async def test_what_a_server_keeps_for_itself_is_no_change() -> None:
    notes = {"a": "1", LAST_APPLIED: json.dumps(pool(cpu=2)), names.RECONCILE_AT_ANNOTATION: "now"}
    live = pool(annotations=notes, cpu=2)
    live["metadata"] |= {"generation": 4, "creationTimestamp": "2026-01-01T00:00:00Z", "selfLink": "x"}
    live["status"] = {"capacity": {}}
    wanted = pool(annotations={"a": "1", names.RECONCILE_AT_ANNOTATION: "later"}, cpu=2)
    assert (await only_change(server(live), wanted)).action is None
    labelled = pool(annotations={"a": "2"}, cpu=2)
    labelled["metadata"]["labels"] = {"team": "b"}
    change = await only_change(server(live), labelled)
    assert (change.action, sorted(paths(change))) == (
        Action.CHANGE,
        ["metadata.annotations.a", "metadata.labels"],
    )


async def test_object_without_annotations_is_compared() -> None:
    assert (await only_change(server(pool(cpu=2)), pool(cpu=2))).action is None
    assert (await only_change(server(), pool(cpu=2))).action is Action.CREATE


async def test_changes_come_by_name_and_objects_before_and_after() -> None:
    live = pool(cpu=2)
    other = {**pool(cpu=1), "metadata": {"name": "b", "namespace": "team"}}
    found = await previewed(server(live), other, pool(cpu=4))
    assert [change.identity.name for change in found.changes] == ["a", "b"]
    assert {identity.name: obj["spec"]["cpu"] for identity, obj in found.before.items()} == {"a": 2}
    assert {identity.name: obj["spec"]["cpu"] for identity, obj in found.after.items()} == {"a": 4, "b": 1}
    assert all(obj["kind"] == "HarvesterMachineTemplate" for obj in found.after.values())
    assert found.clusters == []


async def test_manifest_keeps_its_namespace_and_is_not_touched() -> None:
    manifest = {**pool(cpu=1), "metadata": {"name": "b", "namespace": "other"}}
    bare = {**pool(cpu=1), "metadata": {"name": "c"}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}
    found = await previewed(server(), manifest, bare, space)
    assert [(change.identity.kind, change.identity.namespace) for change in found.changes] == [
        ("Namespace", ""),
        ("HarvesterMachineTemplate", "other"),
        ("HarvesterMachineTemplate", "team"),
    ]
    assert bare["metadata"] == {"name": "c"}


values = st.recursive(
    st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(objects, objects, objects)
def test_applied_manifest_is_in_the_object(last: Obj, wanted: Obj, added: Obj) -> None:
    """Whatever was there before: all of the manifest is there, and nothing that only the last one had."""
    before = merged(added, last)
    after = merged(before, three_way(last, wanted, before))

    def check(have: Any, want: Any, former: Any, foreign: Any) -> None:
        if not isinstance(want, dict):
            assert have == want
            return
        for name, value in want.items():
            check(
                have[name],
                value,
                former.get(name) if isinstance(former, dict) else None,
                foreign.get(name) if isinstance(foreign, dict) else None,
            )
        if isinstance(former, dict):
            assert not (former.keys() - want.keys()) & have.keys()

    check(after, wanted, last, added)
    assert three_way(wanted, wanted, after) == {}


async def test_what_kubectl_applied_already_needs_no_right_to_change_it() -> None:
    last = json.dumps(pool(cpu=2))
    found = server(pool(annotations={LAST_APPLIED: last}, cpu=2, memory="4Gi"))
    found.errors["dry-run patch HarvesterMachineTemplate"] = Forbidden(403, "Forbidden", "cannot patch")
    assert (await only_change(found, pool(cpu=2))).action is None
    assert (await only_change(found, pool(cpu=4))).action is Action.REFUSED


async def test_only_namespaces_of_cluster_api_are_read() -> None:
    found = server()
    found.errors["list HarvesterMachineTemplate"] = Forbidden(403, "Forbidden", "cannot list")
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "team"}}
    assert (await previewed(found, settings)).unseen == []
    cluster = {"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "a", "namespace": "team"}}
    assert len((await previewed(found, cluster)).unseen) == 1


async def test_objects_of_no_namespace_lead_to_no_clusters() -> None:
    found = server()
    found.errors["list HarvesterMachineTemplate"] = Forbidden(403, "Forbidden", "cannot list")
    found.serve("runtime.cluster.x-k8s.io/v1beta2", "ExtensionConfig")
    config = {"apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig", "metadata": {"name": "a"}}
    plan = await previewed(found, config)
    assert [(str(change.identity.namespace), change.action) for change in plan.changes] == [("", Action.CREATE)]
    assert plan.unseen == []


async def test_only_clusters_that_may_use_a_class_are_read_in_other_namespaces() -> None:
    def cluster(namespace: str, spec: Obj) -> Obj:
        return {"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "a", "namespace": namespace}, "spec": spec}

    topology = {"topology": {"classRef": {"name": "class", "namespace": "team"}, "version": "v1.36.2"}}
    found = server(cluster("with", topology), cluster("without", {}))
    found.serve(CORE, "ClusterClass")
    manifest = {"apiVersion": CORE, "kind": "ClusterClass", "metadata": {"name": "class"}, "spec": {}}
    plan = await previewed(found, manifest)
    assert {identity.namespace for identity in plan.before} == {"with"}

    # Another kind than a class or a template concerns its own namespace only.
    plan = await previewed(found, cluster("without", {"paused": True}))
    assert {identity.namespace for identity in plan.before} == {"without"}


async def test_what_a_dry_run_refuses_because_of_other_manifests_counts_as_applied() -> None:
    """Only the API server could say more, and it has no namespace of the same manifests in a dry run."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}}
    inside = {**pool(cpu=1), "metadata": {"name": "b", "namespace": "new"}}
    found = server()
    found.errors["dry-run create HarvesterMachineTemplate"] = NotFound(404, "NotFound", "no namespace new")
    plan = await previewed(found, inside, space)
    assert [(change.identity.kind, change.action) for change in plan.changes] == [
        ("Namespace", Action.CREATE),
        ("HarvesterMachineTemplate", Action.CREATE),
    ]
    plan = await previewed(found, inside)
    assert [(change.action, change.error) for change in plan.changes] == [(Action.REFUSED, "no namespace new")]
    found.put(space)
    plan = await previewed(found, inside, space)
    assert [change.action for change in plan.changes] == [None, Action.REFUSED], "it exists, so that is not why"
