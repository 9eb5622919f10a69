"""A cluster with servers in memory that delivers a cloud config to its guests."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from tests.support.reconciler.memorycase import MemoryCase

READY = "CloudProviderConfigReady"
PLACE = ("Secret", "harvester-cloud-config", "kube-system")
DAY = 24 * 3600


class Guests(MemoryCase):
    """A cluster whose infrastructure is ready, and which delivers a cloud config."""

    @classmethod
    async def ready(cls, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> Guests:
        case = cls(monkeypatch, **spec)
        case.clock = [1000.0]
        monkeypatch.setattr("reconciler.cluster.cloudconfig.time.monotonic", lambda: case.clock[0])
        case.harvester.longest = 3 * DAY
        await case.reconcile()
        case.assign("10.0.0.10")
        case.guests_answer = True
        return case

    clock: list[float]

    @property
    def secret(self) -> Obj:
        """The Secret in the workload cluster."""
        found = self.workload.find(*PLACE)
        assert found is not None
        return found

    def note(self, name: str, value: str | None) -> None:
        """Change an annotation of the Secret."""
        annotations = {**self.secret["metadata"]["annotations"], name: value}
        kept = {key: text for key, text in annotations.items() if text is not None}
        self.workload.put({**self.secret, "metadata": {**self.secret["metadata"], "annotations": kept}})

    def restart(self) -> None:
        """Lose the memory of the process."""
        self.context.memory = type(self.context.memory)()


def tokens(secret: Obj) -> set[str]:
    """Return the tokens in a Secret with cloud configs."""
    configs = [yaml.safe_load(base64.b64decode(value)) for value in secret["data"].values()]
    return {config["users"][0]["user"]["token"] for config in configs}


async def delivered(monkeypatch: pytest.MonkeyPatch) -> Guests:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    await case.reconcile()
    assert case.condition(READY)[0] == "True"
    return case
