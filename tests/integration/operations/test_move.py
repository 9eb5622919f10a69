"""`caphv move` between API servers without controllers: what stops it, what it continues, and what it deletes."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from caphv.api import remedies
from caphv.api.object import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Obj, Resource, annotations_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable
from operations.backup import writing
from operations.backup.reading import kinds_to_copy
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support.authorization import until_allowed
from tests.support.backup import shared_template, whole_cluster
from tests.support.backupserver import KINDS, definitions, everything, interrupted_while_the_pause_ends, load
from tests.support.overview import Management
from tests.support.printed import printed_in

PAUSED = {"conditions": [{"type": "Paused", "status": "True"}]}


class Sides:
    """A source and a target, and the command between them."""

    def __init__(self, old: Management, new: Management) -> None:
        self.old, self.new = old, new

    def move(self, *arguments: str, to: Management | None = None, user: str = "") -> Result:
        """Run `caphv move` of clusters, without a question; `user` is that of the source."""
        target = (to or self.new).folder / "target.kubeconfig"
        private_file(target, pki.to_yaml((to or self.new).server.kubeconfig()))
        return self.old.caphv("move", *arguments, "--yes", "--timeout", "3s", "--to-kubeconfig", str(target), user=user)

    def load(self, *objs: Obj) -> None:
        """Create objects on the source."""

        async def create() -> None:
            async with self.old.server.client() as client:
                await load(client, list(objs))

        asyncio.run(create())

    def there(self) -> dict[str, Obj]:
        """Objects of the target."""
        return asyncio.run(everything(self.new.server))

    def here(self) -> dict[str, Obj]:
        """Objects of the source."""
        return asyncio.run(everything(self.old.server))


@pytest.fixture(scope="module")
def sides(etcd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Two management clusters; clusters of the source are made by the tests."""
    servers = [ApiServer(etcd_folder, name) for name in ("move-source", "move-target")]

    async def start() -> None:
        await asyncio.gather(*(server.start() for server in servers))
        for server in servers:
            async with server.client() as client:
                await manifests.apply(client, definitions())

    asyncio.run(start())
    old, new = (Management(server, tmp_path_factory.mktemp(server.name)) for server in servers)
    yield Sides(old, new)
    for server in servers:
        asyncio.run(server.stop())


def movable(name: str) -> list[Obj]:
    """A cluster whose pause the provider confirms at once, and whose machines have no VMs yet."""
    objs = whole_cluster(name, identity=f"{name}-identity", machines=1)
    for obj in objs:
        if obj["kind"] == "HarvesterMachine":
            obj["spec"] = {}
        if obj["kind"] in ("HarvesterCluster", "HarvesterMachine"):
            obj["status"] = PAUSED
    return objs


def of(name: str, objs: dict[str, Obj]) -> list[str]:
    """Objects of a cluster that are deleted on the source: the class, the identity and what has no owner stay."""
    stays = (f"{name}-class", f"{name}-workers", f"{name}-identity", f"{name}-addons", f"{name}-etcd", f"{name}-cni")
    found = [key for key in objs if f"/{name}" in key and not key.endswith(stays)]
    return sorted(key.replace(f"/{name}", "/*") for key in found)


def untouched(sides: Sides, name: str) -> bool:
    """Whether a cluster is on the source alone, and runs there."""
    cluster = sides.here()[f"Cluster team/{name}"]
    return "paused" not in cluster["spec"] and f"Cluster team/{name}" not in sides.there()


def test_a_move_that_was_interrupted_while_the_pause_ended_is_completed(sides: Sides) -> None:
    sides.load(*movable("half"))
    with interrupted_while_the_pause_ends():
        first = sides.move("team/half")
    assert (first.exit_code, "interrupted" in first.output) == (1, True), first.output
    between = sides.there()
    assert "cluster.x-k8s.io/paused" not in between["ClusterClass classes/half-class"]["metadata"]["annotations"]
    assert between["Cluster team/half"]["spec"]["paused"]
    second = sides.move("team/half")
    assert second.exit_code == 0, second.output
    assert "paused" not in sides.there()["Cluster team/half"]["spec"]
    assert of("half", sides.here()) == []


def test_what_the_target_deleted_after_the_pause_is_not_created_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [movable("one"), movable("two")]
    sides.load(*pair[0], *pair[1])
    patch, gone = ApiClient.patch, Resource("cluster.x-k8s.io", "v1beta2", "machines", "Machine")

    async def interrupted(client: ApiClient, resource: Resource, name: str, *what: Any, **options: Any) -> Obj:
        if what[-1] == {"spec": {"paused": None}} and name == "two":
            await client.delete(gone, "one-0", "team")
            raise Unreachable("interrupted")
        return await patch(client, resource, name, *what, **options)

    monkeypatch.setattr(ApiClient, "patch", interrupted)
    assert sides.move("team/one", "team/two").exit_code == 1
    monkeypatch.setattr(ApiClient, "patch", patch)
    second = sides.move("team/one", "team/two")
    assert "an interrupted move is completed" in second.output
    there = sides.there()
    assert "Machine team/one-0" not in there
    assert "paused" not in there["Cluster team/two"]["spec"]
    assert (second.exit_code, "does not exist on the target: Machine team/one-0." in second.output) == (1, True), (
        second.output
    )
    assert "Machine team/one-0" in sides.here()


