"""Check whether a Harvester has the objects to which clusters and machines refer. No I/O.

`generate`, `plan` and `doctor` turn their own objects into `Requirements`. Findings refer to the
fields with the names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from caphv.api import interfaces, ippool
from caphv.api.bootimage import ImageLookupError, imports, look_up, qualified
from caphv.api.hostresources import HUGEPAGES
from caphv.api.object import Obj, at
from caphv.validation.finding import Fault, FieldPath, Finding, did_you_mean
from operations.capacity.surroundings import Surroundings
from operations.read.objects import condition_of

# Rules of findings. The doctor's checks have the same names.
IMAGES = "images"
KEY_PAIRS = "key-pairs"
NETWORKS = "networks"
STORAGE_CLASS = "storage-class"
POOLS = "pools"
SUBNET = "pool-subnet"
NAMESPACE = "namespace"
DEVICES = "devices"

_MAX_LISTED = 3


@dataclass(frozen=True, slots=True)
class Value:
    """The text of a field, and the path of the field."""

    path: FieldPath
    text: str


@dataclass(frozen=True, slots=True)
class Requirements:
    """The objects on a Harvester to which other objects refer.

    A name without a namespace refers to the target namespace.

    :param namespace: the target namespace, if it must exist
    :param imported: qualified names of images that the provider imports if Harvester lacks them
    :param networks: the networks of the machines
    :param networks_of_machines: the same, if other objects have the names
    :param devices: resource names of devices and huge pages
    :param pools: IPPools with the addresses of machines
    :param balancer_pools: IPPools with the addresses of load balancers
    :param interface_pools: IPPools with the addresses of single interfaces, each with its network
    """

    target_namespace: str
    _: KW_ONLY
    namespace: Value | None = None
    images: Sequence[Value] = ()
    imported: Collection[str] = ()
    key_pairs: Sequence[Value] = ()
    networks: Sequence[Value] = ()
    storage_classes: Sequence[Value] = ()
    devices: Sequence[Value] = ()
    pools: Sequence[Value] = ()
    balancer_pools: Sequence[Value] = ()
    interface_pools: Sequence[tuple[Value, str]] = ()
    gateway: Value | None = None
    subnet_mask: Value | None = None
    networks_of_machines: Sequence[str] = ()


def shortcomings(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    """Yield findings about absent or unsuitable objects, in the order in which a VM needs them."""
    yield from _check_namespace(required, harvester)
    yield from _check_images(required, harvester)

    target = required.target_namespace
    yield from _find_absent(required.key_pairs, harvester.key_pairs, "KeyPair", KEY_PAIRS, target)
    yield from _find_absent(required.networks, harvester.networks, "VM network", NETWORKS, target)
    # A StorageClass has no namespace.
    yield from _find_absent(
        required.storage_classes, harvester.storage_classes, "StorageClass", STORAGE_CLASS
    )
    yield from _check_devices(required, harvester)
    yield from _check_pools(required, harvester)


def machine_requirements(
    spec: Mapping[str, Any],
    target_namespace: str,
    root: FieldPath = (),
    *,
    version: str = "",
    imported: Collection[str],
) -> Requirements:
    """Return the objects to which the spec of a HarvesterMachine refers.

    :param spec: the spec of a HarvesterMachine, or of the machines of a template
    :param target_namespace: the namespace of its VM
    :param root: the path of the spec in its object
    :param version: the Kubernetes version of the machines; empty to skip lookups of images
    :param imported: images that the provider imports, by `imports_of`
    """
    # Skip values of a wrong type, which the schema reports.
    images = []
    classes = []
    for index, volume in enumerate(_list(spec.get("volumes"))):
        if not isinstance(volume, dict):
            continue

        path = (*root, "volumes", index)
        if volume.get("imageName"):
            images.append(Value((*path, "imageName"), str(volume["imageName"])))
        elif version:
            images += looked_up((*path, "imageLookup"), volume.get("imageLookup"), version)
        if volume.get("storageClass"):
            classes.append(Value((*path, "storageClass"), str(volume["storageClass"])))

    key_pairs = []
    key_pair = spec.get("sshKeyPair")
    if isinstance(key_pair, str) and key_pair:
        key_pairs.append(Value((*root, "sshKeyPair"), key_pair))

    return Requirements(
        target_namespace,
        images=images,
        imported=imported,
        key_pairs=key_pairs,
        networks=texts_at((*root, "networks"), spec.get("networks")),
        storage_classes=classes,
        devices=device_values(spec, root),
        interface_pools=interface_pools_of(spec, root),
        **_addresses(mapping(spec.get("vmNetworkConfig")), (*root, "vmNetworkConfig")),
    )


def interface_pools_of(spec: Mapping[str, Any], root: FieldPath) -> list[tuple[Value, str]]:
    """Return the IPPools in the settings of interfaces, each with the interface's network."""
    pools = []
    for index, interface in enumerate(_list(spec.get(interfaces.FIELD))):
        listed = _list(mapping(interface).get("addressesFromPools"))
        for entry, pool in enumerate(map(mapping, listed)):
            name = pool.get("name")
            if interfaces.is_harvester_pool(pool) and isinstance(name, str) and name:
                path = (*root, interfaces.FIELD, index, "addressesFromPools", entry, "name")
                pools.append((Value(path, name), str(mapping(interface).get("network") or "")))
    return pools


