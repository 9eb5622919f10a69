"""Says what became of each cluster's bundles: condition AddonBundlesReady of the HarvesterCluster, Events, a metric.

The provider writes conditions of the same object, and its list is one field. So the packager writes only onto the
version that it has read; where the provider was faster, or wrote over it, the watch brings it back here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from caphv.api import conditions
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, being_deleted, key_of
from caphv.runtime.cache import Change
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller
from caphv.runtime.errors import NotFound
from caphv.runtime.events import EventRecorder, EventType
from packager.controller import metrics
from packager.controller.condition import Outcome, Verdict, commit_in, verdict
from packager.controller.fleet import Fleet
from packager.controller.informers import HARVESTER_CLUSTERS
from packager.controller.state import View

_READY = ConditionType.ADDON_BUNDLES_READY
_CONCURRENCY = 8


class Reporter:
    """Keeps the conditions true to the newest outcome of each cluster; `controller` has to run for that."""

    def __init__(
        self,
        client: ApiClient,
        view: View,
        fleet: Fleet,
        events: EventRecorder,
        is_before: Callable[[str, str], bool],
    ) -> None:
        self.controller = Controller("addonbundles", self._report, concurrency=_CONCURRENCY)
        self._client = client
        self._view = view
        self._fleet = fleet
        self._events = events
        self._is_before = is_before
        self._outcomes: dict[Key, Outcome] = {}
        self._clusters_of: dict[Key, set[Key]] = defaultdict(set)

    def commits(self) -> dict[Key, str]:
        """Return by cluster the commit that last changed its files; from before this process, as conditions say."""
        known = {}
        for cluster in self._view.clusters.store:
            key = key_of(cluster)
            outcome = self._outcomes.get(key)
            commit = outcome.commit if outcome else ""
            if not commit and (harvester_cluster := self._view.harvester_cluster(key)):
                commit = commit_in(str((_condition(harvester_cluster) or {}).get("message", "")))
            if commit:
                known[key] = commit
        return known

    @property
    def known(self) -> set[Key]:
        """Clusters of which something was said."""
        return set(self._outcomes)

    def settled(self, key: Key) -> bool:
        """Whether the condition says already that the bundles are in the repository."""
        found = self._view.harvester_cluster(key)
        return found is not None and bool(commit_in(str((_condition(found) or {}).get("message", ""))))

    def say(self, key: Key, outcome: Outcome) -> None:
        """Take the newest outcome of a cluster."""
        before = self._outcomes.get(key)
        if outcome.changed:
            self.tell(key, "AddonBundlesPushed", f"commit {outcome.commit} has the bundles of the cluster")
            outcome = replace(outcome, changed=False)
        if before is not None and not outcome.commit:
            # What the repository holds stays, and so does what is known of it.
            outcome = replace(outcome, commit=before.commit, wanted=before.wanted)
        if before == outcome:
            return
        self._outcomes[key] = outcome
        if outcome.wanted:
            for _, name in outcome.wanted.bundles:
                self._clusters_of[Key(outcome.wanted.workspace, name)].add(key)
            self._clusters_of[Key(outcome.wanted.workspace, "")].add(key)
        self.controller.enqueue(key)

    def forget(self, key: Key) -> None:
        """The Cluster is gone."""
        if self._outcomes.pop(key, None) is not None:
            metrics.CLUSTER_READY.remove(str(key))
            for place in [place for place, keys in self._clusters_of.items() if key in keys]:
                self._clusters_of[place].discard(key)
                if not self._clusters_of[place]:
                    del self._clusters_of[place]

    def look_again(self) -> None:
        """Judge all clusters anew: what Fleet knows can be seen only now."""
        for key in self._outcomes:
            self.controller.enqueue(key)

    def fleet_changed(self, place: Key) -> None:
        """Fleet says something new of a Bundle, or of a GitRepo where the name is empty."""
        for key in self._clusters_of.get(place, ()):
            self.controller.enqueue(key)

    def harvester_cluster_changed(self, change: Change) -> None:
        """Look again when the condition is not what was written: the provider may have written over it."""
        if change.new is not None and (change.old is None or _condition(change.old) != _condition(change.new)):
            for cluster in self._view.clusters.store.by_index("infrastructure", str(change.key)):
                self.controller.enqueue(key_of(cluster))

    def tell(self, key: Key, reason: str, message: str) -> None:
        """Write a normal Event on a cluster."""
        self._event(key, "Normal", reason, message)

    def warn(self, key: Key, reason: str, message: str) -> None:
        """Write a warning on a cluster."""
        self._event(key, "Warning", reason, message)

    async def _report(self, key: Key) -> None:
        outcome, obj = self._outcomes.get(key), self._view.harvester_cluster(key)
        if outcome is None or obj is None or being_deleted(obj):
            return
        report = self._fleet.report(outcome.wanted, self._is_before) if outcome.wanted and not outcome.reason else None
        said = verdict(outcome, report)
        metrics.CLUSTER_READY.labels(str(key)).set(said.status == "True")
        before = _condition(obj)
        patch = _patch(obj, said)
        if patch is None:
            return
        metadata = obj["metadata"]
        try:
            new = await self._client.patch(
                HARVESTER_CLUSTERS, metadata["name"], metadata["namespace"], patch, subresource="status"
            )
        except NotFound:
            self._view.harvester_clusters.forget(metadata["namespace"], metadata["name"])
            return
        self._view.harvester_clusters.observe(new)
        if said.warns and (before or {}).get("message") != said.message:
            self.warn(key, said.reason, said.message)

    def _event(self, key: Key, kind: EventType, reason: str, message: str) -> None:
        obj = self._view.harvester_cluster(key)
        if obj is not None:
            about = {"apiVersion": HARVESTER_CLUSTERS.api_version, "kind": HARVESTER_CLUSTERS.kind}
            self._events.event({**about, "metadata": obj["metadata"]}, kind, reason, message)
            return
        # Of a Cluster that is gone only the name is left, and that is what an operator looks for.
        resource = self._view.clusters.resource
        metadata = {"namespace": key.namespace, "name": key.name}
        about = {"apiVersion": resource.api_version, "kind": resource.kind}
        self._events.event({**about, "metadata": metadata}, kind, reason, message)


def _condition(harvester_cluster: Obj) -> Obj | None:
    return conditions.get_condition((harvester_cluster.get("status") or {}).get("conditions") or [], _READY)


def _patch(obj: Obj, said: Verdict) -> Obj | None:
    """Return the merge patch that sets the condition on this very version, None when it says so already."""
    before = (obj.get("status") or {}).get("conditions") or []
    after = conditions.set_condition(
        before,
        _READY,
        said.status,
        reason=said.reason,
        message=said.message,
        generation=int(obj["metadata"].get("generation") or 0),
        now=datetime.now(UTC),
    )
    if after is before:
        return None
    version = obj["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": after}}
