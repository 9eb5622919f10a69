"""Triggers: what requeues an object whose reconcile could not continue.

Nothing polls, so a stop without a trigger would be permanent. Therefore `Blocked` requires one, and the type
checker finds a stop without it. A trigger has to be registered before the state is read on which the stop depends:
event handlers (`Watched`) always are, and a `Subscription` exists only once it is registered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from caphv.api.object import Key
from caphv.runtime.queue import WorkQueue


class Watched(Enum):
    """Objects whose changes requeue the objects that depend on them, by `reconciler.eventhandlers`."""

    SELF = "the object itself"
    CLUSTER = "its Cluster"
    HARVESTER_CLUSTER = "its HarvesterCluster"
    MACHINE = "its Machine"
    MACHINES = "the HarvesterMachines of the cluster"
    SECRET = "its identity Secret, bootstrap Secret or kubeconfig"  # noqa: S105 - not a password
    OBJECT = "a single object that the cluster watches"
    VM = "the VM of the machine, its instance and its disks"
    LOAD_BALANCER = "the LoadBalancer of the cluster and its Service"
    HOSTS = "hosts of Harvester"
    CONNECTION = "the connection to Harvester and its Deployment"
    WORKLOAD = "the API of the workload cluster"


@dataclass(frozen=True, slots=True)
class Delay:
    """Time: for what no watch can report, and for what is debounced."""

    seconds: float


class Subscription:
    """Requeues an object at the next notification of a topic.

    As a context manager it ends with the block, unless the block raises: then the object depends on the topic.
    """

    def __init__(self, topics: Topics, names: tuple[Hashable, ...], subscriber: Subscriber) -> None:
        self._topics, self._names, self._subscriber = topics, names, subscriber

    def cancel(self) -> None:
        """End the subscription: the object does not depend on the topic."""
        self._topics.unsubscribe(self._names, self._subscriber)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.cancel()


Trigger = Watched | Delay | Subscription
Subscriber = tuple[WorkQueue[Key], Key]


class Topics:
    """Topics that cannot be mapped to objects, such as an image or a free address, and the objects that need them."""

    def __init__(self) -> None:
        # Counted, because phases nest: the end of an inner subscription must not end an outer one.
        self._subscribers: dict[Hashable, Counter[Subscriber]] = defaultdict(Counter)

    def subscribe(self, queue: WorkQueue[Key], key: Key, *names: Hashable) -> Subscription:
        """Requeue a key at the next `notify` of one of these topics. Call this before reading their state."""
        subscriber = queue, key
        for name in names:
            self._subscribers[name][subscriber] += 1
        return Subscription(self, names, subscriber)

    def unsubscribe(self, names: tuple[Hashable, ...], subscriber: Subscriber) -> None:
        """Undo `subscribe`."""
        for name in names:
            subscribers = self._subscribers.get(name)
            if subscribers is None:
                continue
            subscribers[subscriber] -= 1
            if subscribers[subscriber] <= 0:
                del subscribers[subscriber]
            if not subscribers:
                del self._subscribers[name]

    def notify(self, name: Hashable) -> None:
        """The topic changed: requeue all its subscribers."""
        for queue, key in self._subscribers.pop(name, ()):
            queue.add(key)


def images(harvester: str) -> Hashable:
    """Topic: images of a Harvester, by fingerprint of the session."""
    return "images", harvester


def key_pairs(harvester: str) -> Hashable:
    """Topic: key pairs of a Harvester."""
    return "key pairs", harvester


def pool(harvester: str, name: str) -> Hashable:
    """Topic: an IPPool that appears, changes its spec, or has an address released."""
    return "pool", harvester, name


def pools(harvester: str) -> Hashable:
    """Topic: IPPools that appear, disappear or change their spec."""
    return "pools", harvester


def caches(harvester: str) -> Hashable:
    """Topic: caches of a Harvester that become current, or that fail to."""
    return "caches", harvester


def cloud_config(cluster: Key) -> Hashable:
    """Topic: the kubeconfig for guests of a HarvesterCluster."""
    return "cloud config", cluster


RANCHER: Hashable = "Rancher"
"""Topic: what Rancher knows about clusters."""
