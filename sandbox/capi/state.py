"""The plan's view of a control plane's objects, and the objects of a new machine. Pure."""

from __future__ import annotations

import json
import secrets as random
from collections.abc import Collection

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES, HARVESTER_MACHINES, machines
from sandbox.capi.distribution import Distribution
from sandbox.capi.plan import Member
from sandbox.capi.resources import (
    CLONED_FROM_KIND,
    CLONED_FROM_NAME,
    condition,
    object_reference,
    reference,
)

CONTROL_PLANE_NAME_LABEL = "cluster.x-k8s.io/control-plane-name"
# As the API server generates names: without vowels, so that they are no words.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_BASE_LENGTH = 58


def member_of(
    machine: Obj,
    harvester_machine: Obj | None,
    config: Obj | None,
    control_plane: Obj,
    distribution: Distribution,
    *,
    known: Collection[str],
    ready: Collection[str],
) -> Member:
    """The plan's view of a machine; `known` and `ready` are provider IDs of Nodes."""
    provider_id = machine["spec"].get("providerID") or ""
    # A machine without a requested failure domain counts where it was placed.
    placed = ((harvester_machine or {}).get("status") or {}).get("failureDomain")
    marked = [condition(machine, kind) for kind in ("HealthCheckSucceeded", "OwnerRemediated")]
    found = bool((machine.get("status") or {}).get("nodeRef"))
    return Member(
        machine["metadata"]["name"],
        created=machine["metadata"].get("creationTimestamp", ""),
        failure_domain=machine["spec"].get("failureDomain") or placed or "",
        joined=provider_id in known or found,
        ready=provider_id in ready,
        # The core writes conditions slightly before the fields they derive from.
        settled=found and condition(machine, "Ready") == "True",
        current=is_current(machine, harvester_machine, config, control_plane, distribution),
        unhealthy=marked == ["False", "False"],
        deleting=being_deleted(machine),
    )


def is_current(
    machine: Obj,
    harvester_machine: Obj | None,
    config: Obj | None,
    control_plane: Obj,
    distribution: Distribution,
) -> bool:
    """Whether a machine matches the control plane's spec; missing objects are ignored."""
    template = distribution.template_name(control_plane)
    server = annotations_of(machine).get(distribution.server_annotation)
    # K3s's bootstrap provider adds the version that it used.
    spec = _without_version((config or {}).get("spec") or {})
    return (
        machine["spec"].get("version") == control_plane["spec"]["version"]
        and (harvester_machine is None or annotations_of(harvester_machine).get(CLONED_FROM_NAME) == template)
        and (config is None or spec == _without_version(distribution.config_spec(control_plane)))
        and server == _server_configuration(control_plane, distribution)
    )


def _without_version(spec: Obj) -> Obj:
    return {name: value for name, value in spec.items() if name != "version"}


def failure_domains(cluster: Obj) -> list[str]:
    """Failure domains for control plane machines."""
    domains = (cluster.get("status") or {}).get("failureDomains") or ()
    return sorted(domain["name"] for domain in domains if domain.get("controlPlane"))


# The objects of one machine, each with a name of its own. The control plane owns the first two until the core sees the
# Machine. The VM, and by it the Node, has the name of the HarvesterMachine.


def generated_name(base: str) -> str:
    """A name as the API server generates it for this base."""
    suffix = "".join(random.choice(_SUFFIX) for _ in range(5))
    return f"{base}-"[:_BASE_LENGTH] + suffix


def new_harvester_machine(control_plane: Obj, distribution: Distribution, cluster: Key, template: Obj) -> Obj:
    """The clone of a HarvesterMachineTemplate."""
    inner = template["spec"]["template"]
    metadata = _metadata(control_plane, distribution, cluster, key_of(template).name)
    extra = inner.get("metadata") or {}
    metadata["labels"] = {**(extra.get("labels") or {}), **metadata["labels"]}
    metadata["annotations"] = {
        **(extra.get("annotations") or {}),
        **metadata["annotations"],
        CLONED_FROM_NAME: key_of(template).name,
        CLONED_FROM_KIND: f"{HARVESTER_MACHINE_TEMPLATES.kind}.{HARVESTER_MACHINE_TEMPLATES.group}",
    }
    metadata["ownerReferences"] = [reference(control_plane)]
    return {
        "apiVersion": HARVESTER_MACHINES.api_version,
        "kind": HARVESTER_MACHINES.kind,
        "metadata": metadata,
        "spec": inner["spec"],
    }


def new_config(control_plane: Obj, distribution: Distribution, cluster: Key) -> Obj:
    """The bootstrap object."""
    metadata = _metadata(control_plane, distribution, cluster, key_of(control_plane).name)
    metadata["ownerReferences"] = [reference(control_plane)]
    return {
        "apiVersion": distribution.configs.api_version,
        "kind": distribution.configs.kind,
        "metadata": metadata,
        "spec": distribution.config_spec(control_plane),
    }


def new_machine(
    control_plane: Obj,
    distribution: Distribution,
    cluster: Key,
    parts: tuple[Obj, Obj],
    failure_domain: str = "",
    *,
    core: str = "v1beta2",
) -> Obj:
    """The Machine, which takes over its HarvesterMachine and bootstrap object; `core` is the core's API version."""
    infrastructure, config = parts
    metadata = _metadata(control_plane, distribution, cluster, key_of(control_plane).name)
    metadata["annotations"][distribution.server_annotation] = _server_configuration(control_plane, distribution)
    if not distribution.is_k3s:
        metadata["annotations"][distribution.hook] = distribution.hook_value
    metadata["ownerReferences"] = [reference(control_plane, controller=True)]
    spec: Obj = {
        "clusterName": cluster.name,
        "version": control_plane["spec"]["version"],
        "bootstrap": {"configRef": object_reference(distribution.configs, key_of(config), core)},
        "infrastructureRef": object_reference(HARVESTER_MACHINES, key_of(infrastructure), core),
    }
    deletion = (control_plane["spec"]["machineTemplate"].get("spec") or {}).get("deletion")
    if deletion:
        spec["deletion"] = deletion
    if failure_domain:
        spec["failureDomain"] = failure_domain
    resource = machines(core)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}


def infrastructure_name(machine: Obj) -> str:
    """Name of a Machine's HarvesterMachine."""
    return str((machine["spec"].get("infrastructureRef") or {}).get("name") or "")


def config_name(machine: Obj) -> str:
    """Name of a Machine's bootstrap object."""
    reference = (machine["spec"].get("bootstrap") or {}).get("configRef") or {}
    return str(reference.get("name") or "")


def node_name(machine: Obj) -> str:
    """Name of a Machine's Node; empty until the core has seen that."""
    return str(((machine.get("status") or {}).get("nodeRef") or {}).get("name") or "")


def _server_configuration(control_plane: Obj, distribution: Distribution) -> str:
    """The server settings that Machines record in an annotation."""
    return json.dumps(distribution.server_spec(control_plane), sort_keys=True, separators=(",", ":"))


def _metadata(control_plane: Obj, distribution: Distribution, cluster: Key, base: str) -> Obj:
    template = control_plane["spec"]["machineTemplate"].get("metadata") or {}
    own = {
        CLUSTER_NAME_LABEL: cluster.name,
        CONTROL_PLANE_LABEL: "",
        CONTROL_PLANE_NAME_LABEL: distribution.control_plane_label(control_plane),
    }
    return {
        "name": generated_name(base),
        "namespace": cluster.namespace,
        "labels": {**(template.get("labels") or {}), **own},
        "annotations": dict(template.get("annotations") or {}),
    }
