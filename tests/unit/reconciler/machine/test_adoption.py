"""Taking over what belongs to a VM: what cannot be written now is written later, and not forgotten."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import names
from caphv.api.object import Obj
from caphv.runtime.errors import Conflict
from reconciler.harvester.ownership import Owner, record
from reconciler.machine.adoption import adopt_or_refuse
from reconciler.machine.scope import MachineScope

pytestmark = pytest.mark.unit

BEFORE = Owner("HarvesterMachine", "team", "one", "old-uid", "elsewhere")
NOW = Owner("HarvesterMachine", "team", "one", "new-uid", "here")
VM = {
    "metadata": {"name": "one", "namespace": "vms", "uid": "vm", "resourceVersion": "1", "annotations": record(BEFORE)}
}


class Client:
    """A user writes the Secret between reading and writing it."""

    def __init__(self) -> None:
        self.patched: list[str] = []

    async def get(self, *_: Any) -> Obj:
        return {"metadata": {"resourceVersion": "1", "annotations": record(BEFORE)}}

    async def patch(self, resource: Any, *_: Any) -> Obj:
        self.patched.append(resource.kind)
        raise Conflict(409, "Conflict", "the object has been modified")


def test_a_secret_that_is_written_meanwhile_is_taken_over_with_the_vm_later() -> None:
    client = Client()
    with pytest.raises(Conflict):
        asyncio.run(adopt_or_refuse(scope_of(client), VM))
    # The VM keeps its old record, by which the next attempt finds the Secret.
    assert client.patched == ["Secret"]


def test_disks_with_the_former_record_are_taken_over_whatever_their_names() -> None:
    class Reader(Client):
        async def patch(self, resource: Any, name: str, *_: Any) -> Obj:
            if resource.kind == "Secret":
                raise Conflict(409, "Conflict", "the object has been modified")
            self.patched.append(name)
            return {}

    listed = ["restore-one-5f0b-disk-0", "photos", "hot"]
    spec = {"volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "hot", "hotpluggable": True}}]}
    templates = json.dumps([{"metadata": {"name": name}} for name in listed])
    metadata = {**VM["metadata"], "annotations": {**record(BEFORE), names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: templates}}
    owned = [*listed[::2], "one-disk-1-abcde", "unlisted"]
    annotations = {**dict.fromkeys(owned, record(BEFORE)), "photos": {}}
    claims = [{"metadata": {"name": n, "resourceVersion": "1", "annotations": a}} for n, a in annotations.items()]
    client = Reader()
    vm = {"metadata": metadata, "spec": {"template": {"spec": spec}}}
    with pytest.raises(Conflict):
        asyncio.run(adopt_or_refuse(scope_of(client, *claims), vm))
    assert client.patched == ["restore-one-5f0b-disk-0", "one-disk-1-abcde"]


def scope_of(client: Client, *claims: Obj) -> MachineScope:
    scope = SimpleNamespace(
        obj={"metadata": {"name": "one"}},
        spec={"providerID": f"{names.PROVIDER_ID_PREFIX}vm"},
        owner=NOW,
        name="one",
        target_namespace="vms",
        draft=SimpleNamespace(fields={}),
        session=lambda: SimpleNamespace(client=client),
        namespace=lambda: SimpleNamespace(claims=SimpleNamespace(store=claims, observe=lambda _: None)),
    )
    return cast(MachineScope, scope)
