"""The simulated volume controller creates the claims that the real one created."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import Obj
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.volumes import Volumes
from tests.support.observed import Record, records

pytestmark = pytest.mark.unit

# The simulator does not call it for a VM that is being deleted.
CALLED = [record for record in records("harvester/volumes-v1.8.2.yaml") if not record.input.get("deleting")]


class Harvester:
    """Informers with these images and no StorageClass, and a client that keeps what is created."""

    def __init__(self, images: list[str]) -> None:
        self.client = self
        self.created: dict[str, Obj] = {}
        self.claims = SimpleNamespace(get=lambda _, name: self.created.get(name), observe=lambda _: None)
        self.images = SimpleNamespace(get=lambda _, name: {} if name in images else None)
        self.storage_classes = SimpleNamespace(get=lambda *_: None)

    async def create(self, _resource: Any, obj: Obj) -> Obj:
        self.created[obj["metadata"]["name"]] = {**obj, "metadata": {**obj["metadata"], "uid": "u"}}
        return obj


@pytest.mark.parametrize("record", CALLED, ids=str)
async def test_claims_as_observed(record: Record) -> None:
    harvester = Harvester(record.input["images"])
    volumes = Volumes(cast(Informers, harvester), SimulatorConfig())
    templates = [template(**entry) for entry in record.input.get("templates", ())]
    annotation = record.input.get("annotation", json.dumps(templates))
    metadata = {"namespace": "vms", "name": "one", "uid": "vm", "annotations": {kinds.CLAIM_TEMPLATES: annotation}}
    await volumes.ensure({"metadata": metadata, "spec": {"template": {"spec": {}}}})

    assert sorted(harvester.created) == record.outcome["claims"]
    for claim in harvester.created.values():
        assert claim["spec"].get("volumeName", "") == record.outcome["volume"]
        assert (claim.get("status") or {}).get("phase", "") == record.outcome["phase"]


def template(name: str, image: str = "") -> Obj:
    annotations = {kinds.IMAGE_ID: image} if image else {}
    spec = {"storageClassName": "sc", "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
