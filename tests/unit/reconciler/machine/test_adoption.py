"""Taking over what belongs to a VM: what cannot be written now is written later, and not forgotten."""

import asyncio
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
    scope = SimpleNamespace(
        obj={"metadata": {"name": "one"}},
        spec={"providerID": f"{names.PROVIDER_ID_PREFIX}vm"},
        owner=NOW,
        name="one",
        target_namespace="vms",
        draft=SimpleNamespace(fields={}),
        session=lambda: SimpleNamespace(client=client),
        namespace=lambda: SimpleNamespace(claims=SimpleNamespace(store=())),
    )
    with pytest.raises(Conflict):
        asyncio.run(adopt_or_refuse(cast(MachineScope, scope), VM))
    # The VM keeps its old record, by which the next attempt finds the Secret.
    assert client.patched == ["Secret"]