def device_values(spec: Mapping[str, Any], root: FieldPath) -> list[Value]:
    """Return the resource names of the devices and huge pages of a spec, with their paths."""
    values = []
    for index, device in enumerate(_list(spec.get("devices"))):
        name = mapping(device).get("resourceName")
        if isinstance(name, str) and name:
            values.append(Value((*root, "devices", index, "resourceName"), name))
    page_size = spec.get("hugepages")
    if isinstance(page_size, str) and page_size:
        values.append(Value((*root, "hugepages"), f"{HUGEPAGES}{page_size}"))
    return values


def cluster_requirements(
    spec: Mapping[str, Any], networks: Iterable[str], root: FieldPath
) -> Requirements:
    """Return the objects to which the spec of a HarvesterCluster refers.

    :param networks: the networks of its machines
    :param root: the path of the spec in its object
    """
    target = str(spec.get("targetNamespace") or "")
    balancer = mapping(spec.get("loadBalancerConfig"))
    return Requirements(
        target,
        namespace=Value((*root, "targetNamespace"), target) if target else None,
        networks_of_machines=sorted(networks),
        balancer_pools=_pool_values(balancer, (*root, "loadBalancerConfig")),
        **_addresses(mapping(spec.get("vmNetworkConfig")), (*root, "vmNetworkConfig")),
    )


def looked_up(path: FieldPath, lookup: Any, version: str) -> list[Value]:
    """Return the image of a lookup for a version; empty for an invalid one, which others report."""
    try:
        return [Value(path, look_up(mapping(lookup), version))] if lookup else []
    except ImageLookupError:
        return []


def imports_of(cluster_spec: Mapping[str, Any]) -> set[str]:
    """Return the qualified names of images that a cluster imports."""
    return set(map(str, imports(cluster_spec).values()))


def texts_at(path: FieldPath, values: Any) -> list[Value]:
    """Return the texts of a list with their paths. Other checks report values of other types."""
    return [
        Value((*path, index), text)
        for index, text in enumerate(_list(values))
        if isinstance(text, str) and text
    ]


def place_of(cluster: Obj | None, value: str) -> str:
    """Return the text for the variable of a topology with a value; empty if there is none."""
    topology = mapping(at(cluster, "spec", "topology"))
    places = [
        ("", topology.get("variables")),
        (" of the control plane", at(topology, "controlPlane", "variables", "overrides")),
    ]
    places += [
        (f" of pool {at(pool, 'name')}", at(pool, "variables", "overrides"))
        for pool in _list(at(topology, "workers", "machineDeployments"))
    ]

    for where, variables in places:
        for variable in _list(variables):
            if _holds(mapping(variable).get("value"), value):
                return f"variable {mapping(variable).get('name')}{where} of the topology"
    return ""


