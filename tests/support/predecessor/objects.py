"""Objects that the Go provider writes; none of those on Harvester says whom it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from caphv.api.object import Obj, labels_of
from sandbox.harvester import kinds

CORE = "cluster.x-k8s.io"
CLUSTER_LABEL, CONTROL_PLANE_LABEL = f"{CORE}/cluster-name", f"{CORE}/control-plane"
SINCE = "2025-06-01T08:00:00Z"


def condition(kind: str, status: str = "True", reason: str = "") -> Obj:
    """A condition as it writes them."""
    return {"type": kind, "status": status, "reason": reason or kind, "message": "", "lastTransitionTime": SINCE}


def balancer_of(obj: Obj) -> str:
    """Name of Service and LoadBalancer, for names that need no cutting."""
    return f"{obj['metadata']['namespace']}-{obj['metadata']['name']}-lb"


def listener(name: str, port: int) -> Obj:
    """A listener whose backends have the same port."""
    return {"name": name, "port": port, "protocol": "TCP", "backendPort": port}


def placeholder(namespace: str, name: str, address: str) -> Obj:
    """The Service that has the endpoint's address before there is a LoadBalancer."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"loadbalancer.harvesterhci.io/servicelb": "true"},
        },
        "spec": {
            "type": "LoadBalancer",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "loadBalancerIP": address,
            "ports": [{"name": "api-server", "port": 6443, "targetPort": 6443, "protocol": "TCP"}],
        },
    }


def user_data(bootstrap: str) -> str:
    """What it needs in a guest, with the bootstrap data; without a Jinja header, which it drops."""
    data: dict[str, Any] = yaml.safe_load(bootstrap)
    data["packages"] = ["qemu-guest-agent", "iptables", *data.get("packages", ())]
    data["runcmd"] = ["systemctl enable --now qemu-guest-agent.service", *data.get("runcmd", ())]
    return f"#cloud-config\n{yaml.safe_dump(data)}"


def network_data(address: str, network: Obj) -> str:
    """Network data of a guest with a static address."""
    subnet = {"type": "static", "address": address, "netmask": network["subnetMask"], "gateway": network["gateway"]}
    config = [
        {"type": "physical", "name": "eth0", "subnets": [subnet]},
        {"type": "nameserver", "address": network.get("dnsServers") or []},
    ]
    return str(yaml.safe_dump({"version": 1, "config": config}))


def classes_of(images: Iterable[Obj]) -> dict[str, str]:
    """Return the StorageClass of each image, which it looks up by display name and by name."""
    classes: dict[str, str] = {}
    for image in images:
        for name in (image["metadata"]["name"], image["spec"]["displayName"]):
            classes[f"{image['metadata']['namespace']}/{name}"] = image["status"]["storageClassName"]
    return classes


def virtual_machine(obj: Obj, target: str, machine: Obj, classes: Mapping[str, str]) -> Obj:
    """The VM of a machine: no record of an owner, disks whose names end by chance."""
    name, spec, cluster = obj["metadata"]["name"], obj["spec"], labels_of(obj)[CLUSTER_LABEL]
    claims = [_claim(name, index, volume, classes) for index, volume in enumerate(spec["volumes"])]
    labels = {
        "harvesterhci.io/creator": "harvester",
        "harvesterhci.io/vmName": name,
        "harvesterhci.io/vmNamePrefix": name,
    }
    if CONTROL_PLANE_LABEL in labels_of(machine):
        labels["harvestercluster/machinetype"] = f"controlplane-{cluster}"
    claim_names = [claim["metadata"]["name"] for claim in claims]
    disks = [
        {
            "name": f"disk-{index}",
            "disk": {"bus": "virtio"},
            **{k: v for k, v in volume.items() if k == "bootOrder" and v},
        }
        for index, volume in enumerate(spec["volumes"])
    ]
    secret = {"name": f"{name}-cloud-init"}
    memory = str(spec["memory"])
    template = {
        "hostname": name,
        "networks": [{"name": "nic-1", "multus": {"networkName": spec["networks"][0]}}],
        "volumes": [
            *({"name": f"disk-{i}", "persistentVolumeClaim": {"claimName": n}} for i, n in enumerate(claim_names)),
            {"name": "cloudinitdisk", "cloudInitNoCloud": {"secretRef": secret, "networkDataSecretRef": secret}},
        ],
        "domain": {
            "cpu": {"cores": spec["cpu"], "sockets": 1, "threads": 1},
            "memory": {"guest": memory},
            "resources": {"requests": {"memory": memory}, "limits": {"cpu": str(spec["cpu"]), "memory": memory}},
            "devices": {
                "inputs": [{"name": "tablet", "bus": "usb", "type": "tablet"}],
                "interfaces": [{"name": "nic-1", "model": "virtio", "bridge": {}}],
                "disks": [*disks, {"name": "cloudinitdisk", "disk": {"bus": "virtio"}}],
            },
        },
        "affinity": _affinity(name, machine["spec"].get("failureDomain")),
    }
    annotations = {
        "harvesterhci.io/diskNames": json.dumps(claim_names),
        "harvesterhci.io/sshNames": json.dumps([spec["sshKeyPair"]]),
        "harvestercluster/machinetype": f"controlplane-{cluster}",
    }
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "namespace": target,
            "labels": labels,
            "annotations": {kinds.CLAIM_TEMPLATES: json.dumps(claims), "networks.harvesterhci.io/ips": "[]"},
        },
        "spec": {
            "runStrategy": "Always",
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": template},
        },
    }


def _claim(name: str, index: int, volume: Obj, classes: Mapping[str, str]) -> Obj:
    image = volume.get("imageName")
    return {
        "metadata": {
            "name": f"{name}-disk-{index}-x7k2p",
            "annotations": {"harvesterhci.io/imageId": image} if image else {},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Block",
            "storageClassName": classes[image] if image else volume["storageClass"],
            "resources": {"requests": {"storage": volume["volumeSize"]}},
        },
    }


def _affinity(name: str, failure_domain: str | None) -> Obj:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"harvesterhci.io/vmName": name}}}
    found: Obj = {
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    }
    if failure_domain:
        expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [failure_domain]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return found


def addresses(pool: Obj) -> list[str]:
    """All addresses of a pool of one range, from the first on."""
    (span,) = pool["spec"]["ranges"]
    first, last = (span[name].rpartition(".") for name in ("rangeStart", "rangeEnd"))
    return [f"{first[0]}.{number}" for number in range(int(first[2]), min(int(last[2]), 254) + 1)]
