"""Triggers, which requeue an object whose reconcile could not continue.

Nothing polls, so a stop without a trigger would be permanent. Therefore `Blocked` requires a
trigger, and the type checker finds a stop without one. A trigger has to be registered before a
reconcile reads the state on which the stop depends. Event handlers (`Watched`) are always
registered, and creating a `Subscription` registers it.
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
    """Objects whose changes `reconciler.eventhandlers` maps to the objects that depend on them."""

    SELF = "the object itself"
    CLUSTER = "its Cluster"
    HARVESTER_CLUSTER = "its HarvesterCluster"
    MACHINE = "its Machine"
    MACHINES = "the HarvesterMachines of the cluster"
    SECRET = "its identity Secret, bootstrap Secret or kubeconfig"  # noqa: S105 - not a password
    CLUSTER_IDENTITY = "its HarvesterClusterIdentity and the labels of its namespace"
    OBJECT = "a single object that the cluster watches"
    VM = "the VM of the machine, its instance and its disks"
    LOAD_BALANCER = "the LoadBalancer of the cluster and its Service"
    ADDRESS_CLAIM = "an IPAddressClaim of the machine, or its IPAddress"
    HOSTS = "hosts of Harvester"
    CONNECTION = "the connection to Harvester and its Deployment"
    WORKLOAD = "the API of the workload cluster"


@dataclass(frozen=True, slots=True)
class Delay:
    """A time to wait: for changes that no watch reports, and for states that are debounced."""

    seconds: float


class Subscription:
    """Requeue an object at the next notification of a topic.

    As a context manager, the subscription ends with the block. It stays if the block raises,
    because the object then depends on the topic.
    """

    def __init__(self, topics: Topics, names: tuple[Hashable, ...], subscriber: Subscriber) -> None:
        self._topics = topics
        self._names = names
        self._subscriber = subscriber

    def cancel(self) -> None:
        """End the subscription, because the object does not depend on the topic."""
        self._topics.unsubscribe(self._names, self._subscriber)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.cancel()


Trigger = Watched | Delay | Subscription
Subscriber = tuple[WorkQueue[Key], Key]


class Topics:
    """Topics, such as an image or a free address, and the objects that wait for them.

    They serve changes that event handlers cannot map to an object. A subscription lasts until the
    next reconcile of the object at most, which begins with `unsubscribe_all`.
    """

    def __init__(self) -> None:
        # Subscriptions are counted, because phases nest, and the end of an inner subscription must
        # not end the outer one.
        self._subscribers: dict[Hashable, Counter[Subscriber]] = defaultdict(Counter)
        self._topics: dict[Subscriber, set[Hashable]] = defaultdict(set)

    def subscribe(self, queue: WorkQueue[Key], key: Key, *names: Hashable) -> Subscription:
        """Requeue a key at the next `notify` of a topic. Call this before reading its state."""
        subscriber = queue, key
        for name in names:
            self._subscribers[name][subscriber] += 1
        self._topics[subscriber].update(names)
        return Subscription(self, names, subscriber)

    def unsubscribe(self, names: tuple[Hashable, ...], subscriber: Subscriber) -> None:
        """Undo `subscribe`."""
        for name in names:
            subscribers = self._subscribers.get(name)
            if subscribers is None:
                continue
            subscribers[subscriber] -= 1
            if subscribers[subscriber] <= 0:
                self._remove(name, subscriber)

    def unsubscribe_all(self, queue: WorkQueue[Key], key: Key) -> None:
        """End the subscriptions of an object, whose next reconcile subscribes as it needs."""
        for name in list(self._topics.get((queue, key), ())):
            self._remove(name, (queue, key))

    def notify(self, name: Hashable) -> None:
        """Requeue all subscribers of a topic that has changed."""
        for queue, key in list(self._subscribers.get(name, ())):
            self._remove(name, (queue, key))
            queue.add(key)

    def _remove(self, name: Hashable, subscriber: Subscriber) -> None:
        """Remove a subscriber from a topic."""
        subscribers = self._subscribers[name]
        del subscribers[subscriber]
        if not subscribers:
            del self._subscribers[name]

        topics = self._topics[subscriber]
        topics.discard(name)
        if not topics:
            del self._topics[subscriber]


def images(harvester: str) -> Hashable:
    """Return the topic of the images of a Harvester.

    :param harvester: fingerprint of a session on it
    """
    return "images", harvester


def image(harvester: str, namespace: str, name: str) -> Hashable:
    """Return the topic of the images of a Harvester with a name or display name.

    :param harvester: fingerprint of a session on it
    """
    return "image", harvester, namespace, name


def key_pairs(harvester: str) -> Hashable:
    """Return the topic of the key pairs of a Harvester."""
    return "key pairs", harvester


def pool(harvester: str, name: str) -> Hashable:
    """Return the topic of an IPPool that appears, changes its spec, or has an address released."""
    return "pool", harvester, name


def pools(harvester: str) -> Hashable:
    """Return the topic of IPPools that appear, disappear or change their spec."""
    return "pools", harvester


def caches(harvester: str) -> Hashable:
    """Return the topic of the caches of a Harvester that become current or begin to fail."""
    return "caches", harvester


def cloud_config(cluster: Key) -> Hashable:
    """Return the topic of the kubeconfig for guests of a HarvesterCluster."""
    return "cloud config", cluster


def guest_parts(cluster: Key) -> Hashable:
    """Topic: the guest of a HarvesterCluster that is being deleted, whose objects are recorded."""
    return "guest parts", cluster


RANCHER: Hashable = "Rancher"
"""The topic of Rancher's objects about clusters."""

IPAM: Hashable = "IPAM"
"""The topic of the API for IPAddressClaims, which appears or can be read."""
