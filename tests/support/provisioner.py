"""Rancher as a provisioner of RKE2 on a native Cluster API provider, reduced to what a provider notices.

It makes the objects of a `provisioning.cattle.io` Cluster, again while that exists, bootstrap data, the hook of
machines with etcd, and upgrades RKE2 in the guests. docs/simulators.md names the sources. Unlike Rancher, it needs no
agent in the guests: their bootstrap data has the configuration that Rancher would send in a plan, and they join through
the endpoint.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import secrets
from collections.abc import AsyncIterator, Iterable

import yaml

from caphv.api.clusterapi import RANCHER_CONTROL_PLANE, RANCHER_GROUP, infrastructure_provisioned
from caphv.api.conditions import is_true
from caphv.api.names import CLUSTER_NAME_LABEL, RANCHER_HOOK
from caphv.api.object import (
    NODES,
    SECRETS,
    Obj,
    Resource,
    annotations_of,
    at,
    being_deleted,
    key_of,
    labels_of,
    owner_reference,
)
from caphv.api.resources import CLUSTER_API_GROUP, RANCHER_CLUSTERS, clusters, machine_deployments, machines
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, RequestError
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import manifests
from sandbox.guest.rancher import RKE2
from sandbox.processes import pki
from tests.support import rancher
from tests.support.e2e import crd
from tests.support.waiting import in_background

GROUP, VERSION = RANCHER_GROUP, "v1"
CONTROL_PLANES = Resource(GROUP, VERSION, "rkecontrolplanes", RANCHER_CONTROL_PLANE)
BOOTSTRAPS = Resource(GROUP, VERSION, "rkebootstraps", "RKEBootstrap")
TEMPLATES = Resource(GROUP, VERSION, "rkebootstraptemplates", "RKEBootstrapTemplate")
CLUSTERS, MACHINES, DEPLOYMENTS = clusters("v1beta2"), machines("v1beta2"), machine_deployments("v1beta2")
HOOK_OWNER = "rke-bootstrap-controller"
FINALIZER = "wrangler.cattle.io/rke-control-plane-remove"
CLUSTER_FINALIZER = "wrangler.cattle.io/provisioning-cluster-remove"
INSTALLER = "/usr/local/custom_script/install.sh"
ROLES = {"controlPlaneRole": "control-plane", "etcdRole": "etcd", "workerRole": "worker"}
_DEPLOYMENT, _MACHINE = "cluster.x-k8s.io/deployment-name", "Machine"
_PAUSE_SECONDS = 0.1


async def install(client: ApiClient) -> None:
    """Install the kinds of Rancher, for any content."""
    crds = [crd(GROUP, VERSION, resource.kind) for resource in (CONTROL_PLANES, BOOTSTRAPS, TEMPLATES)]
    for obj in crds:
        obj["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"] = VERSION
        obj["spec"]["versions"][0]["subresources"] = {"status": {}}
    others = [obj for obj in manifests.read([rancher.CRDS]) if key_of(obj).name == str(RANCHER_CLUSTERS)]
    await manifests.apply(client, [*crds, *others])


class Provisioner:
    """Rancher's controllers for one `provisioning.cattle.io` Cluster."""

    def __init__(self, client: ApiClient, namespace: str, name: str, *, label: str = "control-plane") -> None:
        self._client, self._namespace, self.name = client, namespace, name
        self._label = f"{CLUSTER_API_GROUP}/{label}"
        self._authorities = {suffix: pki.CA.create(f"{name}-{suffix}") for suffix in ("server", "client")}
        self._token = secrets.token_hex(16)
        self._init = ""
        self._applied = 0
        self.held: list[str] = []
        """Machines whose hook was removed after their member of etcd, in order."""

    async def apply(self, spec: Obj) -> None:
        """Make the cluster, or change its spec."""
        metadata = {"namespace": self._namespace, "name": self.name, "finalizers": [CLUSTER_FINALIZER]}
        await self._ensure(RANCHER_CLUSTERS, {"metadata": metadata, "spec": spec})

    async def _apply(self, spec: Obj) -> None:
        """Make or change all objects of the cluster."""
        config = spec["rkeConfig"]
        metadata = {"namespace": self._namespace, "name": self.name}
        control_plane = {
            "metadata": {**metadata, "finalizers": [FINALIZER]},
            "spec": {"kubernetesVersion": spec["kubernetesVersion"], "clusterName": self.name},
        }
        cluster = {
            "metadata": metadata,
            "spec": {
                "infrastructureRef": _reference(config["infrastructureRef"]),
                "controlPlaneRef": {"apiGroup": GROUP, "kind": CONTROL_PLANES.kind, "name": self.name},
            },
        }
        await self._ensure(CONTROL_PLANES, control_plane)
        await self._ensure(CLUSTERS, cluster)
        for pool in config["machinePools"]:
            name = f"{self.name}-{pool['name']}"
            inner = {"spec": {"clusterName": self.name, "userdata": pool.get("userdata") or {}}}
            await self._ensure(
                TEMPLATES,
                {
                    "metadata": {"namespace": self._namespace, "name": name},
                    "spec": {"clusterName": self.name, "template": inner},
                },
            )
            await self._ensure(DEPLOYMENTS, self._deployment(name, pool))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Provisioner]:
        """Run the controllers until the end of the block."""
        async with in_background(self._run()):
            yield self

    async def workload(self) -> ApiClient:
        """A client of the workload API, which its user closes. Raises NotFound."""
        secret = await self._client.get(SECRETS, f"{self.name}-kubeconfig", self._namespace)
        return parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload", timeout=5.0)

    def _deployment(self, name: str, pool: Obj) -> Obj:
        labels = {CLUSTER_NAME_LABEL: self.name, "rke.cattle.io/cluster-name": self.name, _DEPLOYMENT: name}
        labels["rke.cattle.io/rke-machine-pool-name"] = pool["name"]
        labels |= {f"rke.cattle.io/{role}-role": "true" for field, role in ROLES.items() if pool.get(field)}
        if pool.get("controlPlaneRole"):
            labels[self._label] = "true"
        excluded = {} if pool.get("drainBeforeDelete") else {"machine.cluster.x-k8s.io/exclude-node-draining": "true"}
        bootstrap = {"configRef": {"apiGroup": GROUP, "kind": TEMPLATES.kind, "name": name}}
        template = {
            "clusterName": self.name,
            "bootstrap": bootstrap,
            "infrastructureRef": _reference(pool["machineConfigRef"]),
        }
        return {
            "metadata": {
                "namespace": self._namespace,
                "name": name,
                "labels": {"cattle.io/os": "linux", CLUSTER_NAME_LABEL: self.name},
            },
            "spec": {
                "clusterName": self.name,
                "replicas": pool["quantity"],
                "rollout": {"strategy": {"type": "RollingUpdate"}},
                "deletion": {"order": "Oldest"},
                "template": {"metadata": {"labels": labels, "annotations": excluded}, "spec": template},
            },
        }

    async def _ensure(self, resource: Resource, obj: Obj) -> None:
        try:
            await self._client.create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj})
        except Conflict:
            await self._client.patch(resource, obj["metadata"]["name"], self._namespace, {"spec": obj["spec"]})

    # What follows runs again and again, from what the objects show.

    async def _run(self) -> None:
        while True:
            for reconcile in (self._provision, self._reconcile):
                with contextlib.suppress(RequestError):
                    await reconcile()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _provision(self) -> None:
        """Apply the objects of the cluster if its spec has changed or one is missing; delete them with it."""
        provisioned = await self._client.get(RANCHER_CLUSTERS, self.name, self._namespace)
        labels = f"{CLUSTER_NAME_LABEL}={self.name}"
        deployments = await self._client.list(DEPLOYMENTS, self._namespace, label_selector=labels)
        cluster, control_plane = [
            next((obj for obj in listed["items"] if key_of(obj).name == self.name), None)
            for listed in [await self._client.list(kind, self._namespace) for kind in (CLUSTERS, CONTROL_PLANES)]
        ]
        if being_deleted(provisioned):
            if cluster is not None and not being_deleted(cluster):
                await self._client.delete(CLUSTERS, self.name, self._namespace)
            elif cluster is None and control_plane is None:
                patch = {"metadata": {"finalizers": None}}
                await self._client.patch(RANCHER_CLUSTERS, self.name, self._namespace, patch)
            return

        spec, generation = provisioned["spec"], provisioned["metadata"]["generation"]
        is_missing = None in (cluster, control_plane)
        is_missing = is_missing or len(deployments["items"]) < len(spec["rkeConfig"]["machinePools"])
        if is_missing or generation != self._applied:
            await self._apply(spec)
            self._applied = generation

    async def _reconcile(self) -> None:
        control_plane = await self._client.get(CONTROL_PLANES, self.name, self._namespace)
        found = await self._client.list(MACHINES, self._namespace, label_selector=f"{CLUSTER_NAME_LABEL}={self.name}")
        members: list[Obj] = found["items"]
        cluster: Obj | None = None
        with contextlib.suppress(NotFound):
            cluster = await self._client.get(CLUSTERS, self.name, self._namespace)
        is_ending = cluster is None or being_deleted(cluster) or being_deleted(control_plane)

        if cluster is not None and infrastructure_provisioned(cluster):
            await self._ensure_kubeconfig(cluster)
            for bootstrap in (await self._client.list(BOOTSTRAPS, self._namespace))["items"]:
                await self._bootstrap(bootstrap, members, cluster, control_plane)
        for machine in filter(has_etcd, members):
            await self._hook(machine, is_ending=is_ending)
        if being_deleted(control_plane):
            if not any(map(serves_api, members)):
                patch = {"metadata": {"finalizers": None}}
                await self._client.patch(CONTROL_PLANES, self.name, self._namespace, patch)
            return
        if not is_ending:
            await self._plan(control_plane, members)

    async def _ensure_kubeconfig(self, cluster: Obj) -> None:
        endpoint = at(cluster, "spec", "controlPlaneEndpoint")
        server = f"https://{endpoint['host']}:{endpoint['port']}"
        pair = self._authorities["client"].client("rancher", ["system:masters"])
        config = pki.kubeconfig(
            server,
            self._authorities["server"].certificate,
            name="cluster",
            user="user",
            credentials=pki.certificate_user(pair),
        )
        await self._create_secret(f"{self.name}-kubeconfig", pki.to_yaml(config), {CLUSTER_NAME_LABEL: self.name})

    async def _bootstrap(self, bootstrap: Obj, members: Iterable[Obj], cluster: Obj, control_plane: Obj) -> None:
        """Make the data of an RKEBootstrap whose Machine owns it, and delete it with the Machine."""
        name = bootstrap["metadata"]["name"]
        owner = owner_reference(bootstrap, _MACHINE, CLUSTER_API_GROUP) or {}
        machine = next((obj for obj in members if obj["metadata"]["name"] == owner.get("name")), None)
        secret = f"{name}-machine-bootstrap"
        if machine is None or being_deleted(machine):
            with contextlib.suppress(NotFound):
                await self._client.delete(SECRETS, secret, self._namespace)
            return
        if at(bootstrap, "status", "dataSecretName"):
            return

        # Of these, the first starts the cluster.
        if not self._init and has_etcd(machine):
            self._init = machine["metadata"]["name"]
        if not self._init:
            return
        text = self._user_data(machine, cluster, control_plane, at(bootstrap, "spec", "userdata") or {})
        await self._create_secret(secret, text.encode(), {})
        status = {"dataSecretName": secret, "initialization": {"dataSecretCreated": True}}
        await self._client.patch(BOOTSTRAPS, name, self._namespace, {"status": status}, subresource="status")

    def _user_data(self, machine: Obj, cluster: Obj, control_plane: Obj, user: Obj) -> str:
        """The data of a machine: the installer as Rancher's, and what the installed agent would do."""
        host = at(cluster, "spec", "controlPlaneEndpoint", "host")
        is_server = serves_api(machine) or has_etcd(machine)
        config: Obj = {"token": self._token, "tls-san": [host]}
        if is_server and not serves_api(machine):
            config["disable-apiserver"] = True
        if is_server and not has_etcd(machine):
            config["disable-etcd"] = True
        files = []
        if machine["metadata"]["name"] == self._init:
            for suffix, authority in self._authorities.items():
                texts = (authority.certificate, authority.pair.key)
                paths = RKE2.authority(suffix)
                files += [{"path": path, "content": text.decode()} for path, text in zip(paths, texts, strict=True)]
        else:
            config["server"] = f"https://{host}:6443"
        files.append({"path": RKE2.file, "content": json.dumps(config)})

        version = control_plane["spec"]["kubernetesVersion"]
        script = base64.b64encode(gzip.compress(b"#!/bin/sh\n")).decode()
        installer = {"content": script, "encoding": "gzip+b64", "path": INSTALLER, "permissions": "0600"}
        data = yaml.safe_load(user.get("inlineUserdata") or "{}")
        data["write_files"] = [installer, *files, *(data.get("write_files") or ())]
        service = "rke2-server" if is_server else "rke2-agent"
        agent = [f"INSTALL_RKE2_VERSION={version} sh /opt/install.sh", f"systemctl start {service}.service"]
        data["runcmd"] = [f"sh {INSTALLER}", *agent, *(data.get("runcmd") or ())]
        return f"## template: jinja\n#cloud-config\n{yaml.safe_dump(data)}"

    async def _create_secret(self, name: str, value: bytes, labels: dict[str, str]) -> None:
        metadata = {"name": name, "namespace": self._namespace, "labels": labels}
        secret = {"metadata": metadata, "data": {"value": base64.b64encode(value).decode()}}
        if not labels:
            secret["type"] = "rke.cattle.io/bootstrap"
        with contextlib.suppress(Conflict):
            await self._client.create(SECRETS, secret)

    async def _hook(self, machine: Obj, *, is_ending: bool) -> None:
        """Set the hook of a machine with etcd; of a deleted one remove it, once its member is removed."""
        has_hook = RANCHER_HOOK in annotations_of(machine)
        if not being_deleted(machine):
            if not has_hook and not is_ending:
                await self._annotate(machine, HOOK_OWNER)
            return
        node = at(machine, "status", "nodeRef", "name")
        if not has_hook:
            return
        if is_ending or not node:
            await self._annotate(machine, None)
        elif await self._is_removed(str(node)):
            self.held.append(machine["metadata"]["name"])
            await self._annotate(machine, None)

    async def _annotate(self, machine: Obj, value: str | None) -> None:
        patch = {"metadata": {"annotations": {RANCHER_HOOK: value}}}
        await self._client.patch(MACHINES, machine["metadata"]["name"], self._namespace, patch)

    async def _is_removed(self, name: str) -> bool:
        """Whether RKE2 has removed the member of a Node, which is asked of it first."""
        client = await self.workload()
        try:
            node = await client.get(NODES, name)
            annotations = annotations_of(node)
            if annotations.get(f"{RKE2.etcd}/remove") != "true":
                patch = {"metadata": {"annotations": {f"{RKE2.etcd}/remove": "true"}}}
                await client.patch(NODES, name, "", patch)
            return bool(annotations.get(f"{RKE2.etcd}/removed-node-name"))
        except NotFound:
            return True
        finally:
            await client.close()

    async def _plan(self, control_plane: Obj, members: list[Obj]) -> None:
        """Report that the control plane works, and bring the next Node to the version of the spec."""
        client = await self.workload()
        try:
            nodes = {node["metadata"]["name"]: node for node in (await client.list(NODES))["items"]}
            if not at(control_plane, "status", "initialization", "controlPlaneInitialized"):
                if any(_serves(node) for node in nodes.values()):
                    status = {"initialization": {"controlPlaneInitialized": True}}
                    await self._client.patch(
                        CONTROL_PLANES, self.name, self._namespace, {"status": status}, subresource="status"
                    )
                return
            version = control_plane["spec"]["kubernetesVersion"]
            # etcd first, then the rest of the control plane, then workers.
            for machine in sorted(members, key=lambda obj: (not has_etcd(obj), not serves_api(obj))):
                node = nodes.get(str(at(machine, "status", "nodeRef", "name")))
                if node is not None and at(node, "status", "nodeInfo", "kubeletVersion") != version:
                    info = {"status": {"nodeInfo": {"kubeletVersion": version}}}
                    await client.patch(NODES, node["metadata"]["name"], "", info, subresource="status")
                    return
        finally:
            await client.close()


def has_etcd(machine: Obj) -> bool:
    """Whether a pool gives a Machine or HarvesterMachine the role etcd."""
    return labels_of(machine).get("rke.cattle.io/etcd-role") == "true"


def serves_api(machine: Obj) -> bool:
    """Whether a pool gives a Machine or HarvesterMachine the role of the control plane."""
    return labels_of(machine).get("rke.cattle.io/control-plane-role") == "true"


def _serves(node: Obj) -> bool:
    is_ready = is_true(at(node, "status", "conditions") or [], "Ready")
    return is_ready and "node-role.kubernetes.io/control-plane" in labels_of(node)


def _reference(reference: Obj) -> Obj:
    """A reference of the core's v1beta2 for one with a version."""
    group = reference["apiVersion"].partition("/")[0]
    return {"apiGroup": group, "kind": reference["kind"], "name": reference["name"]}
