"""Event handlers of a cluster with a machine, and their queues."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from caphv.api import resources
from caphv.api.object import NODES, Key, Obj
from caphv.runtime.cache import Change
from caphv.runtime.queue import WorkQueue
from reconciler.context import Context
from reconciler.eventhandlers import EventHandlers
from reconciler.harvester.session import Session
from reconciler.harvesterhandlers import HarvesterHandlers

CLUSTER = Key("team", "cluster")
MACHINE = Key("team", "one")
PROVIDER_ID = "harvester://uid"
READY: Obj = {"conditions": [{"type": "Ready", "status": "True"}]}


@dataclass(eq=False)
class OpenSession:
    """A session with caches of namespaces."""

    namespaces: dict[str, Any]


class Fixture:
    """Handlers of one machine."""

    def __init__(self, **spec: str) -> None:
        self.queue: WorkQueue[Key] = WorkQueue("test")
        self.clusters: WorkQueue[Key] = WorkQueue("clusters")
        self.cluster: Obj = {"metadata": {"namespace": CLUSTER.namespace, "name": CLUSTER.name}, "status": READY}
        machine = {"metadata": {"namespace": MACHINE.namespace, "name": MACHINE.name}, "spec": spec}
        self.machines = [machine]
        store = SimpleNamespace(by_index=lambda *_: [machine])
        caches = SimpleNamespace(
            harvester_clusters=SimpleNamespace(get=lambda *_: self.cluster),
            harvester_machines=SimpleNamespace(get=lambda *_: machine, store=store),
            cluster_of=lambda _: self.cluster,
            machines_of=lambda _: self.machines,
            harvester_cluster_of=lambda _: self.cluster,
        )
        queues = SimpleNamespace(clusters=self.clusters, machines=self.queue)
        queues.templates = queues.identities = queues.renewals = None
        sessions = SimpleNamespace(uses=lambda *_: True, users=lambda *_: [CLUSTER])
        self.context = SimpleNamespace(caches=caches, queues=queues, sessions=sessions, updates_in_place=False)
        context = cast(Context, self.context)
        self.handlers, self.harvester = EventHandlers(context), HarvesterHandlers(context)

    def node(self, old: Obj | None, new: Obj | None) -> bool:
        self.handlers.node(CLUSTER, Change(NODES, old, new))
        return len(self.queue) > 0

    def vm(self, old: Obj | None, new: Obj | None) -> bool:
        sessions: dict[Session, None] = {}
        self.harvester.handle(sessions, Change(resources.VIRTUAL_MACHINES, old, new))
        return len(self.queue) > 0

    def deleted(self, **labels: str) -> bool:
        """Delete the machine; return whether its cluster is requeued."""
        machine = {"metadata": {"namespace": MACHINE.namespace, "name": MACHINE.name, "labels": labels}}
        self.handlers.harvester_machine(Change(resources.HARVESTER_MACHINES, machine, None))
        return len(self.clusters) > 0


def node(uid: str = "1", **spec: Any) -> Obj:
    return {"metadata": {"name": MACHINE.name, "uid": uid}, "spec": spec}


def vm(status: Obj, uid: str = "uid") -> Obj:
    return {"metadata": {"namespace": "vms", "name": MACHINE.name, "uid": uid}, "status": status}
