"""Rules about the spec of a machine as a whole, its size, firmware and login."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api.quantity import quantity
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import (
    CLUSTER_TEMPLATE,
    KINDS,
    MACHINE,
    MACHINE_TEMPLATE,
    MACHINES,
    Subject,
)
from webhooks.rules.values import MI, NO_QUANTITY, TI

RULES = Rules()

_MAX_CORES = 512
# A smaller size has lost its suffix, and a larger one has a wrong suffix.
_MIN_MEMORY = 256 * MI
_MAX_MEMORY = 16 * TI
# KubeVirt adds memory to running VMs of this size or more, in blocks.
_MIN_GROWING_MEMORY = 1024 * MI
_MEMORY_BLOCK = 2 * MI
_MAX_ITEMS = {"networks": 16, "dnsServers": 16, "dnsSearch": 16, "values": 64}
_DEFAULT_MAX_ITEMS = 32
_USER = re.compile(r"[A-Za-z_][-A-Za-z0-9_.]{0,31}")
_PROVIDER_ID = re.compile(r"[A-Za-z][-A-Za-z0-9+.]*://\S+")


@RULES.rule(
    "spec-required",
    (MACHINE_TEMPLATE, CLUSTER_TEMPLATE, MACHINE),
    "Templates and machines must have a spec: nothing can be made without one.",
    "spec",
    example="spec: {}",
)
def _spec_required(subject: Subject) -> Iterator[Finding]:
    # The schema reports fields that are missing in a spec.
    spec = subject.obj.at("spec")
    if spec.value is None or (subject.kind == MACHINE_TEMPLATE and spec.value == {}):
        yield subject.spec.required("must be set: it describes what is to be made")


@RULES.rule(
    "cpu-most",
    MACHINES,
    "`cpu` and `cpuMax` must be at most 512. They count cores, not thousandths.",
    "cpu",
    "cpuMax",
    example="cpu: 4000",
)
def _cpu_most(subject: Subject) -> Iterator[Finding]:
    for cpu in (subject.spec.at("cpu"), subject.spec.at("cpuMax")):
        if cpu.number is not None and cpu.number > _MAX_CORES:
            yield cpu.invalid(
                f"must be at most {_MAX_CORES}: give whole cores, not thousandths of one"
            )


@RULES.rule(
    "cpu-max",
    MACHINES,
    "`cpuMax`, to which a running VM can grow, must be at least `cpu`.",
    "cpuMax",
    "cpu",
    example="{cpu: 8, cpuMax: 4}",
)
def _cpu_max(subject: Subject) -> Iterator[Finding]:
    cpu = subject.spec.at("cpu")
    most = subject.spec.at("cpuMax")
    if cpu.number is not None and most.number is not None and most.number < cpu.number:
        yield most.invalid("must be at least cpu: the VM grows from cpu to cpuMax")


@RULES.rule(
    "memory-size",
    MACHINES,
    "`memory` and `memoryMax` must be from 256Mi to 16Ti. A number without a suffix counts bytes.",
    "memory",
    "memoryMax",
    example='memory: "4096"',
)
def _memory_size(subject: Subject) -> Iterator[Finding]:
    for memory in (subject.spec.at("memory"), subject.spec.at("memoryMax")):
        size = quantity(memory.text)
        if size is None:
            if memory.text:
                yield memory.invalid(NO_QUANTITY)
        elif not _MIN_MEMORY <= size <= _MAX_MEMORY:
            yield memory.invalid(
                "must be from 256Mi to 16Ti; without a suffix it counts bytes, so write for "
                "example 4Gi"
            )


@RULES.rule(
    "memory-max",
    MACHINES,
    "`memoryMax`, to which a running VM can grow, must be at least `memory`. KubeVirt adds memory "
    "in blocks of 2Mi to VMs of 1Gi or more.",
    "memoryMax",
    "memory",
    example="{memory: 8Gi, memoryMax: 4Gi}",
)
def _memory_max(subject: Subject) -> Iterator[Finding]:
    most = subject.spec.at("memoryMax")
    size = quantity(subject.spec.at("memory").text)
    largest = quantity(most.text)
    if size is None or largest is None:
        return

    if largest < size:
        yield most.invalid("must be at least memory: the VM grows from memory to memoryMax")
    if size < _MIN_GROWING_MEMORY or size % _MEMORY_BLOCK or largest % _MEMORY_BLOCK:
        yield most.invalid("needs at least 1Gi of memory, and multiples of 2Mi in both fields")


@RULES.rule(
    "small-machine",
    MACHINES,
    "A node of RKE2 must have at least 2 cores and 4Gi of memory to work well.",
    "cpu",
    "memory",
    example="{cpu: 1, memory: 8Gi}",
    advice=True,
)
def _small_machine(subject: Subject) -> Iterator[Finding]:
    cpu = subject.spec.at("cpu")
    memory = subject.spec.at("memory")
    if cpu.number == 1:
        yield cpu.invalid("RKE2 wants at least 2 cores for a node")

    # Four gigabytes in decimal units are a little less, and enough.
    size = quantity(memory.text)
    if size is not None and _MIN_MEMORY <= size < 4 * 1000**3:
        yield memory.invalid("RKE2 wants at least 4Gi of memory for a node")


@RULES.rule(
    "ssh-user-name",
    MACHINES,
    "`sshUser` must be a user name: at most 32 letters, digits, `.`, `_` and `-`.",
    "sshUser",
    example="sshUser: opensuse user",
)
def _ssh_user_name(subject: Subject) -> Iterator[Finding]:
    user = subject.spec.at("sshUser")
    if user.present and user.text and not _USER.fullmatch(user.text):
        yield user.invalid(
            "must be a user name: at most 32 letters, digits, '.', '_' or '-', a letter first"
        )


@RULES.rule(
    "ssh-user-root",
    MACHINES,
    "`sshUser` must be a user of the image rather than root, whose login images forbid by default.",
    "sshUser",
    example="sshUser: root",
    advice=True,
)
def _ssh_user_root(subject: Subject) -> Iterator[Finding]:
    user = subject.spec.at("sshUser")
    if user.text == "root":
        yield user.invalid(
            "most images forbid root to log in: use the image's own user, for example opensuse"
        )


@RULES.rule(
    "networks-unique",
    MACHINES,
    "`networks` must name each network once: a VM has one interface per network.",
    "networks[]",
    example="networks: [default/production, default/production]",
)
def _networks_unique(subject: Subject) -> Iterator[Finding]:
    listed_networks: set[str] = set()
    for network in subject.spec.at("networks").each():
        if network.text and network.text in listed_networks:
            yield network.problem(
                Fault.DUPLICATE, "the VM is in this network already: name each network once"
            )
        listed_networks.add(network.text)


@RULES.rule(
    "list-length",
    KINDS,
    "A VM must have at most 16 interfaces and 32 disks. Lists of pools and affinities must have at "
    "most 32 items, lists for DNS at most 16.",
    "networks",
    "volumes",
    "*.ipPoolRefs",
    "*.dnsServers",
    "*.dnsSearch",
    "nodeAffinity",
    "workloadAffinity",
    example=(
        "networks: [default/n1, default/n2, default/n3, default/n4, default/n5, default/n6, "
        "default/n7, default/n8, default/n9, default/n10, default/n11, default/n12, default/n13, "
        "default/n14, default/n15, default/n16, default/n17]"
    ),
)
def _list_length(subject: Subject) -> Iterator[Finding]:
    for name in (
        "networks",
        "volumes",
        "networkConfig",
        "vmNetworkConfig",
        "networkInterfaces",
        "nodeAffinity",
        "workloadAffinity",
    ):
        field = subject.spec.at(name)
        yield from _report_long_lists(field.value, field.path, name)


@RULES.rule(
    "secure-boot-needs-efi",
    MACHINES,
    "`firmware.efi` must be true for `firmware.secureBoot`: only UEFI has Secure Boot.",
    "firmware.secureBoot",
    "firmware.efi",
    example="firmware: {secureBoot: true}",
)
def _secure_boot_needs_efi(subject: Subject) -> Iterator[Finding]:
    firmware = subject.spec.at("firmware")
    if firmware.at("secureBoot").value is True and firmware.at("efi").value is not True:
        yield firmware.at("secureBoot").invalid(
            "needs firmware.efi: true, because only UEFI has Secure Boot"
        )


@RULES.rule(
    "tpm-persistent-needs-tpm",
    MACHINES,
    "`tpm.enabled` must be true for `tpm.persistent`.",
    "tpm.persistent",
    "tpm.enabled",
    example="tpm: {persistent: true}",
)
def _tpm_persistent_needs_tpm(subject: Subject) -> Iterator[Finding]:
    tpm = subject.spec.at("tpm")
    if tpm.at("persistent").value is True and tpm.at("enabled").value is not True:
        yield tpm.at("persistent").invalid("needs tpm.enabled: true")


@RULES.rule(
    "provider-id",
    MACHINES,
    "`providerID` must be a scheme and an ID. The controller sets it.",
    "providerID",
    example="providerID: 0c4f1a52",
)
def _provider_id(subject: Subject) -> Iterator[Finding]:
    provider_id = subject.spec.at("providerID")
    if provider_id.text and not _PROVIDER_ID.fullmatch(provider_id.text):
        yield provider_id.invalid(
            "must be a scheme and an id, for example harvester://<uid of the VM>; or leave it out"
        )


@RULES.rule(
    "provider-id-of-template",
    (MACHINE_TEMPLATE,),
    "A template must not have a `providerID`: each machine gets its own.",
    "providerID",
    example='providerID: "harvester://0c4f1a52-5f0e-4f0a-9d3c-2f6d1c1f7a10"',
)
def _provider_id_of_template(subject: Subject) -> Iterator[Finding]:
    provider_id = subject.spec.at("providerID")
    if provider_id.text:
        yield provider_id.forbidden("each machine gets an identity of its own: remove it")


@RULES.rule(
    "static-address-of-template",
    (MACHINE_TEMPLATE,),
    "A template with a static address must be used for one machine only: all its machines get that "
    "address.",
    "networkConfig.address",
    example="networkConfig: {address: 172.17.1.10, gateway: 172.17.1.1}",
    advice=True,
)
def _static_address_of_template(subject: Subject) -> Iterator[Finding]:
    static = subject.spec.at("networkConfig", "address")
    if static.text:
        yield static.invalid(
            "every machine of this template gets this one address: use vmNetworkConfig with a pool"
        )


def _report_long_lists(value: Any, path: FieldPath, name: str) -> Iterator[Finding]:
    """Yield lists and selectors that are too long, in the value of a field and below it."""
    limit = _MAX_ITEMS.get(name, _DEFAULT_MAX_ITEMS)
    # Any other mapping is an object of the API, whose fields the schema limits.
    has_limit = isinstance(value, list) or (name == "matchLabels" and isinstance(value, dict))
    if has_limit and len(value) > limit:
        yield Finding(path, Fault.TOO_MANY, f"must have at most {limit} items")

    members: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, list):
        members = enumerate(value)
    elif isinstance(value, dict):
        members = value.items()
    for key, member in members:
        if isinstance(member, dict | list):
            member_name = key if isinstance(key, str) else ""
            yield from _report_long_lists(member, (*path, key), member_name)
