"""The doctor's checks: what each finds, and what it says to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from caphv import data
from caphv.api.object import Key, Obj
from caphv.runtime.kubeconfig import Kubeconfig
from caphv.runtime.text import load_yaml_all
from overview.assembly import overview_of
from overview.doctor import bootstrap, clusters, fleet, harvester, management, rights
from overview.doctor.harvester import HarvesterFacts
from overview.doctor.management import ManagementFacts
from overview.doctor.model import Check, Result
from overview.model import Replicas
from overview.objects import HarvesterObjects, Unseen
from overview.pools import Entry, PoolReport, Verdict
from tests.support.clusters import NOW, Builder, ago, condition, token

US = "0a1b2c3d-1111-2222-3333-444455556666"


def found(checks: Iterable[Check], check: str) -> list[Check]:
    return [each for each in checks if each.id == check]


def one(checks: Iterable[Check], check: str) -> Check:
    (only,) = found(checks, check)
    return only


# The management cluster


def crd(strategy: str = "None", **labels: str) -> Obj:
    labels = labels or {"cluster.x-k8s.io/v1beta2": "v1beta1"}
    return {"metadata": {"name": "harvestermachines", "labels": labels}, "spec": {"conversion": {"strategy": strategy}}}


def webhooks(bundle: str = "CA") -> Obj:
    service = {"namespace": "caphv-system", "name": "caphv-webhook-service"}
    return {"metadata": {}, "webhooks": [{"clientConfig": {"service": service, "caBundle": bundle}}]}


def deployment(ready: int) -> Obj:
    containers = [{"image": "caphv:0.12"}]
    spec = {"template": {"spec": {"containers": containers}}}
    return {"spec": spec, "status": {"replicas": 1, "readyReplicas": ready}}


CERT_MANAGER = {"metadata": {"namespace": "cert-manager", "name": "cainjector"}, "status": {"replicas": 1}}


def fleet_of(version: str) -> Obj:
    image = f"registry.example.com/rancher/fleet:{version}"
    return {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}


def lease(renewed: str) -> Obj:
    metadata = {"namespace": "caphv-system", "name": "heartbeat"}
    return {"metadata": metadata, "spec": {"holderIdentity": "pod-1", "renewTime": renewed}}


def facts(**fields: Any) -> ManagementFacts:
    """A management cluster where all is well."""
    fine: dict[str, Any] = {
        "version": "v1.36.3",
        "cluster_api": ("v1beta2",),
        "crds": [crd()],
        "deployment": deployment(1),
        "lease": lease(ago(seconds=3)),
        "webhooks": webhooks(),
        "endpoints": [{"endpoints": [{"conditions": {"ready": True}}]}],
        "certificates": [
            {
                "metadata": {"name": "caphv-webhook"},
                "status": {"notAfter": "2027-01-01T00:00:00Z", "conditions": [condition("Ready", "True")]},
            }
        ],
    }
    return ManagementFacts(**{**fine, **fields})


def test_a_management_cluster_where_all_is_well_has_only_checks_that_are_ok() -> None:
    assert {check.result for check in management.checks(facts(), NOW)} == {Result.OK}


@pytest.mark.parametrize(
    ("fields", "check", "result", "text"),
    [
        ({"cluster_api": ("v1alpha4",)}, "cluster-api", Result.ERROR, "serves only v1alpha4"),
        ({"crds": [crd("Webhook")]}, "crds", Result.ERROR, "conversion webhook"),
        ({"crds": [crd(other="x")]}, "crds", Result.ERROR, "lacks the labels"),
        ({"deployment": deployment(0)}, "provider", Result.ERROR, "no ready replica"),
        ({"deployment": None}, "provider", Result.SKIPPED, "--provider-namespace"),
        ({"lease": None}, "leader", Result.SKIPPED, "--provider-namespace"),
        ({"lease": lease(ago(minutes=5))}, "leader", Result.ERROR, "no provider is active"),
        ({"lease": lease(ago(minutes=-5))}, "clock", Result.WARNING, "clocks differ"),
        ({"endpoints": []}, "webhooks", Result.ERROR, "no ready endpoint"),
        ({"cert_manager": []}, "cert-manager", Result.ERROR, "which does not run here"),
        ({"cert_manager": [CERT_MANAGER]}, "cert-manager", Result.ERROR, "cert-manager/cainjector"),
        ({"fleet": fleet_of("v0.16.1")}, "fleet-version", Result.OK, "Fleet v0.16.1"),
        ({"fleet": fleet_of("v0.12.3")}, "fleet-version", Result.WARNING, "older than 0.13.0"),
        ({"fleet": fleet_of("v0.15.0")}, "fleet-version", Result.WARNING, "leaves what others changed"),
        ({"unseen": [Unseen("deployments", "forbidden")]}, "provider", Result.SKIPPED, "forbidden"),
    ],
)
def test_the_management_cluster(fields: Any, check: str, result: Result, text: str) -> None:
    found = one(management.checks(facts(**fields), NOW), check)
    assert (found.result, text in found.message) == (result, True)
    assert bool(found.remedy) == found.wrong


def test_cert_manager_is_checked_only_where_it_issues_the_certificate() -> None:
    own = facts(cert_manager=[], certificates=[])
    assert found(management.checks(own, NOW), "cert-manager") == []
    injected = webhooks() | {"metadata": {"annotations": {"cert-manager.io/inject-ca-from": "caphv-system/x"}}}
    assert one(management.checks(replace(own, webhooks=injected), NOW), "cert-manager").result is Result.ERROR
    ready = {**CERT_MANAGER, "status": {"readyReplicas": 1}}
    assert one(management.checks(facts(cert_manager=[ready]), NOW), "cert-manager").result is Result.OK


# Fleet


def fleet_cluster(name: str = "shop", ready: str = "True", seen: float = 5, **more: Any) -> Obj:
    status = {
        "agent": {"lastSeen": ago(minutes=seen)},
        "display": {"readyBundles": "3/4"},
        "conditions": [condition("Ready", ready, message="NotReady(1) [Bundle csi]")],
    }
    return {"metadata": {"namespace": "team", "name": name, **more}, "status": status}


def test_bundles_that_fleet_has_not_deployed_are_reported() -> None:
    shop = [Key("team", "shop")]
    late = one(fleet.checks([fleet_cluster(ready="False")], shop, NOW), "fleet")
    assert (late.result, late.message) == (
        Result.WARNING,
        "Fleet Cluster team/shop: 3/4 bundles are ready: NotReady(1) [Bundle csi]",
    )
    assert late.remedy.endswith("caphv bundles trace team/shop")
    silent = one(fleet.checks([fleet_cluster(seen=45)], shop, NOW), "fleet")
    assert (silent.result, "last reported at" in silent.message) == (Result.WARNING, True)
    assert one(fleet.checks([fleet_cluster()], shop, NOW), "fleet").result is Result.OK


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
    checks = list(fleet.checks([fleet_cluster(**metadata)], [Key("team", "shop")], NOW))
    assert [check.subject for check in checks] == ["Cluster team/shop"]
    assert list(fleet.checks([fleet_cluster(**metadata)], [Key("team", "other")], NOW)) == []


def test_a_webhook_without_its_authority_is_an_error() -> None:
    first = found(management.checks(facts(webhooks=webhooks("")), NOW), "webhooks")[0]
    assert first.result is Result.ERROR


def test_a_certificate_that_ends_soon_is_a_warning() -> None:
    status = {"notAfter": "2026-11-24T00:00:00Z", "conditions": [condition("Ready", "True")]}
    soon = facts(certificates=[{"metadata": {"name": "caphv-webhook"}, "status": status}])
    assert one(management.checks(soon, NOW), "certificates").result is Result.WARNING


# Harvester


def host(name: str, zone: str = "", *, ready: bool = True, **spec: Any) -> Obj:
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    conditions = {"conditions": [condition("Ready", str(ready))]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": conditions}


def objects(**fields: Any) -> HarvesterObjects:
    fine: dict[str, Any] = {
        "server": "https://harvester:6443",
        "version": "v1.34.1",
        "hosts": [host("h1", "a"), host("h2", "b")],
        "images": [{"metadata": {"namespace": "default", "name": "image-x"}, "spec": {"displayName": "sles-15"}}],
        "networks": [{"metadata": {"namespace": "default", "name": "production"}}],
        "key_pairs": [{"metadata": {"namespace": "default", "name": "admin"}}],
        "pools": [{"metadata": {"name": "machines"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}}],
        "namespaces": frozenset({"vms"}),
    }
    return HarvesterObjects(**{**fine, **fields})


def pool(total: int = 100, free: int = 50, **fields: Any) -> PoolReport:
    return PoolReport("https://harvester:6443", "machines", total, free, free, **fields)


def harvester_facts(**fields: Any) -> HarvesterFacts:
    """A Harvester where all is well."""
    machine_spec = {
        "volumes": [{"imageName": "default/sles-15"}],
        "networks": ["default/production"],
        "sshKeyPair": "default/admin",
        "vmNetworkConfig": {"ipPoolRef": "machines"},
    }
    fine: dict[str, Any] = {
        "access": Kubeconfig("https://harvester:6443", token=token(days=90)),
        "objects": objects(),
        "denied": [],
        "deployment": {"status": {"conditions": [condition("Available", "True")]}},
        "machines": [{"metadata": {"name": "m", "namespace": "team"}, "spec": machine_spec}],
        "clusters": [],
        "all_machines": frozenset({Key("team", "m")}),
        "all_clusters": frozenset(),
        "pools": (pool(),),
        "management_cluster": US,
    }
    return HarvesterFacts(Key("team", "identity"), **{**fine, **fields})


def test_a_harvester_where_all_is_well_has_only_checks_that_are_ok() -> None:
    results = {check.id: check.result for check in harvester.checks(harvester_facts(), NOW)}
    assert set(results.values()) == {Result.OK}
    assert {"credentials", "rights", "hosts", "zones", "pools", "images", "networks", "key-pairs", "orphans"} <= set(
        results
    )


LEAK = Entry("machines", "10.0.0.9", "team/gone", Verdict.LEAKED)
RIGHT = rights.Right("vms", "kubevirt.io", "virtualmachines", "create")
OWNED = {"caphv.io/management-cluster": US, "caphv.io/owner": "HarvesterMachine/team/gone"}
ORPHAN = {"metadata": {"name": "gone", "namespace": "vms", "annotations": OWNED}}
SILENT = {
    "metadata": {"name": "x", "namespace": "vms", "creationTimestamp": ago(hours=1)},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("fields", "check", "result", "text"),
    [
        ({"access": None, "error": "not found"}, "identity", Result.ERROR, "not found"),
        ({"access": Kubeconfig("https://h", token=token(days=-1))}, "credentials", Result.ERROR, "expired at"),
        ({"access": Kubeconfig("https://h", token=token(days=3))}, "credentials", Result.WARNING, "in 3 days"),
        ({"objects": None, "error": "no answer"}, "connection", Result.ERROR, "no answer"),
        ({"denied": [RIGHT]}, "rights", Result.ERROR, "create virtualmachines.kubevirt.io in namespace vms"),
        ({"deployment": {"status": {}}}, "harvester", Result.ERROR, "not available"),
        ({"objects": objects(hosts=[host("h1"), host("h2", ready=False)])}, "hosts", Result.ERROR, "h2"),
        ({"objects": objects(hosts=[host("h1", unschedulable=True)])}, "hosts", Result.WARNING, "take no VMs: h1"),
        ({"objects": objects(hosts=[host("h1", "a"), host("h2")])}, "zones", Result.WARNING, "no zone label on h2"),
        ({"pools": (pool(free=0),)}, "pools", Result.ERROR, "0 of 100"),
        ({"pools": (pool(free=4),)}, "pools", Result.WARNING, "4 of 100"),
        ({"pools": (pool(entries=(LEAK,)),)}, "pools", Result.WARNING, "1 has leaked"),
        ({"objects": objects(images=[])}, "images", Result.ERROR, "default/sles-15: VM image does not exist"),
        ({"objects": objects(networks=[])}, "networks", Result.ERROR, "default/production: VM network does not exist"),
        ({"objects": objects(instances=[SILENT])}, "guest-agent", Result.WARNING, "vms/x"),
        ({"objects": objects(vms=[ORPHAN])}, "orphans", Result.WARNING, "VirtualMachine vms/gone"),
        ({"all_machines": None}, "orphans", Result.SKIPPED, "may not be read"),
    ],
)
def test_a_harvester(fields: Any, check: str, result: Result, text: str) -> None:
    only = one(harvester.checks(harvester_facts(**fields), NOW), check)
    assert (only.result, text in only.message) == (result, True)
    assert bool(only.remedy) == only.wrong


def test_a_pool_that_does_not_exist_is_an_error() -> None:
    other = [{"metadata": {"name": "machine"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}}]
    checks = found(harvester.checks(harvester_facts(objects=objects(pools=other), pools=()), NOW), "pools")
    assert [check.message for check in checks] == [
        'machines: IPPool does not exist; did you mean "machine"?: create it on Harvester, or name another '
        "(HarvesterMachine team/m, spec.vmNetworkConfig.ipPoolRef)"
    ]


def test_what_many_machines_name_is_one_finding_with_the_variable_that_sets_it() -> None:
    label = {"cluster.x-k8s.io/cluster-name": "shop"}
    spec = {"volumes": [{"imageName": "default/sles-16", "storageClass": "fsat"}], "sshKeyPair": "admin"}
    machines = [{"metadata": {"name": f"m{n}", "namespace": "team", "labels": label}, "spec": spec} for n in range(5)]
    cluster = {"metadata": {"name": "shop-x", "namespace": "team", "labels": label}}
    cluster["spec"] = {"targetNamespace": "default"}
    topology = {"variables": [{"name": "image", "value": "default/sles-16"}]}
    owner = {"metadata": {"name": "shop", "namespace": "team"}, "spec": {"topology": topology}}
    facts = harvester_facts(
        clusters=[cluster],
        machines=machines,
        owners={Key("team", "shop"): owner},
        storage_classes=[{"metadata": {"name": "fast"}}],
    )

    wrong = {check.id: check for check in harvester.checks(facts, NOW) if check.wrong}

    assert set(wrong) == {"images", "storage-class"}, "a key pair without a namespace is in that of the VMs"
    assert 'did you mean "default/sles-15"?' in wrong["images"].message
    assert "(HarvesterMachine team/m0, team/m1, team/m2 and 2 more" in wrong["images"].message
    assert wrong["images"].remedy == (
        "To name another, correct variable image of the topology: kubectl edit cluster shop -n team"
    )
    assert 'did you mean "fast"?' in wrong["storage-class"].message


def test_reference_with_a_namespace_means_the_pool_of_that_name() -> None:
    spec = {"vmNetworkConfig": {"ipPoolRef": "old", "ipPoolRefs": ["default/machines"]}}
    cluster = {"metadata": {"namespace": "clusters", "name": "demo"}, "spec": spec}
    facts = harvester_facts(clusters=[cluster], machines=[])
    assert one(harvester.checks(facts, NOW), "pools").result is Result.OK


def test_gateway_and_mask_of_another_subnet_than_the_pools_are_errors() -> None:
    config = {"ipPoolRef": "machines", "gateway": "10.9.0.1", "subnetMask": "255.255.0.0"}
    cluster = {"metadata": {"name": "shop", "namespace": "team"}, "spec": {"vmNetworkConfig": config}}
    ranges = [{"subnet": "10.0.0.0/17", "gateway": "10.0.0.1"}]
    pools = [{"metadata": {"name": "machines"}, "spec": {"ranges": ranges}}]
    facts = harvester_facts(clusters=[cluster], objects=replace(objects(), pools=pools))

    checks = found(harvester.checks(facts, NOW), "pool-subnet")

    assert {check.result for check in checks} == {Result.ERROR}
    messages = " ".join(check.message for check in checks)
    assert "255.255.0.0: the subnets of IPPool machines have mask 255.255.128.0" in messages
    assert "10.9.0.1: it is in no subnet of IPPool machines" in messages
    assert "spec.vmNetworkConfig.subnetMask" in messages
    assert "HarvesterCluster team/shop" in messages


def test_more_replicas_of_a_volume_than_hosts_are_a_warning() -> None:
    classes = [{"metadata": {"name": "longhorn"}, "parameters": {"numberOfReplicas": "3"}}]
    assert one(harvester.checks(harvester_facts(storage_classes=classes), NOW), "longhorn-replicas").wrong


def test_a_witness_is_no_host_for_machines() -> None:
    witness = host("w", ready=False)
    witness["metadata"]["labels"]["node-role.harvesterhci.io/witness"] = "true"
    checks = harvester.checks(harvester_facts(objects=objects(hosts=[host("h1", "a"), witness])), NOW)
    assert one(checks, "hosts").result is Result.OK


def test_rights_are_those_of_the_shipped_roles_in_each_target_namespace() -> None:
    needed = rights.needed([{"spec": {"targetNamespace": name}} for name in ("a", "b")])
    assert rights.Right("", "loadbalancer.harvesterhci.io", "ippools", "patch") in needed
    assert {right.namespace for right in needed if right.resource == "virtualmachines"} == {"a", "b"}
    assert rights.Right("harvester-system", "apps", "deployments", "list", "harvester") in needed


def test_right_that_only_a_later_harvester_asks_for_is_shipped_and_accounts_without_it_are_no_problem() -> None:
    roles = load_yaml_all((data.folder("deploy/harvester") / "clusterroles.yaml").read_text(encoding="utf-8"))
    images = [rule["verbs"] for role in roles for rule in role["rules"] if "virtualmachineimages" in rule["resources"]]
    assert images == [["get", "list", "watch"]]
    needed = rights.needed([{"spec": {"targetNamespace": "a"}}])
    assert {right.verb for right in needed if right.resource == "virtualmachineimages"} == {"list", "watch"}
    check = one(harvester.checks(harvester_facts(denied=[*rights.AHEAD]), NOW), "rights")
    assert (check.result, check.wrong) == (Result.OK, False)
    assert (
        "get virtualmachineimages.harvesterhci.io in all namespaces: before an upgrade, run caphv identity create"
        in check.message
    )
    check = one(harvester.checks(harvester_facts(denied=[RIGHT, *rights.AHEAD]), NOW), "rights")
    assert (check.result, "virtualmachineimages" in check.message) == (Result.ERROR, False)


def test_rights_for_cloud_configs_and_pools_are_needed_where_clusters_have_them() -> None:
    plain, config = {"targetNamespace": "a"}, {"targetNamespace": "b", "cloudConfig": {"delivery": "Secret"}}
    pool = {"targetNamespace": "c", "loadBalancerConfig": {"ipPool": {"subnet": "192.0.2.0/24"}}}
    needed = rights.needed([{"spec": spec} for spec in (plain, config, pool)])
    assert {right.namespace for right in needed if right.resource == "serviceaccounts/token"} == {"b"}
    bindings = [right for right in needed if right.resource == "clusterrolebindings" and right.verb != "get"]
    assert [(right.verb, right.name) for right in bindings] == [("patch", "caphv-guests:b")]
    deletes = {right.resource for right in needed if right.verb == "delete" and not right.namespace}
    assert deletes == {"ippools"}
    assert not [right for right in rights.needed([{"spec": plain}]) if right.verb == "delete" and not right.namespace]


# Clusters


def test_an_even_control_plane_and_one_on_a_single_host_are_warnings() -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    group = cluster.groups[0]
    machines = tuple(replace(group.machines[0], name=f"cp-{n}", zone="") for n in range(3))
    shaped = replace(
        cluster, control_plane=Replicas(4, 4, 4, 4), groups=(replace(group, machines=machines), *cluster.groups[1:])
    )
    checks = list(clusters.checks([shaped]))
    assert one(checks, "quorum").wrong
    assert "3 of 3 control plane machines run in host harvester-1" in one(checks, "placement").message


def test_settings_that_rke2_cannot_use_are_found_although_only_a_log_says_so() -> None:
    (cluster,) = overview_of(Builder().objects(), NOW).clusters
    cluster = replace(cluster, version="v1.36.2+rke2r1")
    configs = {"r": {"tls": {"insecureSkipVerify": True}}, "s": {}}
    spec = {"agentConfig": {"cisProfile": "cis-1.6"}, "privateRegistriesConfig": {"configs": configs}}
    control_plane = {"kind": "RKE2ControlPlane", "metadata": {"name": "demo", "namespace": "demo"}, "spec": spec}

    found = list(bootstrap.checks([cluster], {cluster.key: control_plane}))
    assert [(each.result, each.message.partition(":")[0]) for each in found] == [
        (Result.ERROR, "spec.agentConfig.cisProfile"),
        (Result.WARNING, "spec.privateRegistriesConfig.configs"),
        (Result.ERROR, "spec.privateRegistriesConfig.configs.r.tls.tlsConfigSecret"),
    ]
    control_plane["kind"] = "KThreesControlPlane"
    assert not list(bootstrap.checks([cluster], {cluster.key: control_plane}))


def test_problems_of_a_cluster_are_checks_with_their_next_step() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    check = one(clusters.checks(overview_of(builder.objects(), NOW).clusters), "cluster")
    assert check.result is Result.ERROR
    assert "kubectl delete machine worker-1" in check.remedy
