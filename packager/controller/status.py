"""Reports the bundles of each cluster by condition AddonBundlesReady, Events and a metric.

The HarvesterCluster has the condition. The provider writes other conditions of the same list, which
is one field to the API server. So each write carries the resourceVersion that was read. After a
conflict or an overwrite, the watch triggers another write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from caphv.api import conditions
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, being_deleted, key_of, list_at
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.cache import Change
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from caphv.runtime.events import EventRecorder, EventType
from packager.controller import metrics
from packager.controller.condition import ConditionUpdate, Outcome, commit_in, condition_of
from packager.controller.state import ClusterCache
from packager.fleet import Fleet

_READY = ConditionType.ADDON_BUNDLES_READY
_CONCURRENCY = 8


class Reporter:
    """Keeps the conditions in sync with the newest outcome of each cluster.

    `controller` must run to write them.
    """

    def __init__(
        self,
        client: ApiClient,
        clusters: ClusterCache,
        fleet: Fleet,
        events: EventRecorder,
        is_before: Callable[[str, str], bool],
    ) -> None:
        self.controller = Controller("addonbundles", self._report, concurrency=_CONCURRENCY)
        self._client = client
        self._clusters = clusters
        self._fleet = fleet
        self._events = events
        self._is_before = is_before
        self._outcomes: dict[Key, Outcome] = {}
        self._clusters_of: dict[Key, set[Key]] = defaultdict(set)

    def commits(self) -> dict[Key, str]:
        """Return the commit that last changed the files of each cluster.

        At first, that is the commit that the condition names.
        """
        commits = {}
        for cluster in self._clusters.clusters.store:
            key = key_of(cluster)
            outcome = self._outcomes.get(key)
            commit = (outcome.commit if outcome else "") or self._commit_of_condition(key)
            if commit:
                commits[key] = commit
        return commits

    def _commit_of_condition(self, key: Key) -> str:
        """Return the commit that the condition of a cluster names, or an empty text."""
        harvester_cluster = self._clusters.harvester_cluster(key)
        if harvester_cluster is None:
            return ""
        return commit_in(str((_condition(harvester_cluster) or {}).get("message", "")))

    @property
    def known(self) -> set[Key]:
        """Clusters with an outcome."""
        return set(self._outcomes)

    def outcome(self, key: Key) -> Outcome | None:
        """Return the newest outcome of a cluster."""
        return self._outcomes.get(key)

    def clusters_of(self, bundle: Key) -> set[Key]:
        """Return the clusters of a Bundle, or of a workspace if the name is empty."""
        return self._clusters_of.get(bundle, set())

    def is_in_repository(self, key: Key) -> bool:
        """Whether the condition already reports that the bundles are in the repository."""
        return bool(self._commit_of_condition(key))

    def update(self, key: Key, outcome: Outcome) -> None:
        """Set the newest outcome of a cluster; evaluate its condition if the outcome differs."""
        before = self._outcomes.get(key)
        if outcome.changed:
            message = f"pushed commit {outcome.commit} with the bundles of the cluster"
            self.record_event(key, "AddonBundlesPushed", message)
        # The Event is recorded, so the same outcome without a change is no news.
        newest = replace(outcome, changed=False)
        if before is not None and not newest.commit:
            # Without a commit, the repository still has what an earlier commit wrote.
            newest = replace(newest, commit=before.commit, expected=before.expected)
        if before == newest:
            return

        self._outcomes[key] = newest
        if expected := newest.expected:
            for _, name in expected.bundles:
                self._clusters_of[Key(expected.workspace, name)].add(key)
            self._clusters_of[Key(expected.workspace, "")].add(key)
        self.controller.enqueue(key)

    def forget(self, key: Key) -> None:
        """Forget a deleted Cluster."""
        if self._outcomes.pop(key, None) is None:
            return
        metrics.CLUSTER_READY.remove(str(key))
        for bundle in [bundle for bundle, keys in self._clusters_of.items() if key in keys]:
            self._clusters_of[bundle].discard(key)
            if not self._clusters_of[bundle]:
                del self._clusters_of[bundle]

    def resync(self) -> None:
        """Evaluate all clusters again, because Fleet became visible."""
        for key in self._outcomes:
            self.controller.enqueue(key)

    def on_fleet_change(self, bundle: Key) -> None:
        """Evaluate the clusters of a Bundle that changed.

        Without a name, `bundle` is a workspace in which a GitRepo changed.
        """
        for key in self.clusters_of(bundle):
            self.controller.enqueue(key)

    def on_harvester_cluster_change(self, change: Change) -> None:
        """Evaluate a cluster whose condition changed, because the provider may overwrite it."""
        if change.new is None:
            return
        if change.old is not None and _condition(change.old) == _condition(change.new):
            return
        clusters = self._clusters.clusters.store.by_index("infrastructure", str(change.key))
        for cluster in clusters:
            self.controller.enqueue(key_of(cluster))

    def record_event(self, key: Key, reason: str, message: str) -> None:
        """Record a normal Event for a cluster."""
        self._record(key, "Normal", reason, message)

    def record_warning(self, key: Key, reason: str, message: str) -> None:
        """Record a warning Event for a cluster."""
        self._record(key, "Warning", reason, message)

    async def _report(self, key: Key) -> None:
        """Write the condition of a cluster if it changed, with an Event if the user must act."""
        outcome = self._outcomes.get(key)
        obj = self._clusters.harvester_cluster(key)
        if outcome is None or obj is None or being_deleted(obj):
            return

        report = None
        if outcome.expected and not outcome.reason:
            report = self._fleet.report(outcome.expected, self._is_before)
        update = condition_of(outcome, report)
        metrics.CLUSTER_READY.labels(str(key)).set(update.status == "True")

        before = _condition(obj)
        # A conflict raises, and the controller tries again with the newer object.
        patch = _patch(obj, update)
        if patch is None:
            return
        metadata = obj["metadata"]
        try:
            new = await self._client.patch(
                HARVESTER_CLUSTERS,
                metadata["name"],
                metadata["namespace"],
                patch,
                subresource="status",
            )
        except NotFound:
            self._clusters.harvester_clusters.forget(metadata["namespace"], metadata["name"])
            return
        self._clusters.harvester_clusters.observe(new)
        if update.is_warning and (before or {}).get("message") != update.message:
            self.record_warning(key, update.reason, update.message)

    def _record(self, key: Key, kind: EventType, reason: str, message: str) -> None:
        obj = self._clusters.harvester_cluster(key)
        if obj is not None:
            about = {"apiVersion": HARVESTER_CLUSTERS.api_version, "kind": HARVESTER_CLUSTERS.kind}
            self._events.event({**about, "metadata": obj["metadata"]}, kind, reason, message)
            return
        # The Cluster was deleted, so only its name is left. Operators search Events by name.
        resource = self._clusters.clusters.resource
        metadata = {"namespace": key.namespace, "name": key.name}
        about = {"apiVersion": resource.api_version, "kind": resource.kind}
        self._events.event({**about, "metadata": metadata}, kind, reason, message)


def _condition(harvester_cluster: Obj) -> Obj | None:
    return conditions.get_condition(list_at(harvester_cluster, "status", "conditions"), _READY)


def _patch(obj: Obj, update: ConditionUpdate) -> Obj | None:
    """Return the merge patch that sets the condition, None if it is set already.

    The API server refuses the patch for any other resourceVersion.
    """
    before = list_at(obj, "status", "conditions")
    after = conditions.set_condition(
        before,
        _READY,
        update.status,
        reason=update.reason,
        message=update.message,
        generation=int(obj["metadata"].get("generation") or 0),
        now=datetime.now(UTC),
    )
    if after is before:
        return None
    version = obj["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": after}}
