"""Which Secret the clusters of a namespace get from a HarvesterClusterIdentity.

`reconciler.cluster.identity` reads this Secret for a cluster. `reconciler.clusteridentity` renews
tokens, and records here which identities have one in use.

The caches of identities, and of namespaces whose labels they select, start with the first cluster
that refers to an identity. Without such a cluster, the provider needs neither the CRD nor a right
on it, as before an upgrade of its manifests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from caphv.api import resources
from caphv.api.identities import Refused, depends_on_labels, resolve, secret_of
from caphv.api.object import NAMESPACES, Key, Obj, key_of, labels_of, uid_of
from caphv.api.tokenrenewal import identity_name, renewal_of, secret_name
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound

_BACKOFF_SECONDS = 5.0
_CACHED_METADATA = ("name", "uid", "resourceVersion", "generation", "labels")
_REFUSALS = (NotFound, Forbidden)


class NotRead(Exception):
    """What decides about an identity has not been read.

    :param error: why; None while it is read for the first time
    """

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(str(error or ""))
        self.error = error

    @property
    def is_lasting(self) -> bool:
        """Whether the CRD or a right is missing, so that a person has to act."""
        return isinstance(self.error, _REFUSALS)


class ClusterIdentities:
    """Decide which Secret the clusters of a namespace get from a HarvesterClusterIdentity.

    :param client: client of the management cluster
    :param namespace: namespace of the provider, the only one with Secrets of identities
    """

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self.renewed = RenewedTokens(namespace)
        self._client = client
        self._identity_changed: Callable[[str], None] = lambda _name: None
        self._namespace_changed: Callable[[str], None] = lambda _name: None
        self._identities: Informer | None = None
        self._namespaces: Informer | None = None
        self._identities_reports = _Reports(lambda: self._identity_changed(""))
        self._namespaces_reports = _Reports(lambda: self._namespace_changed(""))
        self._tasks: list[asyncio.Task[None]] = []

    def connect(
        self, identity_changed: Callable[[str], None], namespace_changed: Callable[[str], None]
    ) -> None:
        """Call these with the name of what changed.

        The name is empty when a watch was filled or lost, which may change the answer for all.
        """
        self._identity_changed = identity_changed
        self._namespace_changed = namespace_changed

    def resolve(self, name: str, namespace: str, *, is_ending: bool = False) -> Key | Refused:
        """Return the Secret that clusters of a namespace get by an identity, or why they get none.

        Raises `NotRead` while it cannot be decided; a callback follows when it can.

        :param is_ending: whether the cluster is being deleted, for which it may use the token of an
            identity that was deleted together with it
        """
        identity = self._start_identities().get("", name)
        if identity is None and is_ending:
            identity = self.renewed.ended.get(name)
        labels = None
        if identity and depends_on_labels(identity, namespace):
            obj = self._start_namespaces().get("", namespace)
            labels = labels_of(obj) if obj else None
        answer = resolve(name, identity, namespace, labels, self.namespace)
        if identity is None or isinstance(answer, Refused) or renewal_of(identity) is None:
            return answer
        return self.renewed.secret_of(name, answer)

    def read(self, name: str) -> Obj | None:
        """Return a HarvesterClusterIdentity, None if there is none. Raises `NotRead`."""
        return self._start_identities().get("", name)

    def observe(self, identity: Obj) -> None:
        """Store the response to a write of this process."""
        self._start_identities().observe(identity)

    def report(self, name: str) -> None:
        """Report that the credentials of an identity have changed."""
        self._identity_changed(name)

    def with_renewal(self) -> Iterator[str]:
        """Yield the names of the identities whose token the provider renews."""
        if self._identities is None:
            return
        for identity in self._identities.store:
            if renewal_of(identity) is not None:
                yield key_of(identity).name

    def with_secret(self, secret: Key) -> Iterator[str]:
        """Yield the names of the identities that name a Secret, or whose renewed token it holds."""
        if self._identities is None:
            return
        if renewed := self.renewed.identity_of(secret):
            yield renewed
        if secret.namespace == self.namespace:
            for identity in self._identities.store:
                if secret_of(identity) == secret:
                    yield key_of(identity).name

    async def close(self) -> None:
        """Stop the watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_identities(self) -> Informer:
        """Return the filled cache of identities. Raises `NotRead` until it is filled."""
        reports = self._identities_reports
        if self._identities is None:
            self._identities = Informer(
                self._client,
                resources.HARVESTER_CLUSTER_IDENTITIES,
                transform=_slim_identity,
                on_error=reports.on_error,
                on_contact=reports.on_contact,
                max_backoff=_BACKOFF_SECONDS,
            )
            self._identities.add_handler(self._handle_identity)
            self._tasks.append(self._identities.start())
        return _filled(self._identities, reports)

    def _start_namespaces(self) -> Informer:
        """Return the filled cache of namespaces. Raises `NotRead` until it is filled."""
        reports = self._namespaces_reports
        if self._namespaces is None:
            self._namespaces = Informer(
                self._client,
                NAMESPACES,
                metadata_only=True,
                transform=_slim_namespace,
                on_error=reports.on_error,
                on_contact=reports.on_contact,
                max_backoff=_BACKOFF_SECONDS,
            )
            self._namespaces.add_handler(self._handle_namespace)
            self._tasks.append(self._namespaces.start())
        return _filled(self._namespaces, reports)

    def _handle_identity(self, change: Change) -> None:
        """Report a change of a spec; the provider itself writes the status."""
        self.renewed.observe(change.old, change.new)
        if _spec(change.old) != _spec(change.new):
            self._identity_changed(change.key.name)

    def _handle_namespace(self, change: Change) -> None:
        """Report a change of labels, which identities select."""
        if (
            change.old is None
            or change.new is None
            or labels_of(change.old) != labels_of(change.new)
        ):
            self._namespace_changed(change.key.name)


