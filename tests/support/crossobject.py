"""One cluster with all that belongs to it, for checks of objects together."""

from __future__ import annotations

import copy
import json

import yaml

from caphv.api.object import Obj
from webhooks.crossobject import check_together

# One cluster with all that belongs to it. Each case changes it.
OBJECTS = """\
cluster:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: Cluster
  metadata: {name: demo, namespace: clusters}
  spec:
    clusterNetwork: {pods: {cidrBlocks: [10.42.0.0/16]}, services: {cidrBlocks: [10.43.0.0/16]}}
    infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: HarvesterCluster, name: demo}
    controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: RKE2ControlPlane, name: demo}
infrastructure:
  apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
  kind: HarvesterCluster
  metadata: {name: demo, namespace: clusters}
  spec:
    targetNamespace: demo
    identitySecret: {name: identity, namespace: clusters}
    loadBalancerConfig:
      ipamType: pool
      ipPool:
        {subnet: 172.17.1.0/24, gateway: 172.17.1.1, rangeStart: 172.17.1.50, rangeEnd: 172.17.1.60, vmNetwork: net}
    vmNetworkConfig: {ipPoolRefs: [vm-pool], gateway: 172.17.1.1, subnetMask: 255.255.255.0}
secret:
  apiVersion: v1
  kind: Secret
  metadata: {name: identity, namespace: clusters}
  data: {kubeconfig: eA==}
control_plane:
  apiVersion: controlplane.cluster.x-k8s.io/v1beta1
  kind: RKE2ControlPlane
  metadata: {name: demo, namespace: clusters}
  spec:
    replicas: 3
    infrastructureRef:
      apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
      kind: HarvesterMachineTemplate
      name: template
workers:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: MachineDeployment
  metadata: {name: workers, namespace: clusters}
  spec:
    clusterName: demo
    replicas: 3
    template:
      spec:
        failureDomain: zone-a
        infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: HarvesterMachineTemplate, name: template}
others:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: MachineDeployment
  metadata: {name: others, namespace: clusters}
  spec:
    clusterName: demo
    replicas: 3
    template:
      spec:
        failureDomain: zone-b
        infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: HarvesterMachineTemplate, name: template}
template:
  apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
  kind: HarvesterMachineTemplate
  metadata: {name: template, namespace: clusters}
  spec: {template: {spec: {volumes: [{volumeType: storageClass, storageClass: fast}]}}}
machine:
  apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
  kind: HarvesterMachine
  metadata: {name: one, namespace: clusters, labels: {cluster.x-k8s.io/cluster-name: demo}}
  spec: {networks: [net], networkConfig: {address: 172.17.1.10, gateway: 172.17.1.1}}
pool:
  apiVersion: loadbalancer.harvesterhci.io/v1beta1
  kind: IPPool
  metadata: {name: vm-pool}
  spec:
    selector: {network: demo/net}
    ranges: [{subnet: 172.17.1.0/24, rangeStart: 172.17.1.100, rangeEnd: 172.17.1.120}]
storage:
  apiVersion: storage.k8s.io/v1
  kind: StorageClass
  metadata: {name: fast}
  provisioner: driver.longhorn.io
  parameters: {migratable: "true"}
class:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: ClusterClass
  metadata: {name: class, namespace: clusters}
  spec:
    controlPlane:
      machineInfrastructure:
        templateRef:
          apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
          kind: HarvesterMachineTemplate
          name: template
    workers: {machineDeployments: [{class: default-worker}]}
    variables:
      - {name: cpu, required: true, schema: {openAPIV3Schema: {type: integer}}}
      - name: disk
        required: true
        schema:
          openAPIV3Schema:
            type: object
            default: {size: 40Gi}
            required: [size, class]
            properties: {size: {type: string}, class: {type: string, default: fast}}
topology:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: Cluster
  metadata: {name: made, namespace: clusters}
  spec:
    topology:
      classRef: {name: class}
      controlPlane: {replicas: 3}
      workers: {machineDeployments: [{class: default-worker, name: a}]}
      variables: [{name: cpu, value: 4}, {name: disk, value: {size: 40Gi}}]
"""


def cluster_objects() -> dict[str, Obj]:
    """The objects by their role."""
    # Through JSON, so that objects share no part with each other.
    return json.loads(json.dumps(yaml.safe_load(OBJECTS)))


def changed(obj: Obj, changes: Obj) -> None:
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = obj
        for part in parents:
            place = place.setdefault(part, {})
        if value is None:
            del place[last]
        else:
            place[last] = value


def findings(objects: dict[str, Obj]) -> set[tuple[str, str]]:
    return {(located.finding.rule, located.finding.field) for located in check_together(list(objects.values()))}


def second_cluster(objects: dict[str, Obj]) -> dict[str, Obj]:
    """The same cluster again, in another namespace."""
    more = {name: copy.deepcopy(objects[name]) for name in ("cluster", "infrastructure", "machine")}
    for obj in more.values():
        obj["metadata"]["namespace"] = "other"
    return more
