"""A management cluster's objects for tests of backups: a whole cluster, with owners and references."""

from __future__ import annotations

import itertools
from typing import Any

from caphv.api.object import Obj, uid_of

CORE, ADDONS = "cluster.x-k8s.io/v1beta2", "addons.cluster.x-k8s.io/v1beta2"
CONTROL_PLANE, BOOTSTRAP = "controlplane.cluster.x-k8s.io/v1beta1", "bootstrap.cluster.x-k8s.io/v1beta1"
IPAM = "ipam.cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io/v1beta1"
_numbers = itertools.count()


def made(version: str, kind: str, name: str, owner: Obj | None = None, **fields: Any) -> Obj:
    """An object as an API server returns it."""
    metadata: Obj = {"name": name, "namespace": fields.pop("namespace", "team"), "uid": f"uid-{next(_numbers)}"}
    metadata |= {"resourceVersion": "7", "creationTimestamp": "2026-11-22T12:00:00Z", "generation": 1}
    metadata |= {key: fields.pop(key) for key in ("labels", "annotations", "finalizers") if key in fields}
    if owner is not None:
        head = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
        metadata["ownerReferences"] = [{**head, "uid": uid_of(owner), "controller": True}]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def shared_template(name: str, *owners: Obj) -> Obj:
    """A template that the core has given several Clusters as owners, each of which uses it."""
    template = made(INFRASTRUCTURE, "HarvesterMachineTemplate", name)
    template["metadata"]["ownerReferences"] = [
        {"apiVersion": CORE, "kind": "Cluster", "name": obj["metadata"]["name"], "uid": uid_of(obj)}
        for obj in owners
        if obj["kind"] == "Cluster"
    ]
    return template


def ref(obj: Obj) -> Obj:
    """A reference as v1beta2 has it."""
    group = obj["apiVersion"].partition("/")[0]
    return {"apiGroup": group, "kind": obj["kind"], "name": obj["metadata"]["name"]}


def whole_cluster(name: str = "shop", *, identity: str = "identity", machines: int = 2) -> list[Obj]:
    """A cluster with class, identity, control plane, machines, Secrets, a health check and a ClusterResourceSet."""
    label = {"cluster.x-k8s.io/cluster-name": name}
    cluster_class = made(CORE, "ClusterClass", f"{name}-class", namespace="classes")
    template = made(INFRASTRUCTURE, "HarvesterMachineTemplate", f"{name}-workers", cluster_class, namespace="classes")
    cluster_class["spec"] = {"infrastructure": {"templateRef": ref(template)}}
    cluster = made(CORE, "Cluster", name, labels={"env": "test", **label}, finalizers=["core"])
    infrastructure = made(INFRASTRUCTURE, "HarvesterCluster", f"{name}-x7k2p", cluster, labels=label)
    infrastructure["spec"] = {"identitySecret": {"name": identity, "namespace": "team"}, "targetNamespace": "vms"}
    control_plane = made(CONTROL_PLANE, "RKE2ControlPlane", f"{name}-cp", cluster, labels=label, spec={"replicas": 1})
    cluster["spec"] = {
        "topology": {"classRef": {"name": f"{name}-class", "namespace": "classes"}, "version": "v1.36.3+rke2r1"},
        "infrastructureRef": ref(infrastructure),
        "controlPlaneRef": ref(control_plane),
    }
    objs = [cluster_class, template, cluster, infrastructure, control_plane]
    objs.append(made("v1", "Secret", identity, data={"kubeconfig": "eA=="}))
    objs.append(made("v1", "Secret", f"{name}-kubeconfig", control_plane, data={"value": "eQ=="}, labels=label))
    objs.append(made("v1", "Secret", f"{name}-etcd", data={"tls.key": "eg=="}))
    objs.append(made(CORE, "MachineHealthCheck", f"{name}-check", cluster, labels=label, spec={"clusterName": name}))
    addons = made(
        ADDONS, "ClusterResourceSet", f"{name}-addons", spec={"clusterSelector": {"matchLabels": {"env": "test"}}}
    )
    addons["spec"]["resources"] = [{"kind": "ConfigMap", "name": f"{name}-cni"}]
    objs += [addons, made("v1", "ConfigMap", f"{name}-cni", addons, data={"cni": "x"})]
    for number in range(machines):
        machine = made(CORE, "Machine", f"{name}-{number}", control_plane, labels=label)
        config = made(BOOTSTRAP, "RKE2Config", f"{name}-{number}", machine, labels=label, spec={})
        own = made(INFRASTRUCTURE, "HarvesterMachine", f"{name}-{number}", machine, labels=label)
        own["spec"] = {"providerID": f"harvester://vm-{number}"}
        machine["spec"] = {
            "clusterName": name,
            "bootstrap": {"configRef": ref(config), "dataSecretName": f"{name}-{number}"},
            "infrastructureRef": ref(own),
        }
        objs += [machine, config, own, made("v1", "Secret", f"{name}-{number}", config, data={"value": "eA=="})]
    return objs


def pool_with_claims(*machines: Obj) -> list[Obj]:
    """A pool of an IPAM provider, and the claims and addresses of HarvesterMachines from it, which name it."""
    pool = made("ipam.cluster.x-k8s.io/v1alpha2", "InClusterIPPool", "v4", spec={"addresses": ["10.0.0.1-10.0.0.9"]})
    objs = [pool]
    for number, machine in enumerate(machines, 1):
        name = f"{machine['metadata']['name']}-0-0"
        machine["spec"] |= {"networkInterfaces": [{"network": "a", "addressesFromPools": [ref(pool)]}]}
        label = machine["metadata"]["labels"]
        claim = made(IPAM, "IPAddressClaim", name, machine, labels=label, spec={"poolRef": ref(pool)})
        address = made(IPAM, "IPAddress", name, claim, finalizers=["ipam.cluster.x-k8s.io/ProtectAddress"])
        address["spec"] = {
            "claimRef": {"name": name},
            "poolRef": ref(pool),
            "address": f"10.0.0.{number}",
            "prefix": 24,
        }
        head = {"apiVersion": pool["apiVersion"], "kind": pool["kind"], "name": "v4", "uid": uid_of(pool)}
        address["metadata"]["ownerReferences"].append({**head, "controller": False})
        objs += [claim, address]
    return objs