def _holds(content: Any, value: str) -> bool:
    """Return whether a variable contains a text at any depth."""
    if isinstance(content, dict):
        return any(_holds(part, value) for part in content.values())
    if isinstance(content, list):
        return any(_holds(part, value) for part in content)
    return isinstance(content, str) and content == value


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty mapping for any other value."""
    return value if isinstance(value, dict) else {}


def _addresses(config: Mapping[str, Any], root: FieldPath) -> dict[str, Any]:
    """Return the fields of `Requirements` that a `vmNetworkConfig` sets."""
    gateway = str(config.get("gateway") or "")
    mask = str(config.get("subnetMask") or "")
    return {
        "pools": _pool_values(config, root),
        "gateway": Value((*root, "gateway"), gateway) if gateway else None,
        "subnet_mask": Value((*root, "subnetMask"), mask) if mask else None,
    }


def _pool_values(config: Mapping[str, Any], root: FieldPath) -> list[Value]:
    """Return references to IPPools as `ippool.referenced_pools` reads them, with their paths."""
    if refs := texts_at((*root, "ipPoolRefs"), config.get("ipPoolRefs")):
        return refs
    ref = config.get("ipPoolRef")
    return [Value((*root, "ipPoolRef"), ref)] if isinstance(ref, str) and ref else []


def _check_namespace(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    """Check that the target namespace exists."""
    value = required.namespace
    if value and harvester.namespaces is not None and value.text not in harvester.namespaces:
        detail = (
            "the namespace does not exist on Harvester: the provider creates it, if its account may"
        )
        yield Finding(value.path, Fault.INVALID, detail, NAMESPACE, value.text, advice=True)


def _check_images(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    """Check that images exist, and that Harvester has imported them."""
    existing = harvester.images
    if existing is None:
        return
    target = required.target_namespace
    needed = [
        value for value in required.images if qualified(value.text, target) not in required.imported
    ]
    yield from _find_absent(needed, existing, "VM image", IMAGES, target)

    for value in required.images:
        image = existing.get(qualified(value.text, required.target_namespace))
        imported = condition_of(image, "Imported")
        if image is None or imported.get("status", "True") == "True":
            continue

        progress = str(imported.get("message") or f"{at(image, 'status', 'progress') or 0} %")
        detail = (
            f"the VM image is not imported yet ({progress}): wait for it, or import it again on "
            "Harvester"
        )
        has_failed = imported.get("status") == "False"
        yield Finding(value.path, Fault.INVALID, detail, IMAGES, value.text, advice=not has_failed)


def _check_devices(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    """Warn of devices that no host offers: their machines wait until a host does."""
    existing = harvester.devices
    for value in required.devices:
        if existing is None or value.text in existing:
            continue
        if value.text.startswith(HUGEPAGES):
            detail = "no host of Harvester has such pages: reserve them at the boot of a host"
            yield Finding(value.path, Fault.INVALID, detail, DEVICES, value.text, advice=True)
            continue
        names = sorted(name for name in existing if not name.startswith(HUGEPAGES))
        hint = did_you_mean(value.text, names)
        if not hint and names:
            further = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
            hint = f"; hosts offer {', '.join(names[:_MAX_LISTED])}{further}"
        detail = f"no host of Harvester offers this device{hint}: enable it there, or name another"
        yield Finding(value.path, Fault.INVALID, detail, DEVICES, value.text, advice=True)


def _check_pools(required: Requirements, harvester: Surroundings) -> Iterator[Finding]:
    """Check that IPPools exist, serve the networks of machines, and fit gateway and mask."""
    existing = harvester.pools
    if existing is None:
        return

    names = [value.text for value in required.networks] or required.networks_of_machines
    networks = [qualified(name, required.target_namespace) for name in names]

    for value in required.pools:
        pool = existing.get(bare(value.text))
        if pool is None:
            yield _missing_finding(value, "IPPool", POOLS, existing)
            continue

        if networks and not ippool.serves(pool, networks):
            selected = at(pool, "spec", "selector", "network")
            detail = (
                f"the IPPool serves VM network {selected} only: name that network, or another "
                "IPPool"
            )
            yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text)
        elif harvester.free(bare(value.text)) is None:
            detail = "its ranges are invalid: correct spec.ranges of the IPPool on Harvester"
            yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text)
        yield from _check_subnet(required, pool)

    yield from _check_interface_pools(required, harvester, networks[:1])
    for value in required.balancer_pools:
        if bare(value.text) not in existing:
            yield _missing_finding(value, "IPPool", POOLS, existing)


def _check_interface_pools(
    required: Requirements, harvester: Surroundings, first: Sequence[str]
) -> Iterator[Finding]:
    """Check that IPPools of interfaces exist, serve their networks, and have a default route.

    :param first: the first network of the machines; empty if it is unknown
    """
    existing = harvester.pools or {}
    for value, network in required.interface_pools:
        pool = existing.get(value.text)
        if pool is None:
            yield _missing_finding(value, "IPPool", POOLS, existing)
        elif not ippool.serves(pool, [qualified(network, required.target_namespace)]):
            selected = at(pool, "spec", "selector", "network")
            detail = f"the IPPool serves VM network {selected} only: name another IPPool"
            yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text)
        elif harvester.free(value.text) is None:
            detail = "its ranges are invalid: correct spec.ranges of the IPPool on Harvester"
            yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text)
        elif [*first] == [qualified(network, required.target_namespace)]:
            yield from _check_default_route(value, pool)


def _check_default_route(value: Value, pool: Obj) -> Iterator[Finding]:
    """Warn of a pool of the first interface with IPv4 ranges that have no gateway."""
    # IPv6 needs no gateway in the range, because guests also learn it from their router.
    ranges = [part for part in _list(at(pool, "spec", "ranges")) if ":" not in part["subnet"]]
    if any(not part.get("gateway") for part in ranges):
        detail = (
            "a range of the IPPool has no gateway, so that guests have no default route on their "
            "first interface: add it to the range, or give the gateway by another interface"
        )
        yield Finding(value.path, Fault.INVALID, detail, POOLS, value.text, advice=True)


def _check_subnet(required: Requirements, pool: Obj) -> Iterator[Finding]:
    """Check that gateway and mask match the pool. Otherwise, machines report no address."""
    gateway = required.gateway
    mask = required.subnet_mask
    problems = ippool.contradictions(
        pool, gateway.text if gateway else "", mask.text if mask else ""
    )
    for value, name in ((mask, "subnetMask"), (gateway, "gateway")):
        if value and name in problems:
            detail = f"{problems[name]}: correct it, or VMs never report their address"
            yield Finding(value.path, Fault.INVALID, detail, SUBNET, value.text)


def _find_absent(
    values: Iterable[Value],
    existing: Iterable[str] | None,
    kind: str,
    rule: str,
    namespace: str = "",
) -> Iterator[Finding]:
    """Yield findings about references to objects that do not exist.

    :param values: names of objects
    :param existing: names of the objects on Harvester; None if they could not be read
    :param kind: the kind of the objects, for messages
    :param rule: the rule of the findings
    :param namespace: the namespace of names without one; empty if the provider chooses it
    """
    if existing is None:
        return

    existing_names = set(existing)
    for value in values:
        names = {qualified(value.text, namespace)} if namespace else {value.text}
        if not namespace and "/" not in value.text:
            # Accept any namespace, because the one in which the provider searches is unknown here.
            names |= {name for name in existing_names if bare(name) == value.text}
        if not names & existing_names:
            yield _missing_finding(value, kind, rule, existing_names, namespace)


def _missing_finding(
    value: Value, kind: str, rule: str, existing: Iterable[str], namespace: str = ""
) -> Finding:
    """Return the finding about an object that does not exist, with a hint at similar names.

    :param value: the name
    :param kind: the kind of the object, for messages
    :param rule: the rule of the finding
    :param existing: names of the objects on Harvester
    :param namespace: the namespace of the object if its name has none
    """
    reference = value.text
    names = sorted(existing)
    has_namespace = "/" in reference
    where = f" in namespace {namespace}" if namespace and not has_namespace else ""

    # The same name in another namespace is a likelier mistake than a typo.
    similar = [name for name in names if name != reference and bare(name) == bare(reference)]
    hint = did_you_mean(reference, names)
    if similar:
        hint = f"; Harvester has {', '.join(similar[:_MAX_LISTED])}"
    if not hint and names and len(names) <= _MAX_LISTED:
        hint = f"; Harvester has {', '.join(names)}"

    remedy = "upload it to Harvester" if kind == "VM image" else "create it on Harvester"
    detail = f"{kind} does not exist{where}{hint}: {remedy}, or name another"
    return Finding(value.path, Fault.INVALID, detail, rule, reference)


def bare(reference: str) -> str:
    """Return a name without its namespace, because IPPools have none."""
    return reference.rpartition("/")[2]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
