"""Stand-in for Talos's control plane provider.

It reaches etcd and the creation of the cluster through the machine API of its machines. When a
machine was deleted, it removes the etcd member afterwards, by the API of another machine. When it
deletes a machine itself, that one leaves etcd before.
"""

from __future__ import annotations

import contextlib
import logging
import random
from dataclasses import dataclass

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    at,
    being_deleted,
    key_of,
    list_at,
    owner_reference,
    text_at,
)
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES, HARVESTER_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.controller import Controller, Result
from caphv.runtime.errors import NotFound, RequestError
from sandbox.capi import secrets, state
from sandbox.capi.bootstrap import endpoint_of, is_provisioned
from sandbox.capi.caches import ProviderCaches, cluster_of
from sandbox.capi.plan import Create, Delete
from sandbox.capi.resources import (
    CLONED_FROM_NAME,
    CLUSTERS,
    MACHINES,
    is_paused,
    object_reference,
    reference,
)
from sandbox.capi.talos.kinds import CONFIGS, FINALIZER, client_config_name
from sandbox.capi.talos.machineclient import EtcdProblem, MachineClient
from sandbox.capi.talos.plan import Bootstrap, Member, Step, next_step
from sandbox.capi.talos.status import Observation, talos_status
from sandbox.capi.workload import Connection, Connections
from sandbox.processes import pki

log = logging.getLogger(__name__)

# The provider waits 10 to 30 s.
_RETRY_SECONDS = 1.0
_DELETE_MACHINE = "cluster.x-k8s.io/delete-machine"


@dataclass(frozen=True)
class _ControlPlane:
    """A control plane with its Cluster, and all control plane Machines of that."""

    obj: Obj
    cluster: Obj
    machines: list[Obj]

    @property
    def cluster_key(self) -> Key:
        return key_of(self.cluster)


