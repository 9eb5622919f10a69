"""Findings of `caphv doctor` about the management cluster and Fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caphv.api.crds import custom_resource_definitions
from caphv.api.object import Obj
from operations.doctor import fleet, management
from operations.read.objects import Unseen
from operations.status.check import Result
from operations.status.model import Cluster, State
from tests.support.clusters import NOW, ago, condition
from tests.support.doctor import crd, deployment, facts, found, lease, one, webhooks

CERT_MANAGER = {"metadata": {"namespace": "cert-manager", "name": "cainjector"}, "status": {"replicas": 1}}


def test_a_management_cluster_where_all_is_well_has_only_checks_that_are_ok() -> None:
    assert {check.result for check in management.checks(facts(), NOW)} == {Result.OK}


def released(seconds: float) -> Obj:
    """A Lease that its holder released so many seconds ago."""
    return {**lease(""), "spec": {"renewTime": ago(seconds=seconds), "holderIdentity": ""}}


@pytest.mark.parametrize(
    ("fields", "check", "result", "text"),
    [
        ({"cluster_api": ("v1alpha4",)}, "cluster-api", Result.ERROR, "serves only v1alpha4"),
        ({"crds": [crd("Webhook")]}, "crds", Result.ERROR, "conversion webhook"),
        ({"crds": [crd(other="x")]}, "crds", Result.ERROR, "lacks the labels"),
        ({"crds": [], "absent_crds": ["harvestermachines"]}, "crds", Result.ERROR, "harvestermachines does not exist"),
        ({"deployment": deployment(0)}, "provider", Result.ERROR, "no ready replica"),
        ({"deployment": None}, "provider", Result.SKIPPED, "--provider-namespace"),
        ({"lease": None}, "leader", Result.SKIPPED, "--provider-namespace"),
        ({"lease": lease(ago(minutes=5))}, "leader", Result.ERROR, "no provider is active"),
        ({"lease": lease(ago(minutes=-5))}, "clock", Result.WARNING, "clocks differ"),
        ({"endpoints": []}, "webhooks", Result.ERROR, "no ready endpoint"),
        ({"cert_manager": []}, "cert-manager", Result.ERROR, "which does not run here"),
        ({"cert_manager": [CERT_MANAGER]}, "cert-manager", Result.ERROR, "cert-manager/cainjector"),
        ({"version": "v1.36.3"}, "kubernetes-version", Result.OK, "Kubernetes v1.36.3"),
        ({"version": "v1.30.9+rke2r1"}, "kubernetes-version", Result.WARNING, "older than 1.31"),
        ({"version": ""}, "kubernetes-version", Result.OK, "of unknown version"),
        ({"releases": {"fleet": "v0.16.1"}}, "fleet-version", Result.OK, "Fleet v0.16.1"),
        ({"releases": {"fleet": "v0.12.3"}}, "fleet-version", Result.WARNING, "older than 0.13.0"),
        ({"releases": {"caapf": "v0.14.0"}}, "caapf-version", Result.OK, "add-on provider Fleet v0.14.0"),
        ({"releases": {"turtles": "v0.25.1"}}, "turtles-version", Result.WARNING, "older than 0.28.0"),
        ({"releases": {"fleet": "v0.15.0"}}, "fleet-version", Result.WARNING, "leaves what others changed"),
        ({"unseen": [Unseen("deployments", "forbidden")]}, "provider", Result.SKIPPED, "forbidden"),
        ({"unseen": [Unseen("customresourcedefinitions", "forbidden")]}, "crds", Result.SKIPPED, "forbidden"),
        ({"unseen": [Unseen("leases", "forbidden")]}, "leader", Result.SKIPPED, "forbidden"),
        ({"unseen": [Unseen("validatingwebhookconfigurations", "no")]}, "webhooks", Result.SKIPPED, "no"),
        ({"webhooks": None}, "webhooks", Result.SKIPPED, "no admission webhooks are registered"),
        ({"cluster_api": ()}, "cluster-api", Result.OK, ""),
        ({"deployment": deployment(2)}, "provider", Result.OK, "2 of 1 ready, caphv:0.12"),
        ({"deployment": {**deployment(1), "status": {}}}, "provider", Result.ERROR, "no ready replica"),
        (
            {"lease": {**lease(""), "spec": {"renewTime": ago(minutes=5)}}},
            "leader",
            Result.ERROR,
            "300 seconds ago: no",
        ),
        ({"lease": lease(ago(seconds=60))}, "leader", Result.OK, "pod-1 holds Lease caphv-system/heartbeat"),
        ({"lease": lease(ago(seconds=61))}, "leader", Result.ERROR, "61 seconds ago"),
        ({"lease": released(seconds=16)}, "leader", Result.ERROR, "16 seconds ago: no provider is active"),
        ({"lease": lease(ago(seconds=-60))}, "leader", Result.OK, "pod-1 holds"),
        ({"lease": lease(ago(seconds=-61))}, "clock", Result.WARNING, "61 seconds in the future"),
        ({"lease": {**lease(""), "spec": None}}, "leader", Result.OK, "unknown holds"),
    ],
)
def test_the_management_cluster(fields: Any, check: str, result: Result, text: str) -> None:
    found = one(management.checks(facts(**fields), NOW), check)
    assert (found.result, text in found.message) == (result, True)
    assert bool(found.remedy) == found.wrong


def test_a_missing_provider_is_an_error_where_its_namespace_exists() -> None:
    silent = {"deployment": None, "has_namespace": True}
    unused = (None, lease(ago(seconds=61)), {**lease(""), "spec": {}}, released(seconds=5))
    for without in ({"lease": found_lease} for found_lease in unused):
        check = one(management.checks(facts(**silent, **without), NOW), "provider")
        assert (check.result, "nothing manages the clusters" in check.message) == (Result.ERROR, True)
        for text in ("docs/installation.md", "kubectl describe capiproviders -n caphv-system", "--provider-namespace"):
            assert text in check.remedy
    # A provider outside the cluster has no Deployment, and renews its Lease.
    check = one(management.checks(facts(**silent), NOW), "provider")
    assert (check.result, "pod-1 runs without it" in check.message) == (Result.SKIPPED, True)


def test_a_missing_provider_of_a_sandbox_is_started_with_the_sandbox() -> None:
    own = facts(deployment=None, has_namespace=True, sandbox="/srv/sandbox", lease=released(seconds=60))
    for name in ("provider", "leader"):
        check = one(management.checks(own, NOW), name)
        assert (check.result, check.remedy) == (
            Result.ERROR,
            "Start what the sandbox lacks: caphv sandbox up --dir /srv/sandbox",
        )


def test_crd_of_the_go_provider_leads_to_the_step_that_removes_its_webhook() -> None:
    check = one(management.checks(facts(crds=[crd("Webhook")]), NOW), "crds")
    assert "step 1 of docs/migration.md" in check.remedy


def test_crd_of_an_older_release_names_the_fields_that_it_lacks() -> None:
    older = custom_resource_definitions()[0]
    for version in older["spec"]["versions"]:
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["identityRef"]
    check = one(management.checks(facts(crds=[older]), NOW), "crds")
    assert (check.result, "write into them: spec.identityRef" in check.message) == (Result.ERROR, True)
    assert check.remedy == "Apply the CRDs of this release"


def test_cert_manager_is_checked_only_where_it_issues_the_certificate() -> None:
    own = facts(cert_manager=[], certificates=[])
    assert found(management.checks(own, NOW), "cert-manager") == []
    injected = webhooks() | {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "caphv-system/x"}}}
    assert one(management.checks(replace(own, webhooks=injected), NOW), "cert-manager").result is Result.ERROR
    ready = {**CERT_MANAGER, "status": {"readyReplicas": 1}}
    assert one(management.checks(facts(cert_manager=[ready]), NOW), "cert-manager").result is Result.OK


def fleet_cluster(name: str = "shop", ready: str = "True", seen: float = 5, **more: Any) -> Obj:
    status = {
        "agent": {"lastSeen": ago(minutes=seen)},
        "display": {"readyBundles": "3/4"},
        "conditions": [condition("Ready", ready, message="NotReady(1) [Bundle csi]")],
    }
    return {"metadata": {"namespace": "team", "name": name, **more}, "status": status}


def cluster(state: State = State.AVAILABLE) -> Cluster:
    return Cluster("team", "shop", state)


def test_the_agent_of_a_parked_cluster_is_silent_on_purpose() -> None:
    parked = [cluster(State.PARKED)]
    for obj in (fleet_cluster(seen=45), fleet_cluster(ready="False")):
        assert one(fleet.checks([obj], parked, NOW), "fleet").result is Result.SKIPPED


def test_bundles_that_fleet_has_not_deployed_are_reported() -> None:
    shop = [cluster()]
    late = one(fleet.checks([fleet_cluster(ready="False")], shop, NOW), "fleet")
    assert (late.result, late.message) == (
        Result.WARNING,
        "Fleet Cluster team/shop: 3/4 bundles are ready: NotReady(1) [Bundle csi]",
    )
    assert late.remedy.endswith("caphv bundles trace team/shop")
    silent = one(fleet.checks([fleet_cluster(seen=45)], shop, NOW), "fleet")
    assert (silent.result, "last reported at" in silent.message) == (Result.WARNING, True)
    fine = one(fleet.checks([fleet_cluster()], shop, NOW), "fleet")
    assert (fine.result, fine.message) == (Result.OK, "Fleet Cluster team/shop: 3/4 bundles are ready")
    # A Fleet Cluster that was just registered has no numbers.
    for ready, text in (("True", "all bundles are ready"), ("False", "not all bundles are ready")):
        new = fleet_cluster(ready=ready)
        del new["status"]["display"]
        assert text in one(fleet.checks([new], shop, NOW), "fleet").message


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "shop"},
        {
            "name": "c-x7k2p",
            "ownerReferences": [{"kind": "Cluster", "apiVersion": "cluster.x-k8s.io/v1beta2", "name": "shop"}],
        },
        {
            "name": "c-m-1",
            "namespace": "fleet-default",
            "labels": {
                "cluster-api.cattle.io/capi-cluster-owner": "shop",
                "cluster-api.cattle.io/capi-cluster-owner-ns": "team",
            },
        },
    ],
)
def test_a_fleet_cluster_is_found_by_label_owner_or_name(metadata: Any) -> None:
    checks = list(fleet.checks([fleet_cluster(**metadata)], [cluster()], NOW))
    assert [check.subject for check in checks] == ["Cluster team/shop"]
    assert list(fleet.checks([fleet_cluster(**metadata)], [replace(cluster(), name="other")], NOW)) == []


def test_a_webhook_without_its_authority_is_an_error() -> None:
    first = found(management.checks(facts(webhooks=webhooks("")), NOW), "webhooks")[0]
    assert first.result is Result.ERROR


def test_a_configuration_that_another_installation_left_is_to_be_deleted() -> None:
    left = {"metadata": {"name": "validating-webhook-configuration"}, "webhooks": []}
    first, *others = found(management.checks(facts(former_webhooks=[left]), NOW), "webhooks")
    assert (first.result, "refuses objects" in first.message) == (Result.ERROR, True)
    assert first.remedy == "Delete it: kubectl delete validatingwebhookconfiguration validating-webhook-configuration"
    assert {check.result for check in others} == {Result.OK}


def other_lease(renewed: str, holder: str = "go") -> Obj:
    metadata = {"namespace": "elsewhere", "name": "1e1658d6.cluster.x-k8s.io"}
    return {"metadata": metadata, "spec": {"holderIdentity": holder, "renewTime": renewed}}


@pytest.mark.parametrize(
    ("others", "result"),
    [
        ([other_lease(ago(seconds=9))], Result.ERROR),
        ([other_lease(ago(seconds=61))], Result.OK),
        ([other_lease(ago(seconds=9), holder="")], Result.OK),
        ([other_lease("")], Result.OK),
    ],
)
def test_providers_that_are_active_in_two_namespaces_are_an_error(others: list[Obj], result: Result) -> None:
    check = one(management.checks(facts(other_leases=others), NOW), "leader")
    assert check.result is result
    assert ("elsewhere/1e1658d6.cluster.x-k8s.io" in check.message) == (result is Result.ERROR)


@pytest.mark.parametrize(
    ("service", "entries", "unseen", "result"),
    [
        ({"namespace": "n", "name": "s"}, [{"endpoints": None}], [], Result.ERROR),
        ({"namespace": "n", "name": "s"}, [{"endpoints": [{}, {"conditions": {"ready": False}}]}], [], Result.OK),
        ({"namespace": "n", "name": "s"}, [], [Unseen("endpointslices", "forbidden")], None),
        (None, [], [], None),
    ],
)
def test_endpoints_are_checked_where_a_service_leads_to_them(
    service: Any, entries: list[Obj], unseen: list[Unseen], result: Result | None
) -> None:
    webhook = {"clientConfig": {"service": service, "caBundle": "CA"}}
    served = facts(webhooks={"metadata": {}, "webhooks": [webhook]}, endpoints=entries, unseen=unseen)
    assert [check.result for check in found(management.checks(served, NOW), "webhooks")] == ([result] if result else [])


def test_a_configuration_without_webhooks_has_no_check() -> None:
    empty = facts(webhooks={"metadata": {}, "webhooks": None}, endpoints=[])
    assert found(management.checks(empty, NOW), "webhooks") == []


def test_a_deployment_counts_its_replicas_and_names_its_image() -> None:
    scaled = deployment(1) | {"status": {"replicas": 3, "readyReplicas": 1}}
    assert one(management.checks(facts(deployment=scaled), NOW), "provider").message.endswith(
        ": 1 of 3 ready, caphv:0.12"
    )
    unknown = deployment(1) | {"status": {"readyReplicas": 1}}
    assert ": 1 of 0 ready, " in one(management.checks(facts(deployment=unknown), NOW), "provider").message


def test_what_was_not_read_and_has_no_check_of_its_own_is_named() -> None:
    unseen = [Unseen("certificates", "forbidden"), Unseen("leases", "x"), Unseen("extensionconfigs", "forbidden")]
    access = one(management.checks(facts(unseen=unseen), NOW), "access")
    assert (access.result, access.message) == (
        Result.SKIPPED,
        "not checked, for lack of certificates, extensionconfigs: forbidden",
    )
    assert found(management.checks(facts(unseen=[Unseen("leases", "x")]), NOW), "access") == []


def test_a_cert_manager_that_may_not_be_read_is_not_checked() -> None:
    hidden = facts(certificates=[{"metadata": {"name": "a"}}], cert_manager=None)
    assert one(management.checks(hidden, NOW), "cert-manager").result is Result.SKIPPED


def test_only_the_reason_of_the_kind_itself_is_given() -> None:
    unseen = [Unseen("secrets", "other"), Unseen("leases", "forbidden")]
    seen = facts(unseen=unseen)
    assert (seen.why_unseen("leases"), seen.why_unseen("deployments")) == ("forbidden", "")


@pytest.mark.parametrize(
    ("status", "result", "text"),
    [
        ({"notAfter": "2026-11-29T11:59:59Z"}, Result.WARNING, "ends at 2026-11-29 11:59 UTC"),
        ({"notAfter": "2026-11-29T12:00:00Z"}, Result.OK, "is valid until 2026-11-29T12:00:00Z"),
        ({}, Result.OK, "caphv-system/caphv-webhook is valid"),
        ({"conditions": [condition("Ready", "False", message="no issuer")]}, Result.ERROR, "caphv-webhook: no issuer"),
        ({"conditions": [condition("Ready", "False")]}, Result.ERROR, "caphv-webhook: not ready"),
    ],
)
def test_a_certificate_must_be_ready_and_not_end_within_seven_days(status: Obj, result: Result, text: str) -> None:
    certificate = {"metadata": {"name": "caphv-webhook"}, "status": status}
    check = one(management.checks(facts(certificates=[certificate]), NOW), "certificates")
    assert (check.result, check.message.endswith(text)) == (result, True)


def test_no_certificate_is_awaited_without_webhooks() -> None:
    absent = facts(webhooks=None, certificates=[], cert_manager=[])
    assert found(management.checks(absent, NOW), "cert-manager") == []


def test_a_management_cluster_without_fleet_has_no_check_of_it() -> None:
    assert found(management.checks(facts(releases={}), NOW), "fleet-version") == []
