"""Whether a Harvester has what clusters and machines name: one answer for `generate`, `plan` and `doctor`. Pure.

Each of them reads its own objects into `Requirements`; the findings are about the fields that hold the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caphv.api import ippool
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding, did_you_mean
from overview.objects import condition_of
from overview.surroundings import Surroundings

IMAGES, KEY_PAIRS, NETWORKS, STORAGE_CLASS = "images", "key-pairs", "networks", "storage-class"
POOLS, SUBNET, NAMESPACE = "pools", "pool-subnet", "namespace"
"""Rules of findings, which are the names of the doctor's checks, too."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Value:
    """What a field says, and where it is."""

    path: FieldPath
    text: str


@dataclass(frozen=True, slots=True)
class Requirements:
    """What objects name on a Harvester. Names without a namespace are those of the target namespace.

    `pools` give addresses to machines, which are on `networks` or, where other objects name these, on
    `networks_of_machines`; `balancer_pools` give them to load balancers.
    """

    target_namespace: str
    namespace: Value | None = None
    images: Sequence[Value] = ()
    key_pairs: Sequence[Value] = ()
    networks: Sequence[Value] = ()
    storage_classes: Sequence[Value] = ()
    pools: Sequence[Value] = ()
    balancer_pools: Sequence[Value] = ()
    gateway: Value | None = None
    subnet_mask: Value | None = None
    networks_of_machines: Sequence[str] = ()