def test_a_template_that_two_clusters_share_stays_until_both_are_moved(sides: Sides) -> None:
    a, b = movable("left"), movable("right")
    sides.load(*a, *b, shared_template("shared", *a, *b))
    result = sides.move("team/left")
    assert result.exit_code == 0, result.output
    assert "shared, stays on the source: HarvesterMachineTemplate team/shared" in result.output
    assert of("left", sides.here()) == []
    assert "HarvesterMachineTemplate team/shared" in sides.here()
    moved = sides.there()["HarvesterMachineTemplate team/shared"]
    assert [each["name"] for each in moved["metadata"]["ownerReferences"]] == ["left"]


def test_force_does_not_hide_that_an_object_could_not_be_created(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.load(*movable("failing"))
    before, create = of("failing", sides.here()), ApiClient.create

    async def without_machines(client: ApiClient, resource: Resource, obj: Obj, **options: bool) -> Obj:
        if resource.kind == "Machine" and not options.get("dry_run"):
            raise Unreachable("no answer")
        return await create(client, resource, obj, **options)

    monkeypatch.setattr(ApiClient, "create", without_machines)
    result = sides.move("team/failing", "--force")
    assert (result.exit_code, "Machine team/failing-0: no answer" in result.output) == (1, True), result.output
    assert "created" not in result.output
    assert of("failing", sides.here()) == before


def test_force_does_not_override_vms_that_cannot_be_read(sides: Sides) -> None:
    objs = movable("dark")
    for obj in objs:
        if obj["kind"] == "HarvesterMachine":
            obj["spec"] = {"providerID": "harvester://vm"}  # its identity is no kubeconfig
    sides.load(*objs)
    result = sides.move("team/dark", "--force")
    assert (result.exit_code, "the VM of team/dark-0 cannot be read" in result.output) == (1, True), result.output
    assert untouched(sides, "dark")


def test_force_does_not_override_the_same_cluster_nor_a_missing_kind(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.load(*movable("firm"))
    result = sides.move("team/firm", "--force", to=sides.old)
    assert (result.exit_code, "source and target are the same" in result.output) == (1, True), result.output

    async def without_machines(client: ApiClient, *what: Any) -> Any:
        return {key: each for key, each in (await kinds_to_copy(client, *what)).items() if key[1] != "Machine"}

    monkeypatch.setattr(writing, "kinds_to_copy", without_machines)
    result = sides.move("team/firm", "--force")
    assert (result.exit_code, "is not installed there" in result.output) == (1, True), result.output
    assert "--force" not in result.output
    assert untouched(sides, "firm")


def test_force_does_not_override_the_unknown_uid_of_a_management_cluster(sides: Sides) -> None:
    sides.load(*movable("nameless"))
    group = "rbac.authorization.k8s.io"
    secrets = {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["*"]}
    groups = sorted({kind[0] for kind in KINDS})
    rules = [secrets, {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}]
    subjects = [{"apiGroup": group, "kind": "User", "name": "mover"}]

    async def grant() -> None:
        async with sides.old.server.client() as client:
            metadata, ref = {"name": "mover"}, {"apiGroup": group, "kind": "ClusterRole", "name": "mover"}
            await client.create(CLUSTER_ROLES, {"metadata": metadata, "rules": rules})
            await client.create(CLUSTER_ROLE_BINDINGS, {"metadata": metadata, "roleRef": ref, "subjects": subjects})
            await until_allowed(client, "mover", secrets)

    asyncio.run(grant())
    result = sides.move("team/nameless", "--force", user="mover")
    assert result.exit_code == 1, result.output
    assert "the uid of namespace kube-system of the source cannot be read" in result.output
    assert untouched(sides, "nameless")


def test_a_cluster_that_a_user_has_paused_is_not_moved(sides: Sides) -> None:
    objs = movable("resting")
    next(obj for obj in objs if obj["kind"] == "Cluster")["spec"]["paused"] = True
    sides.load(*objs)
    result = sides.move("team/resting", "--force")
    assert (result.exit_code, "kubectl patch cluster resting -n team" in result.output) == (1, True), result.output
    assert "Cluster team/resting" not in sides.there()
    assert "caphv.io/moving-to" not in annotations_of(sides.here()["Cluster team/resting"])


def test_a_name_that_does_not_exist_stops_the_move_of_all(sides: Sides) -> None:
    sides.load(*movable("present"))
    result = sides.move("team/present", "team/absent")
    assert (result.exit_code, "no such cluster" in result.output) == (2, True), result.output
    assert untouched(sides, "present")


def test_a_cluster_whose_harvestercluster_another_controller_manages_is_moved(sides: Sides) -> None:
    objs = movable("managed")
    infrastructure = next(obj for obj in objs if obj["kind"] == "HarvesterCluster")
    infrastructure["metadata"]["annotations"] = {"cluster.x-k8s.io/managed-by": "crossplane"}
    del infrastructure["status"]  # the provider writes nothing to it
    sides.load(*objs)
    result = sides.move("team/managed")
    assert (result.exit_code, "is managed by another controller" in result.output) == (0, True), result.output
    assert of("managed", sides.here()) == []


def test_a_cluster_that_is_created_meanwhile_is_not_moved(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = (json.loads(json.dumps(movable(name)).replace('"team"', '"other"')) for name in ("early", "late"))
    sides.load(*early)
    patch = ApiClient.patch

    async def create_late(client: ApiClient, resource: Resource, *what: Any, **options: Any) -> Obj:
        if what[-1].get("spec") == {"paused": True}:
            await load(client, late)
        return await patch(client, resource, *what, **options)

    monkeypatch.setattr(ApiClient, "patch", create_late)
    result = sides.move("-n", "other")
    assert result.exit_code == 0, result.output
    assert "Cluster other/early" in sides.there()
    assert "Cluster other/late" not in sides.there()
    assert "paused" not in sides.here()["Cluster other/late"]["spec"]


def test_what_stops_a_move_after_the_pause_has_its_remedy(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.load(*movable("frozen"))
    patch = ApiClient.patch
    kind = Resource("infrastructure.cluster.x-k8s.io", "v1beta1", "harvesterclusters", "HarvesterCluster")

    async def paused_by_a_user(client: ApiClient, resource: Resource, *what: Any, **options: Any) -> Obj:
        if what[-1].get("spec") == {"paused": True}:
            annotation = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
            await patch(client, kind, "frozen-x7k2p", "team", annotation)
        return await patch(client, resource, *what, **options)

    monkeypatch.setattr(ApiClient, "patch", paused_by_a_user)
    result = sides.move("team/frozen")
    remedy = "Resume it: kubectl annotate harvestercluster frozen-x7k2p -n team cluster.x-k8s.io/paused-"
    assert (result.exit_code, f"would not adopt its VMs. {remedy}" in result.output) == (1, True), result.output
    assert "Cluster team/frozen" not in sides.there()


def test_an_interrupted_move_of_a_namespace_names_its_clusters_once_there_are_more(sides: Sides) -> None:
    old, more, new = (json.loads(json.dumps(movable(name)).replace('"team"', '"grown"')) for name in ("x", "y", "z"))
    sides.load(*old, *more)
    with interrupted_while_the_pause_ends():
        assert sides.move("-n", "grown").exit_code == 1
    sides.load(*new)
    second = sides.move("-n", "grown")
    assert second.exit_code == 1, second.output
    command = shlex.split(printed_in(remedies.MOVE_CLUSTERS, second.output))
    assert "paused" not in sides.here()["Cluster grown/z"]["spec"]
    assert command[2:] == ["grown/x", "grown/y", "--to-kubeconfig", "FILE"]
    third = sides.move(*command[2:-2])
    assert third.exit_code == 0, third.output
    assert {f"Cluster grown/{name}" for name in "xyz"} & sides.here().keys() == {"Cluster grown/z"}


def test_nothing_stays_when_the_core_adds_its_finalizer_again(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    sides.load(*movable("quick"))
    delete = ApiClient.delete

    async def core_is_faster(client: ApiClient, resource: Resource, name: str, *what: Any, **options: Any) -> Any:
        if resource.kind in ("Cluster", "Machine"):
            await client.patch(resource, name, "team", {"metadata": {"finalizers": ["cluster.cluster.x-k8s.io"]}})
        return await delete(client, resource, name, *what, **options)

    monkeypatch.setattr(ApiClient, "delete", core_is_faster)
    result = sides.move("team/quick")
    assert result.exit_code == 0, result.output
    assert of("quick", sides.here()) == []


def test_a_move_that_was_interrupted_between_two_clusters_is_completed(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.load(*movable("first"), *movable("second"))
    delete, interrupted = ApiClient.delete, True

    async def once(client: ApiClient, resource: Resource, name: str, *what: Any, **options: Any) -> Any:
        if interrupted and (resource.kind, name) == ("Cluster", "second"):
            raise Unreachable("interrupted")
        return await delete(client, resource, name, *what, **options)

    monkeypatch.setattr(ApiClient, "delete", once)
    clusters = ("team/first", "team/second")
    assert sides.move(*clusters).exit_code == 1
    assert [name for name in clusters if f"Cluster {name}" in sides.here()] == ["team/second"]

    async def upgrade() -> None:
        async with sides.new.server.client() as client:
            version = {"spec": {"topology": {"version": "v1.37.0+rke2r1"}}}
            await client.patch(
                Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster"), "second", "team", version
            )

    asyncio.run(upgrade())
    interrupted = False
    result = sides.move(*clusters)
    assert result.exit_code == 0, result.output
    assert "an interrupted move is completed" in result.output
    assert of("second", sides.here()) == []
    assert sides.move(*clusters).exit_code == 2
