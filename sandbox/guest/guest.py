"""One guest: a run of a virtual machine, as its VirtualMachineInstance describes it."""

from __future__ import annotations

from dataclasses import dataclass

from caphv.api.object import Key, Obj, key_of, list_at, uid_of


@dataclass(frozen=True, slots=True)
class Guest:
    """One run of a VM. A restart is a new guest with the same disk.

    `uid` is the uid of the instance. `disk` is the uid of the VM, and identifies the data that
    survives a restart.
    """

    key: Key
    uid: str
    disk: str
    hostname: str
    spec: Obj

    @property
    def system_uuid(self) -> str:
        """Return the UUID of the firmware, which the kubelet reports as the UUID of the system."""
        return str(self.spec["domain"]["firmware"]["uuid"])

    @property
    def interfaces(self) -> list[Obj]:
        """Return the interfaces of the VM, in the order in which the guest sees them."""
        return list_at(self.spec, "domain", "devices", "interfaces")

    def holder(self, interface: Obj) -> str:
        """Return the holder of an interface's address, which is the same after a restart."""
        return f"VM {self.key} {interface['name']}"


def guest_of(vmi: Obj) -> Guest:
    """Return the guest that runs in an instance."""
    # An instance without a VM has its own disk.
    owners = vmi["metadata"].get("ownerReferences") or [{"uid": uid_of(vmi)}]
    hostname = vmi["spec"].get("hostname") or vmi["metadata"]["name"]
    return Guest(
        key=key_of(vmi), uid=uid_of(vmi), disk=owners[0]["uid"], hostname=hostname, spec=vmi["spec"]
    )