def shortcomings(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    """Yield what is absent on Harvester or contradicts it, in the order in which a VM needs it."""
    yield from _namespace(required, harvester)
    yield from _images(required, harvester)
    target = required.target_namespace
    yield from _absent(required.key_pairs, harvester.key_pairs, "KeyPair", KEY_PAIRS, target)
    yield from _absent(required.networks, harvester.networks, "VM network", NETWORKS, target)
    yield from _absent(required.storage_classes, harvester.storage_classes, "StorageClass", STORAGE_CLASS)
    yield from _pools(required, harvester)


def machine_requirements(spec: Mapping[str, Any], target_namespace: str, root: FieldPath = ()) -> Requirements:
    """Return what the spec of a HarvesterMachine names.

    :param spec: of a HarvesterMachine, or of the machines that a template makes
    :param target_namespace: where its VM is
    :param root: path of the spec in its object
    """
    volumes = [(index, entry) for index, entry in enumerate(_list(spec.get("volumes"))) if isinstance(entry, dict)]
    images = [
        Value((*root, "volumes", index, "imageName"), str(volume["imageName"]))
        for index, volume in volumes
        if volume.get("imageName")
    ]
    classes = [
        Value((*root, "volumes", index, "storageClass"), str(volume["storageClass"]))
        for index, volume in volumes
        if volume.get("storageClass")
    ]
    key_pair = spec.get("sshKeyPair")
    return Requirements(
        target_namespace,
        images=images,
        key_pairs=[Value((*root, "sshKeyPair"), key_pair)] if isinstance(key_pair, str) and key_pair else (),
        networks=texts_at((*root, "networks"), spec.get("networks")),
        storage_classes=classes,
        **_addresses(mapping(spec.get("vmNetworkConfig")), (*root, "vmNetworkConfig")),
    )


def cluster_requirements(spec: Mapping[str, Any], networks: Iterable[str] = (), root: FieldPath = ()) -> Requirements:
    """Return what the spec of a HarvesterCluster names, whose machines are on `networks`."""
    target = str(spec.get("targetNamespace") or "")
    balancer = mapping(spec.get("loadBalancerConfig"))
    return Requirements(
        target,
        namespace=Value((*root, "targetNamespace"), target) if target else None,
        networks_of_machines=sorted(networks),
        balancer_pools=_pool_values(balancer, (*root, "loadBalancerConfig")),
        **_addresses(mapping(spec.get("vmNetworkConfig")), (*root, "vmNetworkConfig")),
    )


def texts_at(path: FieldPath, values: Any) -> list[Value]:
    """Return the texts of a list, each with its path; what is none is left to other checks."""
    return [Value((*path, index), text) for index, text in enumerate(_list(values)) if isinstance(text, str) and text]


def place_of(cluster: Obj | None, value: str) -> str:
    """Return which variable of a cluster's topology has a value, in words; empty if none has it, or no topology."""
    topology = mapping(mapping((cluster or {}).get("spec")).get("topology"))
    pools = _list(mapping(topology.get("workers")).get("machineDeployments"))
    places = [("", topology.get("variables"))]
    places += [
        (where, mapping(mapping(part).get("variables")).get("overrides"))
        for where, part in [
            (" of the control plane", topology.get("controlPlane")),
            *((f" of pool {mapping(pool).get('name')}", pool) for pool in pools),
        ]
    ]
    for where, variables in places:
        for variable in _list(variables):
            if _holds(mapping(variable).get("value"), value):
                return f"variable {mapping(variable).get('name')}{where} of the topology"
    return ""


def _holds(content: Any, value: str) -> bool:
    if isinstance(content, (dict, list)):
        return any(_holds(part, value) for part in (content.values() if isinstance(content, dict) else content))
    return isinstance(content, str) and content == value


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one for what is none."""
    return value if isinstance(value, dict) else {}


def _addresses(config: Mapping[str, Any], root: FieldPath) -> dict[str, Any]:
    """Fields of `Requirements` that a `vmNetworkConfig` sets."""
    gateway, mask = str(config.get("gateway") or ""), str(config.get("subnetMask") or "")
    return {
        "pools": _pool_values(config, root),
        "gateway": Value((*root, "gateway"), gateway) if gateway else None,
        "subnet_mask": Value((*root, "subnetMask"), mask) if mask else None,
    }


def _pool_values(config: Mapping[str, Any], root: FieldPath) -> list[Value]:
    """References to IPPools as `ippool.referenced_pools` reads them, with their paths."""
    if refs := texts_at((*root, "ipPoolRefs"), config.get("ipPoolRefs")):
        return refs
    ref = config.get("ipPoolRef")
    return [Value((*root, "ipPoolRef"), ref)] if isinstance(ref, str) and ref else []


def _namespace(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    value = required.namespace
    if value and harvester.namespaces is not None and value.text not in harvester.namespaces:
        detail = "the namespace does not exist on Harvester: the provider creates it, if its account may"
        yield Finding(value.path, Fault.INVALID, detail, NAMESPACE, value.text, advice=True)


def _images(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    existing = harvester.images
    if existing is None:
        return
    yield from _absent(required.images, existing, "VM image", IMAGES, required.target_namespace)

    for value in required.images:
        image = existing.get(_qualified(value.text, required.target_namespace))
        imported = condition_of(image, "Imported")
        if image is None or imported.get("status", "True") == "True":
            continue
        why = str(imported.get("message") or "") or f"{(image.get('status') or {}).get('progress') or 0} %"
        detail = f"the VM image is not imported yet ({why}): wait for it, or import it again on Harvester"
        failed = imported.get("status") == "False"
        yield Finding(value.path, Fault.INVALID, detail, IMAGES, value.text, advice=not failed)


def _pools(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    existing = harvester.pools
    if existing is None:
        return
    names = [value.text for value in required.networks] or required.networks_of_machines
    networks = [_qualified(name, required.target_namespace) for name in names]

    for value in required.pools:
        pool = existing.get(bare(value.text))
        if pool is None:
            yield _missing(value, "IPPool", POOLS, existing)
            continue
        if networks and not ippool.serves(pool, networks):
            selected = mapping(mapping(pool.get("spec")).get("selector")).get("network")
            detail = f"the IPPool serves VM network {selected} only: name that network, or another IPPool"
            yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text)
        elif harvester.free(bare(value.text)) is None:
            detail = "its ranges are invalid: correct spec.ranges of the IPPool on Harvester"
            yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text)
        yield from _contradictions(required, pool)

    for value in required.balancer_pools:
        if bare(value.text) not in existing:
            yield _missing(value, "IPPool", POOLS, existing)


def _contradictions(required: Requirements, pool: Obj) -> Iterator[Finding]:
    """Whether gateway and mask are those of the pool: other machines never report their address."""
    gateway, mask = required.gateway, required.subnet_mask
    problems = ippool.contradictions(pool, gateway.text if gateway else "", mask.text if mask else "")
    for value, name in ((mask, "subnetMask"), (gateway, "gateway")):
        if value and name in problems:
            detail = f"{problems[name]}: correct it, or VMs never report their address"
            yield Finding(value.path, Fault.INVALID, detail, SUBNET, value.text)


def _absent(
    values: Iterable[Value], existing: Iterable[str] | None, kind: str, rule: str, namespace: str = ""
) -> Iterator[Finding]:
    """Yield findings about values that name nothing; with a namespace they may leave it out."""
    if existing is None:
        return
    known = set(existing)
    for value in values:
        names = {_qualified(value.text, namespace)} if namespace else {value.text}
        if not namespace and "/" not in value.text:
            # In which namespace the provider searches is not known here.
            names |= {name for name in known if bare(name) == value.text}
        if not names & known:
            yield _missing(value, kind, rule, known, namespace)


def _missing(value: Value, kind: str, rule: str, existing: Iterable[str], namespace: str = "") -> Finding:
    reference, known = value.text, sorted(existing)
    where = "" if "/" in reference or not namespace else f" in namespace {namespace}"

    same = [name for name in known if name != reference and bare(name) == bare(reference)]
    hint = f"; Harvester has {', '.join(same[:_SHOWN])}" if same else did_you_mean(reference, known)
    if not hint and known and len(known) <= _SHOWN:
        hint = f"; Harvester has {', '.join(known)}"

    remedy = "upload it to Harvester" if kind == "VM image" else "create it on Harvester"
    detail = f"{kind} does not exist{where}{hint}: {remedy}, or name another"
    return Finding(value.path, Fault.INVALID, detail, rule, reference)


def bare(reference: str) -> str:
    """Return a name without its namespace, which means nothing for an IPPool."""
    return reference.rpartition("/")[2]


def _qualified(reference: str, namespace: str) -> str:
    return reference if "/" in reference else f"{namespace}/{reference}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
