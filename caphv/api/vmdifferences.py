"""Differences between a VM and its machine, as condition `VMUpToDate` names them.

The reconciler writes the message of the condition, and admission reads from it which fields of a
machine a user may set back. Both take the beginnings of the texts from here.
"""

from __future__ import annotations

from enum import StrEnum


class Difference(StrEnum):
    """How the text of a difference begins."""

    RUN_STRATEGY = "runStrategy is"
    HOSTNAME = "hostname is"
    CORES = "cores is"
    CPU_LIMIT = "CPU limit is"
    MEMORY_LIMIT = "memory limit is"
    GUEST_MEMORY = "guest memory is"
    NETWORKS = "networks is"
    INTERFACES = "interfaces is"
    DISKS = "disks is"
    FIRMWARE = "firmware is"
    TPM = "TPM is"
    DEVICES = "devices lack"
    CPU_PINNING = "CPU pinning is"
    EMULATOR_THREAD = "isolated emulator thread is"
    NUMA = "NUMA passthrough is"
    HUGE_PAGES = "huge pages is"
    FAILURE_DOMAIN = "nodeAffinity lacks the failure domain"
    NODE_AFFINITY = "nodeAffinity lacks rules"
    POD_AFFINITY = "podAffinity lacks rules"


INVALID_SPEC = "the machine's spec is not valid"
"""How the message begins if no VM can be compared with the machine."""

_BY_FIELD = {
    "cpu": (Difference.CORES, Difference.CPU_LIMIT),
    "cpuMax": (Difference.CPU_LIMIT,),
    "memory": (Difference.MEMORY_LIMIT, Difference.GUEST_MEMORY),
    "memoryMax": (Difference.MEMORY_LIMIT,),
    "volumes": (Difference.DISKS,),
    "networks": (Difference.NETWORKS, Difference.INTERFACES),
    "firmware": (Difference.FIRMWARE,),
    "tpm": (Difference.TPM,),
    "devices": (Difference.DEVICES,),
    "cpuPinning": (Difference.CPU_PINNING,),
    "isolateEmulatorThread": (Difference.EMULATOR_THREAD,),
    "numaPassthrough": (Difference.NUMA,),
    "hugepages": (Difference.HUGE_PAGES,),
    "failureDomain": (Difference.FAILURE_DOMAIN,),
    "nodeAffinity": (Difference.NODE_AFFINITY,),
    "workloadAffinity": (Difference.POD_AFFINITY,),
}


def names_field(message: str, field: str) -> bool:
    """Return whether a message says that the VM differs in a field of the machine's spec.

    A message about an invalid spec names all fields, because any of them may be the reason.
    """
    if message.startswith(INVALID_SPEC):
        return True
    return any(f"{difference} " in message for difference in _BY_FIELD.get(field, ()))
