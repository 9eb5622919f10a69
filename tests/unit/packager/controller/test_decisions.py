"""Pure decisions of the packager in the cluster: when to look, what conditions say, what Fleet's objects mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.names import Reason
from caphv.api.object import Key, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from packager import fleet
from packager.controller import condition, loop
from packager.controller import state as view
from packager.controller.condition import Outcome
from packager.controller.debouncer import Debouncer
from packager.fleet import ExpectedBundles, Report

pytestmark = pytest.mark.unit

ONE, TWO = Key("team", "one"), Key("team", "two")
COMMIT, OLDER = "b" * 40, "a" * 40
WANTED = ExpectedBundles("team", (("ccm", "ccm-one-1"), ("cni", "cni-one-2")), "fleet/clusters/team/one", COMMIT)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_waits_for_quiet_but_not_forever() -> None:
    clock = Clock()
    trigger = Debouncer(1.0, 15.0, clock)
    assert trigger.seconds_until_due() == float("inf")
    trigger.touch(ONE)
    for _ in range(30):
        clock.now += 0.5
        if not trigger.seconds_until_due():
            break
        trigger.touch(TWO)
    assert clock.now - 100 == 15.0
    assert trigger.take() == [ONE, TWO]
    assert trigger.seconds_until_due() == float("inf")


def test_who_asks_for_it_does_not_wait() -> None:
    trigger = Debouncer(1.0, 15.0, Clock())
    trigger.touch(ONE, now=True)
    assert trigger.seconds_until_due() == 0
    trigger.take()
    trigger.drop_taken()
    trigger.trigger_now()
    assert (trigger.seconds_until_due(), trigger.take()) == (0, [])


def test_a_failure_keeps_what_has_changed_and_since_when() -> None:
    clock = Clock()
    trigger = Debouncer(1.0, 15.0, clock)
    trigger.touch(ONE)
    clock.now += 5
    trigger.take()
    trigger.touch(TWO)
    trigger.touch(ONE)
    assert trigger.lag == 5
    trigger.put_back()
    clock.now += 1
    assert (trigger.lag, trigger.take()) == (6, [ONE, TWO])
    trigger.drop_taken()
    assert trigger.lag == 0


def test_a_change_during_a_push_is_not_taken_for_pushed() -> None:
    clock = Clock()
    trigger = Debouncer(1.0, 15.0, clock)
    trigger.touch(ONE)
    trigger.take()
    clock.now += 3
    trigger.touch(ONE)
    trigger.drop_taken()
    clock.now += 1
    assert (trigger.lag, trigger.take()) == (1, [ONE])


def test_pauses_after_failures_grow_and_end() -> None:
    pauses = [loop.backoff(number) for number in (1, 5, 5000)]
    assert 0.75 <= pauses[0] <= 1.25
    assert 12 <= pauses[1] <= 20
    assert 225 <= pauses[2] <= 375


# Conditions


def test_the_condition_names_the_commit_and_is_found_again() -> None:
    for report in (None, Report(()), Report(("cni: NotReady",))):
        reported = condition.condition_of(Outcome(None, "", COMMIT, WANTED), report)
        assert condition.commit_in(reported.message) == COMMIT
        assert reported.status == ("False" if report and report.problems else "True")
    assert condition.commit_in("commit abc; merge it") == ""


@pytest.mark.parametrize(
    ("reason", "warns"),
    [
        (Reason.ADDON_BUNDLES_INVALID, True),
        (Reason.ADDON_BUNDLES_NOT_PUSHED, True),
        (Reason.ADDON_BUNDLES_SUSPENDED, False),
        (Reason.ADDON_BUNDLES_IN_PROGRESS, False),
    ],
)
def test_only_what_a_user_has_to_do_something_about_is_a_warning(reason: Reason, warns: bool) -> None:
    reported = condition.condition_of(Outcome(reason, "why"), None)
    assert (reported.status, reported.reason, reported.message, reported.is_warning) == ("False", reason, "why", warns)


def test_the_message_of_a_commit_says_why_in_one_line() -> None:
    assert condition.commit_reason([]) == "Repository was out of sync."
    many = condition.commit_reason(Key("team", f"c{number}") for number in range(7))
    assert many == "Changed on the management cluster: team/c0, team/c1, team/c2, team/c3, team/c4 and 2 more."


# Fleet


def bundle(
    desired: int = 1,
    ready: int = 1,
    *,
    commit: str = COMMIT,
    state: str = "",
    message: str = "",
    observed: int | None = 2,
    unavailable: int = 0,
) -> Obj:
    """A Bundle of generation 2, as it is cached."""
    rows = [{"bundleState": state, "message": message}] if message else []
    found = fleet.trim_bundle(
        {
            "metadata": {
                **dict.fromkeys(("name", "namespace", "uid", "resourceVersion"), "1"),
                "generation": 2,
                "labels": {"caphv.io/bundle": "cni", "fleet.cattle.io/commit": commit, "noise": "x"},
            },
            "status": {
                **({} if observed is None else {"observedGeneration": observed}),
                "unavailable": unavailable,
                "display": {"state": state},
                "summary": {"desiredReady": desired, "ready": ready, "nonReadyResources": rows},
            },
        }
    )
    assert found is not None
    return found


def git_repo(*paths: str, message: str = "") -> Obj:
    conditions = [{"type": "Stalled", "status": "True", "message": message}] if message else []
    metadata = dict.fromkeys(("name", "namespace", "uid", "resourceVersion"), "repo")
    return fleet.trim_git_repo(
        {"metadata": metadata, "spec": {"paths": list(paths)}, "status": {"conditions": conditions}}
    )


def problems(found: Obj | None, readers: list[Obj] | None = None) -> tuple[str, ...]:
    order = {OLDER: 0, COMMIT: 1}
    validated = fleet.evaluate(
        {"cni": found}, readers, WANTED, lambda commit, other: order.get(commit, 9) < order.get(other, -1)
    )
    return validated.problems


def test_what_fleet_says_of_a_bundle() -> None:
    assert problems(bundle()) == ()
    assert problems(bundle(commit="c" * 40)) == (), "a commit that is unknown here may be a newer one"
    assert problems(bundle(commit=OLDER)) == (f"cni: Fleet is still at commit {OLDER[:12]}",)
    assert problems(bundle(0, 0)) == ("cni: no cluster of Fleet matches it yet",)
    (waiting,) = problems(bundle(1, 0, state="WaitApplied"))
    assert waiting.startswith("cni: WaitApplied: its agent has not applied it")
    assert "cattle-fleet-system/fleet-agent" in waiting
    assert problems(bundle(1, 0, state="ErrApplied", message="no route")) == ("cni: ErrApplied: no route",)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {
                "bundleState": "Modified",
                "message": 'secret.v1 kube-system/tls modified {"data":{"key":"c2VjcmU"}}',
                "modifiedStatus": [
                    {
                        "kind": "Secret",
                        "namespace": "kube-system",
                        "name": "tls",
                        "patch": '{"data":{"key":"c2VjcmU"}}',
                    }
                ],
            },
            "Secret kube-system/tls was changed in data.key",
        ),
        (
            {"bundleState": "Modified", "message": 'secret.v1 kube-system/tls modified {"data":{"key":"c2VjcmU"}}'},
            "secret.v1 kube-system/tls modified",
        ),
        (
            {"modifiedStatus": [{"kind": "ConfigMap", "name": "a", "patch": '{"data":{"a":1,"b":1,"c":1,"d":1}}'}]},
            "ConfigMap a was changed in data.a, data.b, data.c and 1 more",
        ),
        ({"modifiedStatus": [{"kind": "ConfigMap", "name": "a", "missing": True}]}, "ConfigMap a is missing"),
        (
            {"modifiedStatus": [{"kind": "HelmChartConfig", "name": "a", "missing": True, "exist": True}]},
            "HelmChartConfig a is not labelled as Fleet's: another client applied it",
        ),
        ({"modifiedStatus": [{"kind": "ConfigMap", "name": "a", "delete": True}]}, "ConfigMap a should not exist"),
        ({"modifiedStatus": [{"kind": "ConfigMap", "name": "a", "patch": "{"}]}, "ConfigMap a was changed"),
        (
            {"nonReadyStatus": [{"kind": "Deployment", "name": "a", "summary": {"message": ["no replicas"]}}]},
            "Deployment a is not ready: no replicas",
        ),
        (
            {"bundleState": "ErrApplied", "message": 'conflict with "operator": .spec.calicoNetwork.ipPools'},
            'conflict with "operator": .spec.calicoNetwork.ipPools',
        ),
        ({"bundleState": "WaitApplied"}, ""),
    ],
)
def test_why_a_bundle_is_not_ready_names_objects_and_fields_without_values(row: Obj, reason: str) -> None:
    assert fleet.explain(row) == reason


def test_a_bundle_is_not_ready_by_the_summary_of_an_earlier_deployment() -> None:
    unprocessed = ("cni: Fleet has not processed it yet",)
    assert problems(bundle(observed=1)) == unprocessed
    assert problems(bundle(1, 0, observed=1, message="no route")) == unprocessed
    assert problems(bundle(observed=None)) == unprocessed
    # Before version 0.16, Fleet summarizes first, and then counts the deployments that it changes.
    assert problems(bundle(unavailable=1)) == unprocessed
    assert problems(bundle(1, 0, unavailable=1)) == ("cni: NotReady",)


def test_why_fleet_has_not_got_a_bundle() -> None:
    path = f"{WANTED.folder}/*"
    assert problems(None) == ("cni: Fleet has not read it yet",)
    assert problems(None, []) == (f"cni: no GitRepo in namespace team has the path {path}; create one",)
    assert problems(None, [git_repo(path)]) == ("cni: Fleet has not read it yet",)
    reported = problems(None, [git_repo(path, message="authentication required")])
    assert reported == ("cni: GitRepo repo says: authentication required",)


def test_why_fleet_stays_at_an_older_commit() -> None:
    old = f"cni: Fleet is still at commit {OLDER[:12]}"
    path = f"{WANTED.folder}/*"
    assert problems(bundle(commit=OLDER), [git_repo(path)]) == (old,)
    failing = git_repo(path, message="authentication required")
    assert problems(bundle(commit=OLDER), [failing]) == (old, "GitRepo repo says: authentication required")
    # What Fleet has read already, it deploys.
    assert problems(bundle(), [failing]) == ()


def test_bundles_of_others_are_not_checked() -> None:
    assert fleet.trim_bundle({"metadata": {"name": "x", "labels": {"app": "x"}}}) is None


@pytest.mark.parametrize("path", ["a/b", "a/b/*", "/a/b/", "a/b/**", "a", "a/*/*", "*/b"])
def test_which_gitrepo_reads_a_folder(path: str) -> None:
    assert fleet.reads_folder(git_repo("else", path), "a/b")
    assert not fleet.reads_folder(git_repo(path), "c/d/e")


# Clusters


def cluster(**spec: Any) -> Obj:
    return {"metadata": {"name": "one", "namespace": "team"}, "spec": spec}


def test_references_of_both_contracts_are_read() -> None:
    new = {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "RKE2ControlPlane", "name": "cp"}
    old = {"apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "RKE2ControlPlane", "name": "cp"}
    expected = ("controlplane.cluster.x-k8s.io", "RKE2ControlPlane", "cp")
    assert view.control_plane_ref(cluster(controlPlaneRef=new)) == expected
    assert view.control_plane_ref(cluster(controlPlaneRef=old)) == expected
    assert view.control_plane_ref(cluster()) == ("", "", "")
    assert view.class_key(cluster(topology={"classRef": {"name": "rke2", "namespace": "all"}})) == Key("all", "rke2")
    assert view.class_key(cluster(topology={"class": "rke2"})) == Key("team", "rke2")
    assert view.class_key(cluster()) is None


def test_what_suspends_a_cluster() -> None:
    assert view.suspension(cluster()) == ""
    assert "paused" in view.suspension(cluster(paused=True))
    annotated = cluster()
    annotated["metadata"]["annotations"] = {"addons.caphv.io/suspend": "true"}
    assert "remove it to resume" in view.suspension(annotated)


def cache(watch_filter: str = "", namespace: str = "") -> view.ClusterCache:
    return view.ClusterCache(
        cast(ApiClient, SimpleNamespace(name="management", budget=None)),
        "v1beta2",
        view.ClusterFilter(namespace, watch_filter),
        lambda *_: None,
        lambda: None,
    )


async def test_which_clusters_were_seen_to_be_deleted() -> None:
    found = cache()
    found.connect()
    deleting = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["cluster.cluster.x-k8s.io"]}

    def observe(name: str, version: str, paused: bool = False, **more: Any) -> None:
        metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": version, **more}
        found.clusters.observe({"metadata": metadata, "spec": {"paused": paused}})

    for name in ("deleted", "absent", "moved"):
        observe(name, "1")
    observe("deleted", "2", **deleting)
    observe("moved", "2", paused=True, **deleting)
    for name in ("deleted", "absent", "moved"):
        found.clusters.forget("team", name)
    assert (found.deleted_clusters(), found.moved_clusters()) == ({Key("team", "deleted")}, {Key("team", "moved")})
    observe("deleted", "3")
    assert found.deleted_clusters() == set()
    await found.kinds.close()


def test_which_clusters_an_upgrade_awaits() -> None:
    found = cache("blue")
    metadata: dict[str, Obj] = {
        "own": {},
        "suspended": {"annotations": {"addons.caphv.io/suspend": "true"}},
        "deleted": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]},
        "others": {},
        "unread": {},
    }
    for name, more in metadata.items():
        common = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1"}
        ref = {"kind": "HarvesterCluster", "name": name}
        found.clusters.observe({"metadata": {**common, **more}, "spec": {"infrastructureRef": ref}})
        if name != "unread":
            label = {"cluster.x-k8s.io/watch-filter": "green" if name == "others" else "blue"}
            found.harvester_clusters.observe({"metadata": {**common, "labels": label}})
    assert found.present_clusters() == {Key("team", "own"), Key("team", "unread")}


@pytest.mark.parametrize(
    ("namespace", "role"), [("", "a ClusterRole with rule"), ("team", "a Role in namespace team with rule")]
)
def test_a_control_plane_that_must_not_be_read_names_the_right(
    monkeypatch: pytest.MonkeyPatch, namespace: str, role: str
) -> None:
    found = cache(namespace=namespace)
    reference = {"apiGroup": "example.com", "kind": "SpaceControlPlane", "name": "one"}
    metadata = {"name": "one", "namespace": "team", "uid": "one", "resourceVersion": "1"}
    found.harvester_clusters.observe({"metadata": metadata, "spec": {}})
    spec = {"infrastructureRef": {"kind": "HarvesterCluster", "name": "one"}, "controlPlaneRef": reference}
    found.clusters.observe({"metadata": metadata, "spec": spec})
    resource = Resource("example.com", "v1", "spacecontrolplanes", "SpaceControlPlane")
    informer = SimpleNamespace(resource=resource, last_error=None, get=lambda *_: None)
    monkeypatch.setattr(found.kinds, "want", lambda *_, **__: None)
    monkeypatch.setattr(found.kinds, "get", lambda group, _: informer if group == "example.com" else None)
    (waiting,) = found.states().values()
    assert waiting.why == "waiting for SpaceControlPlane team/one of example.com to be created and readable"
    informer.last_error = Forbidden(403, "Forbidden", "no")
    (refused,) = found.states().values()
    rule = "{apiGroups: [example.com], resources: [spacecontrolplanes], verbs: [list, watch]}"
    assert refused.why == (
        f"{waiting.why}. The packager may not list spacecontrolplanes.example.com: bind {role} {rule} to its account"
    )
