"""Steps of an agent of Fleet with one bundle, for the real agent's deployer and for the stand-in alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery

BUNDLE = "demo"
NAMESPACE = "kube-system"


class Agent(Protocol):
    """What an agent of Fleet does with bundle `demo`."""

    async def deploy(self, settings: Mapping[str, Any], objects: list[Obj]) -> str:
        """Install or upgrade; return the error, empty for none."""

    async def modified(self) -> list[str]:
        """Return kind and name of modified objects."""

    async def correct(self) -> str:
        """Correct drift; return the error, empty for none."""

    async def remove(self) -> None:
        """Act on the deletion of the bundle."""

    async def releases(self) -> list[str]:
        """Return the releases that the agent lists."""


async def play(agent: Agent, client: ApiClient, given: Mapping[str, Any]) -> list[Any]:
    """Run the steps of a record; return what each step that is not `write` did."""
    outcome: list[Any] = []
    for step in given["steps"]:
        if "deploy" in step:
            outcome.append(await agent.deploy(given["bundle"] | step.get("settings", {}), step["deploy"]) or "deployed")
        elif "write" in step:
            await _write(client, step["write"], step.get("manager", "person"))
        elif "delete" in step:
            obj = step["delete"]
            await client.delete(await Discovery(client).resource(obj), obj["metadata"]["name"], NAMESPACE)
        elif "status" in step:
            outcome.append(sorted(await agent.modified()) or "as deployed")
        elif "correct" in step:
            outcome.append(await agent.correct() or "rolled back")
        elif "remove" in step:
            await agent.remove()
            outcome.append(await agent.releases())
        elif "read" in step:
            outcome.append(await _read(client, step["read"], step["fields"]))
    return outcome


async def _write(client: ApiClient, obj: Obj, manager: str) -> None:
    """Apply an object as another client does that takes over its fields."""
    await client.apply(await Discovery(client).resource(obj), _placed(obj), manager=manager, force=True)


async def _read(client: ApiClient, obj: Obj, fields: list[str]) -> Any:
    """Return fields of a live object by JSON Pointer."""
    resource = await Discovery(client).resource(obj)
    namespace = NAMESPACE if resource.namespaced else ""
    live = await client.get(resource, obj["metadata"]["name"], namespace)
    return {field: _at(live, field) for field in fields}


def _at(node: Any, pointer: str) -> Any:
    for part in pointer.strip("/").split("/"):
        if not isinstance(node, dict):
            return None
        node = node.get(part.replace("~1", "/").replace("~0", "~"))
    return json.loads(json.dumps(node))


def _placed(obj: Obj) -> Obj:
    return {**obj, "metadata": {"namespace": NAMESPACE, **obj["metadata"]}}
