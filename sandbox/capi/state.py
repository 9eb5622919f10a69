"""The plan's view of a control plane's objects, and the objects of a new machine. Pure."""

from __future__ import annotations

import json
import secrets as random
from collections.abc import Collection

from caphv.api.names import CLUSTER_NAME_LABEL, CONTROL_PLANE_LABEL
from caphv.api.object import Key, Obj, annotations_of, at, being_deleted, key_of, list_at, text_at
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
# The API server generates names from these characters, without vowels, so that no words result.
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
    """Return the plan's view of a machine.

    :param harvester_machine: the HarvesterMachine, None if it does not exist
    :param config: the bootstrap object, None if it does not exist
    :param known: provider IDs of all Nodes
    :param ready: provider IDs of Nodes that are ready
    """
    provider_id = machine["spec"].get("providerID") or ""
    has_node = bool(at(machine, "status", "nodeRef"))

    # A machine without a requested failure domain counts for the domain in which it was placed.
    placement = at(harvester_machine, "status", "failureDomain")

    # A MachineHealthCheck marks an unhealthy machine by both conditions. The control plane replaces
    # the machine.
    health = [condition(machine, kind) for kind in ("HealthCheckSucceeded", "OwnerRemediated")]
    return Member(
        machine["metadata"]["name"],
        created=machine["metadata"].get("creationTimestamp", ""),
        failure_domain=machine["spec"].get("failureDomain") or placement or "",
        joined=provider_id in known or has_node,
        ready=provider_id in ready,
        # Check both, because the core writes conditions slightly before the fields behind them.
        settled=has_node and condition(machine, "Ready") == "True",
        current=is_current(machine, harvester_machine, config, control_plane, distribution),
        unhealthy=health == ["False", "False"],
        deleting=being_deleted(machine),
    )


def is_current(
    machine: Obj,
    harvester_machine: Obj | None,
    config: Obj | None,
    control_plane: Obj,
    distribution: Distribution,
) -> bool:
    """Return whether a machine matches the control plane's spec. Missing objects do not count."""
    if machine["spec"].get("version") != control_plane["spec"]["version"]:
        return False

    template = distribution.template_name(control_plane)
    if (
        harvester_machine is not None
        and annotations_of(harvester_machine).get(CLONED_FROM_NAME) != template
    ):
        return False

    # Ignore the version, which K3s's bootstrap provider adds.
    if config is not None and _without_version(config.get("spec") or {}) != _without_version(
        distribution.config_spec(control_plane)
    ):
        return False

    server = annotations_of(machine).get(distribution.server_annotation)
    return server == _server_configuration(control_plane, distribution)


def _without_version(spec: Obj) -> Obj:
    return {name: value for name, value in spec.items() if name != "version"}


def failure_domains(cluster: Obj) -> list[str]:
    """Return the failure domains for control plane machines."""
    domains = list_at(cluster, "status", "failureDomains")
    return sorted(domain["name"] for domain in domains if domain.get("controlPlane"))


# The objects of one machine, each with a different name. The control plane owns the first two until
# the core sees the Machine. The VM and the Node have the name of the HarvesterMachine.


def generated_name(base: str) -> str:
    """Return a name as the API server generates it for this base."""
    suffix = "".join(random.choice(_SUFFIX) for _ in range(5))
    return f"{base}-"[:_BASE_LENGTH] + suffix


def new_harvester_machine(
    control_plane: Obj, distribution: Distribution, cluster: Key, template: Obj
) -> Obj:
    """Return the clone of a HarvesterMachineTemplate."""
    metadata = _metadata(control_plane, distribution, cluster, key_of(template).name)
    return clone_template(template, metadata, control_plane)


def clone_template(template: Obj, metadata: Obj, owner: Obj) -> Obj:
    """Return the HarvesterMachine with `metadata` that the core's library clones from a template.

    It gets labels and annotations of the template, and the control plane `owner`.
    """
    inner = template["spec"]["template"]
    extra = inner.get("metadata") or {}
    metadata["labels"] = {**(extra.get("labels") or {}), **metadata["labels"]}

    # As on clones by the core, the last two annotations name the template.
    metadata["annotations"] = {
        **(extra.get("annotations") or {}),
        **(metadata.get("annotations") or {}),
        CLONED_FROM_NAME: key_of(template).name,
        CLONED_FROM_KIND: (
            f"{HARVESTER_MACHINE_TEMPLATES.kind}.{HARVESTER_MACHINE_TEMPLATES.group}"
        ),
    }

    metadata["ownerReferences"] = [reference(owner)]
    return {
        "apiVersion": HARVESTER_MACHINES.api_version,
        "kind": HARVESTER_MACHINES.kind,
        "metadata": metadata,
        "spec": inner["spec"],
    }


def new_config(control_plane: Obj, distribution: Distribution, cluster: Key) -> Obj:
    """Return the bootstrap object."""
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
    """Return the Machine, which takes over its HarvesterMachine and bootstrap object.

    :param parts: the HarvesterMachine and the bootstrap object
    :param failure_domain: the failure domain for the machine; empty for any
    :param core: the API version of the core
    """
    infrastructure, config = parts
    metadata = _metadata(control_plane, distribution, cluster, key_of(control_plane).name)
    metadata["annotations"][distribution.server_annotation] = _server_configuration(
        control_plane, distribution
    )
    if not distribution.is_k3s:
        metadata["annotations"][distribution.hook] = distribution.hook_value
    metadata["ownerReferences"] = [reference(control_plane, controller=True)]

    spec: Obj = {
        "clusterName": cluster.name,
        "version": control_plane["spec"]["version"],
        "bootstrap": {"configRef": object_reference(distribution.configs, key_of(config), core)},
        "infrastructureRef": object_reference(HARVESTER_MACHINES, key_of(infrastructure), core),
    }
    deletion = at(control_plane, "spec", "machineTemplate", "spec", "deletion")
    if deletion:
        spec["deletion"] = deletion
    if failure_domain:
        spec["failureDomain"] = failure_domain

    resource = machines(core)
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": spec,
    }


def infrastructure_name(machine: Obj) -> str:
    """Return the name of a Machine's HarvesterMachine."""
    return text_at(machine, "spec", "infrastructureRef", "name")


def config_name(machine: Obj) -> str:
    """Return the name of a Machine's bootstrap object."""
    return text_at(machine, "spec", "bootstrap", "configRef", "name")


def node_name(machine: Obj) -> str:
    """Return the name of a Machine's Node, empty until the core has seen the Node."""
    return text_at(machine, "status", "nodeRef", "name")


def _server_configuration(control_plane: Obj, distribution: Distribution) -> str:
    """Return the server settings that Machines record in an annotation."""
    return json.dumps(
        distribution.server_spec(control_plane), sort_keys=True, separators=(",", ":")
    )


def _metadata(control_plane: Obj, distribution: Distribution, cluster: Key, base: str) -> Obj:
    template = control_plane["spec"]["machineTemplate"].get("metadata") or {}
    labels = {
        CLUSTER_NAME_LABEL: cluster.name,
        CONTROL_PLANE_LABEL: "",
        CONTROL_PLANE_NAME_LABEL: distribution.control_plane_label(control_plane),
    }
    return {
        "name": generated_name(base),
        "namespace": cluster.namespace,
        "labels": {**(template.get("labels") or {}), **labels},
        "annotations": dict(template.get("annotations") or {}),
    }