class RenewedTokens:
    """Which Secret is in use of the identities whose token the provider renews.

    The controller of renewals records it. After a restart it is unknown until the first attempt.

    :param namespace: namespace of the provider, which has the Secrets
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._used: dict[str, Key | None] = {}
        self.rejected: dict[str, str] = {}
        """Fingerprint of the token that Harvester rejected last, by name of the identity."""
        self.ended: dict[str, Obj] = {}
        """Identities that were deleted, until their token is revoked."""
        self.servers: dict[str, str] = {}
        """The server that was asked last for a token, by name of the identity."""

    def observe(self, old: Obj | None, new: Obj | None) -> None:
        """Learn of a change of an identity: a token of a deleted one is none of its successor."""
        if new is None and old is not None:
            name = key_of(old).name
            if self._used.get(name) and renewal_of(old) is not None:
                self.ended[name] = old
        elif new is not None and (old is None or uid_of(old) != uid_of(new)):
            self.forget(key_of(new).name)

    def key_of(self, name: str) -> Key:
        """Return the Secret for the renewed token of an identity."""
        return Key(self._namespace, secret_name(name))

    def identity_of(self, secret: Key) -> str:
        """Return the name of the identity whose renewed token a Secret holds, empty for others."""
        return identity_name(secret.name) if secret.namespace == self._namespace else ""

    def secret_of(self, name: str, own: Key) -> Key:
        """Return the Secret with the credentials of an identity. Raises `NotRead` until known.

        :param own: the Secret that the identity names, for use without a renewed token
        """
        if name not in self._used:
            raise NotRead
        return self._used[name] or own

    def is_known(self, name: str) -> bool:
        """Return whether it is recorded which Secret of an identity is in use."""
        return name in self._used

    def uses_token(self, name: str) -> bool:
        """Return whether clusters use the renewed token of an identity."""
        return self._used.get(name) is not None

    def use(self, name: str, secret: Key | None) -> bool:
        """Record the Secret in use, None for the user's; return whether that is news."""
        is_news = name not in self._used or self._used[name] != secret
        self._used[name] = secret
        return is_news

    def forget(self, name: str) -> None:
        """Forget an identity whose token is no longer renewed."""
        self._used.pop(name, None)
        self.rejected.pop(name, None)
        self.ended.pop(name, None)
        self.servers.pop(name, None)


def _filled(informer: Informer, reports: _Reports) -> Informer:
    """Return a cache if its content may be used. Raises `NotRead`."""
    # A CRD that was deleted took all identities with it, and without the right to watch no
    # withdrawal of a permission is noticed, whatever the cache still has.
    if reports.refusal or not informer.synced:
        raise NotRead(reports.refusal or informer.last_error)
    return informer


class _Reports:
    """Report that a cache became readable, because an empty one has no events, or was refused.

    Repeated failures and contacts are not reported. `refusal` is kept until the next contact: a
    failure of another kind says nothing about the right that is missing.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._readable: bool | None = None
        self.refusal: Exception | None = None

    def on_contact(self) -> None:
        """Report that the cache is readable, unless it was."""
        self.refusal = None
        self._set(readable=True)

    def on_error(self, error: Exception) -> None:
        """Report that the cache is no longer readable, if the API server refuses the watch."""
        if isinstance(error, _REFUSALS):
            self.refusal = error
            self._set(readable=False)

    def _set(self, *, readable: bool) -> None:
        if self._readable is not readable:
            self._readable = readable
            self._report()


def _spec(obj: Obj | None) -> object:
    return obj and obj["spec"]


def _slim_identity(identity: Obj) -> Obj:
    """Return the fields of a HarvesterClusterIdentity to cache."""
    status = {"status": identity["status"]} if identity.get("status") else {}
    return {**_slim_namespace(identity), "spec": identity.get("spec") or {}, **status}


def _slim_namespace(namespace: Obj) -> Obj:
    """Return the fields of a namespace to cache."""
    metadata = namespace["metadata"]
    return {"metadata": {name: metadata[name] for name in _CACHED_METADATA if name in metadata}}