class TalosControlPlanes:
    """The controller for TalosControlPlanes."""

    def __init__(self, client: ApiClient, caches: ProviderCaches) -> None:
        self._client = client
        self._caches = caches
        self.controller = Controller("talos-control-plane", self._reconcile, concurrency=4)
        self.connections = Connections(self.controller.enqueue)
        caches.enqueue_control_planes(
            self.controller.enqueue, caches.machines, caches.clusters, caches.secrets
        )

    async def _reconcile(self, key: Key) -> Result | None:
        obj = self._caches.control_planes.get(*key)
        if obj is None:
            await self.connections.forget(key)
            return None
        owner = cluster_of(obj)
        cluster = self._caches.clusters.get(*owner) if owner else None
        if cluster is None or is_paused(cluster, obj) or not is_provisioned(cluster):
            return None

        machines = self._caches.machines_of(key_of(cluster), control_plane=True)
        machines.sort(key=lambda machine: key_of(machine).name)
        control_plane = _ControlPlane(obj, cluster, machines)
        if being_deleted(obj):
            await self._reconcile_deletion(control_plane)
            return None
        if not endpoint_of(cluster):
            return None
        return await self._reconcile_machines(control_plane)

    async def _reconcile_machines(self, control_plane: _ControlPlane) -> Result | None:
        await self._caches.add_finalizer(control_plane.obj, FINALIZER)
        await self._own_template(control_plane)
        connection = await self._connect(control_plane)
        apis = self._machine_client(control_plane.cluster_key)
        etcd_problem = await _check_etcd(apis, control_plane.machines)

        bootstrapped = bool(at(control_plane.obj, "status", "bootstrapped"))
        members = [self._member(control_plane.obj, machine) for machine in control_plane.machines]
        step = next_step(
            members,
            control_plane.obj["spec"].get("replicas", 1),
            _max_surge(control_plane.obj),
            bootstrapped=bootstrapped,
            etcd_problem=etcd_problem,
        )

        bootstrap_problem = ""
        if isinstance(step, Bootstrap):
            bootstrap_problem = await _bootstrap(apis, control_plane.machines)
            bootstrapped = not bootstrap_problem
        answers = connection is not None and connection.nodes.current
        ready_nodes = connection.ready_control_plane_nodes() if connection and answers else ()

        observation = Observation(
            control_plane.cluster_key.name,
            control_plane.obj,
            control_plane.machines,
            bootstrapped=bootstrapped,
            bootstrap_problem=bootstrap_problem,
            etcd_problem=etcd_problem,
            answers=answers,
            ready_nodes=len(ready_nodes),
            outdated=sum(not member.current for member in members),
        )
        await self._report(observation)
        await self._execute(control_plane, step, apis, connection)

        is_settled = bootstrapped and answers and not etcd_problem and not observation.outdated
        return None if is_settled else Result(requeue_after=_RETRY_SECONDS)

    def _machine_client(self, cluster: Key) -> MachineClient | None:
        secret = self._caches.secrets.get(cluster.namespace, client_config_name(cluster))
        return MachineClient(secret) if secret else None

    async def _connect(self, control_plane: _ControlPlane) -> Connection | None:
        """Connect to the workload cluster. Return None before its CA exists.

        The bootstrap provider creates the CA with the data of the first machine.
        """
        cluster = control_plane.cluster_key
        kubeconfig = secrets.kubeconfig(self._caches.secrets, cluster)
        if kubeconfig is None:
            authority = self._caches.secrets.get(cluster.namespace, f"{cluster.name}-ca")
            if authority is None:
                return None
            values = secrets.values(authority)
            ca = pki.CA(pki.KeyPair(values["tls.crt"], values["tls.key"]))
            endpoint = endpoint_of(control_plane.cluster)
            content = {"value": secrets.new_kubeconfig(cluster.name, endpoint, ca, ca)}
            name = f"{cluster.name}-kubeconfig"
            secret = secrets.cluster_secret(cluster, name, content, control_plane.obj)
            await self._caches.create(self._caches.secrets, secret)
            kubeconfig = secrets.kubeconfig(self._caches.secrets, cluster)
        if kubeconfig is None:
            return None
        return await self.connections.ensure(key_of(control_plane.obj), kubeconfig)

    def _member(self, control_plane: Obj, machine: Obj) -> Member:
        namespace = key_of(machine).namespace
        infrastructure = self._caches.harvester_machines.get(
            namespace, state.infrastructure_name(machine)
        )
        config = self._caches.configs.get(namespace, state.config_name(machine))
        # Missing objects do not count.
        template = annotations_of(infrastructure).get(CLONED_FROM_NAME) if infrastructure else None
        is_current = (
            machine["spec"].get("version") == control_plane["spec"]["version"]
            and template in (None, _template_name(control_plane))
            and (config is None or config["spec"] == _config_spec(control_plane))
        )
        return Member(
            key_of(machine).name,
            created=str(machine["metadata"].get("creationTimestamp", "")),
            joined=bool(state.node_name(machine)),
            current=is_current,
            preferred=_DELETE_MACHINE in annotations_of(machine),
            deleting=being_deleted(machine),
        )

    async def _execute(
        self,
        control_plane: _ControlPlane,
        step: Step,
        apis: MachineClient | None,
        connection: Connection | None,
    ) -> None:
        if isinstance(step, Create):
            await self._create_machine(control_plane)
        if isinstance(step, Delete) and apis is not None:
            machine = next(
                machine for machine in control_plane.machines if key_of(machine).name == step.name
            )
            await self._remove_machine(machine, apis, connection)

    async def _create_machine(self, control_plane: _ControlPlane) -> None:
        obj = control_plane.obj
        cluster = control_plane.cluster_key
        name = _template_name(obj)
        template = await self._client.get(HARVESTER_MACHINE_TEMPLATES, name, cluster.namespace)

        # Create the Machine last, because it names the other objects.
        clone = state.clone_template(template, _metadata(cluster, name), obj)
        infrastructure = await self._caches.create(self._caches.harvester_machines, clone)
        config = await self._caches.create(
            self._caches.configs,
            {
                "apiVersion": CONFIGS.api_version,
                "kind": CONFIGS.kind,
                "metadata": _metadata(cluster, key_of(obj).name, reference(obj)),
                "spec": _config_spec(obj),
            },
        )

        machine = _new_machine(control_plane, config, infrastructure)
        log.info("creating machine %s of control plane %s", key_of(machine).name, key_of(obj))
        await self._caches.create(self._caches.machines, machine)

    async def _remove_machine(
        self, machine: Obj, apis: MachineClient, connection: Connection | None
    ) -> None:
        """Have a machine leave etcd, then delete it and its Node."""
        try:
            await apis.leave_etcd(machine)
        except RequestError as error:
            # The provider deletes the machine nevertheless, and removes its member later.
            log.warning("machine %s cannot leave etcd: %s", key_of(machine).name, error)
        await self._caches.delete(self._caches.machines, machine)
        if connection is not None:
            with contextlib.suppress(NotFound):
                await connection.delete_node(state.node_name(machine))

    async def _reconcile_deletion(self, control_plane: _ControlPlane) -> None:
        """Delete all machines at once. Members of etcd no longer matter."""
        for machine in control_plane.machines:
            if not being_deleted(machine):
                await self._caches.delete(self._caches.machines, machine)
        name = control_plane.cluster_key.name
        bootstrapped = bool(at(control_plane.obj, "status", "bootstrapped"))
        await self._report(
            Observation(name, control_plane.obj, control_plane.machines, bootstrapped=bootstrapped)
        )
        if not control_plane.machines:
            await self._caches.remove_finalizer(control_plane.obj, FINALIZER)

    async def _own_template(self, control_plane: _ControlPlane) -> None:
        """Make the Cluster an owner of the HarvesterMachineTemplate, which is deleted with it."""
        namespace = control_plane.cluster_key.namespace
        name = _template_name(control_plane.obj)
        template = await self._client.get(HARVESTER_MACHINE_TEMPLATES, name, namespace)
        if owner_reference(template, CLUSTERS.kind, CLUSTERS.group) is not None:
            return
        owners = list_at(template, "metadata", "ownerReferences")
        metadata = {
            "ownerReferences": [*owners, reference(control_plane.cluster)],
            "resourceVersion": template["metadata"]["resourceVersion"],
        }
        patch = {"metadata": metadata}
        await self._client.patch(HARVESTER_MACHINE_TEMPLATES, name, namespace, patch)

    async def _report(self, observation: Observation) -> None:
        control_planes = self._caches.control_planes
        with contextlib.suppress(NotFound):
            await self._caches.write_status(
                control_planes, observation.control_plane, talos_status(observation)
            )


