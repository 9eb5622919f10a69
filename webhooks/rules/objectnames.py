"""Rules about names of machines, which their VMs get, and of objects that a spec references."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import (
    CLUSTER_TEMPLATE,
    CLUSTERS,
    KINDS,
    MACHINE,
    MACHINE_TEMPLATE,
    MACHINES,
    Field,
    Subject,
)
from webhooks.rules.values import (
    LABEL_LENGTH,
    is_label,
    is_label_key,
    is_label_value,
    is_reference,
    is_subdomain,
)

RULES = Rules()

_REFERENCE = "must be namespace/name, or a bare name in the target namespace"
_MAX_LABELS = 64
# Example of the suffix that an API server appends to metadata.generateName.
_GENERATED = "xxxxx"


@RULES.rule(
    "machine-name",
    (MACHINE,),
    "The name of a machine must be at most 63 lower-case letters, digits and `-`: the VM and its "
    "guest have that name.",
    "metadata.name",
    example="metadata: {name: demo.worker.1}",
)
def _machine_name(subject: Subject) -> Iterator[Finding]:
    metadata = subject.obj.at("metadata")
    reported = metadata.at("name") if metadata.at("name").text else metadata.at("generateName")
    full_name = metadata.at("name").text
    if not full_name and reported.text:
        full_name = reported.text[: LABEL_LENGTH - len(_GENERATED)] + _GENERATED

    if len(full_name) > LABEL_LENGTH:
        detail = f"the VM's host name is made of it: at most {LABEL_LENGTH} characters"
        yield reported.problem(Fault.TOO_LONG, detail)
    elif full_name and not is_label(full_name):
        yield reported.invalid(
            "the VM's host name is made of it: use lower case letters, digits and '-' only"
        )


@RULES.rule(
    "network-reference",
    MACHINES,
    "A network must be `namespace/name`, or a bare name in the target namespace.",
    "networks[]",
    example="networks: [default/production/vlan-1]",
)
def _network_reference(subject: Subject) -> Iterator[Finding]:
    for network in subject.spec.at("networks").each():
        yield from _check_reference(network)


@RULES.rule(
    "ssh-key-pair-reference",
    MACHINES,
    "A KeyPair must be `namespace/name`, or a bare name in the target namespace.",
    "sshKeyPair",
    example="sshKeyPair: ssh-ed25519 AAAAC3Nza admin",
)
def _ssh_key_pair_reference(subject: Subject) -> Iterator[Finding]:
    pair = subject.spec.at("sshKeyPair")
    if pair.text:
        yield from _check_reference(pair)


@RULES.rule(
    "image-reference",
    MACHINES,
    "An image must be `namespace/name`, or a bare name in the target namespace. The name may be "
    "its display name.",
    "volumes[].imageName",
    example="volumes: [{volumeType: image, imageName: /opensuse, volumeSize: 40Gi}]",
)
def _image_reference(subject: Subject) -> Iterator[Finding]:
    for volume in subject.spec.at("volumes").each():
        image = volume.at("imageName")
        namespace, slash, name = image.text.rpartition("/")
        # A display name may have nearly every character.
        is_name = name.strip() == name and name.isprintable() and name != ""
        is_qualified = not slash or is_label(namespace)
        if image.text and not (is_name and is_qualified):
            yield image.invalid(_REFERENCE)


@RULES.rule(
    "storage-class-name",
    MACHINES,
    "A StorageClass must be named without a namespace.",
    "volumes[].storageClass",
    example=(
        "volumes: [{volumeType: storageClass, storageClass: default/harvester-longhorn, "
        "volumeSize: 40Gi}]"
    ),
)
def _storage_class_name(subject: Subject) -> Iterator[Finding]:
    for volume in subject.spec.at("volumes").each():
        storage_class = volume.at("storageClass")
        if storage_class.text and not is_subdomain(storage_class.text):
            yield storage_class.invalid(
                "must be the name of a StorageClass, for example harvester-longhorn"
            )


@RULES.rule(
    "pool-reference",
    KINDS,
    "A reference to a pool must be a name. A namespace before it has no effect.",
    "vmNetworkConfig.ipPoolRef",
    "vmNetworkConfig.ipPoolRefs[]",
    example=(
        "vmNetworkConfig: {gateway: 172.17.1.1, subnetMask: 255.255.255.0, ipPoolRef: "
        "172.17.1.0/24/a}"
    ),
)
def _pool_reference(subject: Subject) -> Iterator[Finding]:
    config = subject.spec.at("vmNetworkConfig")
    references = list(config.at("ipPoolRefs").each())
    if config.at("ipPoolRef").present:
        references.insert(0, config.at("ipPoolRef"))

    for reference in references:
        if isinstance(reference.value, str) and not is_reference(reference.text):
            yield reference.invalid(
                "must be the name of an IPPool on Harvester, for example vm-pool"
            )


@RULES.rule(
    "pool-network-reference",
    CLUSTERS,
    "The network of a pool must be `namespace/name`, or a bare name in the target namespace.",
    "vmNetworkConfig.ipPool.vmNetwork",
    "loadBalancerConfig.ipPool.vmNetwork",
    example=(
        "loadBalancerConfig: {ipamType: pool, ipPool: {subnet: 172.17.1.0/24, gateway: 172.17.1.1, "
        "vmNetwork: default/production/vlan-1}}"
    ),
)
def _pool_network_reference(subject: Subject) -> Iterator[Finding]:
    for config in ("loadBalancerConfig", "vmNetworkConfig"):
        yield from _check_reference(subject.spec.at(config, "ipPool", "vmNetwork"))


@RULES.rule(
    "template-labels",
    (CLUSTER_TEMPLATE, MACHINE_TEMPLATE),
    "Labels of a template must be valid labels: Cluster API cannot create objects with others.",
    "spec.template.metadata.labels",
    example="template: {labels: {tier: for workers}}",
)
def _template_labels(subject: Subject) -> Iterator[Finding]:
    labels = subject.obj.at("spec", "template", "metadata", "labels")
    if len(labels.mapping) > _MAX_LABELS:
        yield Finding(labels.path, Fault.TOO_MANY, f"must have at most {_MAX_LABELS} labels")
    for key, value in labels.mapping.items():
        if not is_label_key(key):
            yield labels.at(key).invalid(
                "must have a name with an optional domain as its key: example.com/tier"
            )
        elif isinstance(value, str) and not is_label_value(value):
            yield labels.at(key).invalid(
                "must be at most 63 letters, digits, '-', '_' or '.', or empty"
            )


def _check_reference(field: Field) -> Iterator[Finding]:
    if isinstance(field.value, str) and not is_reference(field.text):
        yield field.invalid(f"{_REFERENCE}, for example default/production")