async def _check_etcd(apis: MachineClient | None, machines: list[Obj]) -> str:
    """Remove members without machines, and return what is wrong with etcd, empty if nothing is."""
    if not machines:
        return ""
    if apis is None:
        return "the Secret with the client configuration does not exist"
    problem = ""
    for check in (apis.remove_orphans, apis.check_etcd):
        try:
            await check(machines)
        except (EtcdProblem, RequestError) as error:
            problem = problem or str(error)
    return problem


async def _bootstrap(apis: MachineClient | None, machines: list[Obj]) -> str:
    """Create the cluster's etcd on one machine, and return what prevents that."""
    if apis is None:
        return "the Secret with the client configuration does not exist"
    try:
        await apis.bootstrap(machines)
    except RequestError as error:
        return str(error)
    return ""


def _metadata(cluster: Key, base: str, *owners: Obj) -> Obj:
    """Return the metadata of a new object of a machine."""
    return {
        "name": state.generated_name(base),
        "namespace": cluster.namespace,
        "labels": {CLUSTER_NAME_LABEL: cluster.name, CONTROL_PLANE_LABEL: ""},
        "ownerReferences": list(owners),
    }


def _new_machine(control_plane: _ControlPlane, config: Obj, infrastructure: Obj) -> Obj:
    obj = control_plane.obj
    cluster = control_plane.cluster_key
    config_reference = object_reference(CONFIGS, key_of(config), MACHINES.version)
    spec: Obj = {
        "clusterName": cluster.name,
        "version": obj["spec"]["version"],
        "bootstrap": {"configRef": config_reference},
        "infrastructureRef": object_reference(
            HARVESTER_MACHINES, key_of(infrastructure), MACHINES.version
        ),
    }
    domains = list_at(control_plane.cluster, "status", "failureDomains")
    if domains:
        # The provider ignores other machines, and whether a domain is for control planes.
        spec["failureDomain"] = random.choice(domains)["name"]
    return {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": _metadata(cluster, key_of(obj).name, reference(obj, controller=True)),
        "spec": spec,
    }


def _template_name(control_plane: Obj) -> str:
    return text_at(control_plane, "spec", "infrastructureTemplate", "name")


def _config_spec(control_plane: Obj) -> Obj:
    return dict(control_plane["spec"]["controlPlaneConfig"]["controlplane"])


def _max_surge(control_plane: Obj) -> int:
    surge = at(control_plane, "spec", "rolloutStrategy", "rollingUpdate", "maxSurge")
    return 1 if surge is None else min(int(surge), 1)
