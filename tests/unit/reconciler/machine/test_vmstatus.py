from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from reconciler.machine.vmstatus import VmPhase, addresses, typed_addresses, vm_state

pytestmark = pytest.mark.unit

LEAVING = {"caphv.io/evacuated-run-strategy": "RerunOnFailure"}


def vmi(*interfaces: Obj, phase: str = "Running", **status: Any) -> Obj:
    return {"metadata": {}, "status": {"phase": phase, "nodeName": "host-1", "interfaces": list(interfaces), **status}}


def vm(printable: str = "", **metadata: Any) -> Obj:
    return {"metadata": metadata, "status": {"printableStatus": printable} if printable else {}}


def runs(machine: Obj, strategy: str) -> Obj:
    return {**machine, "spec": {"runStrategy": strategy}}


def listed(obj: Obj) -> list[str]:
    found = addresses(obj)
    external, internal = (
        [entry["address"] for entry in found if entry["type"] == kind] for kind in ("ExternalIP", "InternalIP")
    )
    assert internal == external, "RKE2's registrationMethod internal-only-ips waits for internal addresses"
    assert found == typed_addresses(external)
    return external


class TestAddresses:
    def test_primary_of_the_first_nic_first(self) -> None:
        second = {"name": "nic-2", "ipAddress": "10.1.0.5"}
        first = {"name": "nic-1", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.4", "fd00::5", "10.0.0.5"]}
        assert listed(vmi(second, first)) == ["10.0.0.5", "10.0.0.4", "fd00::5", "10.1.0.5"]

    def test_tenth_nic_after_the_second(self) -> None:
        nics = [{"name": f"nic-{n}", "ipAddress": f"10.0.0.{n}"} for n in (10, 2, 1)]
        assert listed(vmi(*nics)) == ["10.0.0.1", "10.0.0.2", "10.0.0.10"]

    def test_unreachable_addresses_are_dropped(self) -> None:
        nic = {
            "name": "nic-1",
            "ipAddresses": ["fe80::1", "169.254.1.1", "0.0.0.0", "junk", "", "10.0.0.5/24"],
        }
        assert listed(vmi(nic)) == ["10.0.0.5"]

    @pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:10.0.0.5", "224.0.0.1", "255.255.255.255"])
    def test_addresses_of_no_single_host_are_dropped(self, address: str) -> None:
        assert addresses(vmi({"name": "nic-1", "ipAddress": address, "ipAddresses": [address]})) == []

    @given(st.text() | st.text().map("fd00::1%{}".format))
    def test_text_of_a_guest_cannot_act_as_a_command(self, text: str) -> None:
        """Root of a guest decides what its agent reports."""
        for entry in addresses(vmi({"name": "nic-1", "ipAddress": text, "ipAddresses": [text]})):
            assert set(entry["address"]) <= set("0123456789abcdef.:")

    def test_networks_inside_the_guest_are_dropped(self) -> None:
        cni = {"interfaceName": "cni0", "ipAddress": "10.42.0.1"}
        assert listed(vmi({"name": "nic-1", "ipAddress": "10.0.0.5"}, cni)) == ["10.0.0.5"]
        assert listed(vmi(cni)) == ["10.42.0.1"]

    def test_endpoint_that_kube_vip_holds_is_dropped(self) -> None:
        nic = {"name": "nic-1", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5", "10.0.0.4"]}
        assert addresses(vmi(nic), "10.0.0.4") == typed_addresses(["10.0.0.5"])
        assert addresses(vmi(nic), "api.example.com") == addresses(vmi(nic), "") == addresses(vmi(nic))
        assert addresses(vmi(nic)) == typed_addresses(["10.0.0.5", "10.0.0.4"])

    def test_endpoint_that_is_the_only_control_plane_machine_stays(self) -> None:
        nic = {"name": "nic-1", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5", "10.0.0.4"]}
        assert addresses(vmi(nic), "10.0.0.5") == typed_addresses(["10.0.0.5", "10.0.0.4"])

    @pytest.mark.parametrize("obj", [{}, {"status": {}}, vmi(), vmi({"name": "nic-1"})])
    def test_nothing_reported_yet(self, obj: Obj) -> None:
        assert addresses(obj) == []

    @given(
        st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["nic-1", "nic-2", "nic-3"])},
                optional={"ipAddresses": st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::1"]))},
            ),
            unique_by=lambda nic: nic["name"],
        ).flatmap(lambda nics: st.tuples(st.just(nics), st.permutations(nics)))
    )
    def test_order_does_not_depend_on_the_report(self, nics: tuple[list[Obj], list[Obj]]) -> None:
        one, other = nics
        shuffled = [{**nic, "ipAddresses": list(reversed(nic.get("ipAddresses", [])))} for nic in other]
        assert listed(vmi(*one)) == listed(vmi(*shuffled))
        assert len(set(listed(vmi(*one)))) == len(listed(vmi(*one)))


class TestState:
    @pytest.mark.parametrize(
        ("machine", "instance", "phase"),
        [
            (vm("Running", deletionTimestamp="t"), vmi(), VmPhase.DELETING),
            (vm("Terminating"), vmi(), VmPhase.DELETING),
            (vm(), None, VmPhase.STARTING),
            (vm("Starting"), vmi(phase="Scheduling"), VmPhase.STARTING),
            (vm("Starting"), vmi(), VmPhase.RUNNING),
            (vm("WaitingForVolumeBinding"), None, VmPhase.STARTING),
            (vm("Running"), vmi(), VmPhase.RUNNING),
            (vm("Migrating"), vmi(), VmPhase.RUNNING),
            (vm("Running"), None, VmPhase.STARTING),
            (vm("Running"), vmi(phase="Failed"), VmPhase.CRASHED),
            (vm("Stopped"), {**vmi(phase="Failed"), "metadata": {"deletionTimestamp": "t"}}, VmPhase.CRASHED),
            (vm("Running"), vmi(phase="Unknown"), VmPhase.UNKNOWN),
            (vm("Stopping"), vmi(), VmPhase.STOPPING),
            (vm("Stopped"), None, VmPhase.STOPPED),
            (runs(vm("Stopped"), "Halted"), None, VmPhase.STOPPED),
            (runs(vm("Stopped"), "Manual"), None, VmPhase.STOPPED),
            (runs(vm("Stopped"), "Always"), None, VmPhase.STARTING),
            (runs(vm("Stopped"), "Always"), vmi(phase="Succeeded"), VmPhase.RESTARTING),
            (runs(vm("Stopping"), "Always"), vmi(), VmPhase.RESTARTING),
            (runs(vm("Stopping"), "Halted"), vmi(), VmPhase.STOPPING),
            (runs(vm("Stopping"), "RerunOnFailure"), vmi(), VmPhase.RESTARTING),
            (runs(vm("Stopped"), "RerunOnFailure"), vmi(phase="Succeeded"), VmPhase.STOPPED),
            # It leaves a host that is evacuated, and starts again elsewhere.
            (runs(vm("Stopping", annotations=LEAVING), "Halted"), vmi(), VmPhase.RESTARTING),
            (runs(vm("Stopped", annotations=LEAVING), "Halted"), None, VmPhase.STARTING),
            (vm("Paused"), vmi(), VmPhase.PAUSED),
            (vm("Running"), vmi(conditions=[{"type": "Paused", "status": "True"}]), VmPhase.PAUSED),
            (vm("Running"), vmi(conditions=[{"type": "Paused", "status": "False"}]), VmPhase.RUNNING),
            (vm("ErrorUnschedulable"), vmi(phase="Scheduling"), VmPhase.UNSCHEDULABLE),
            (vm("ErrorPvcNotFound"), None, VmPhase.FAILED),
            (vm("CrashLoopBackOff"), None, VmPhase.CRASHED),
            (vm("SomethingNew"), None, VmPhase.UNKNOWN),
        ],
    )
    def test_phase(self, machine: Obj, instance: Obj | None, phase: VmPhase) -> None:
        state = vm_state(machine, instance)
        assert state.phase is phase
        assert state.message

    def test_host(self) -> None:
        assert vm_state(vm("Running"), vmi()).host == "host-1"
        assert vm_state(vm("Stopped"), None).host == ""

    def test_message_says_why_and_what_to_do(self) -> None:
        conditions = [
            {"type": "Ready", "status": "False", "message": "guest is not running"},
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: insufficient memory"},
        ]
        message = vm_state(vm("ErrorUnschedulable"), vmi(phase="Scheduling", conditions=conditions)).message
        assert "ErrorUnschedulable" in message
        assert "free CPU or memory" in message
        assert message.endswith("0/3 nodes: insufficient memory")

    def test_message_names_the_hosts_that_take_no_vms(self) -> None:
        """As after a power failure, of which the scheduler says only `untolerated taint(s)`."""
        waiting = vm("ErrorUnschedulable"), vmi(phase="Scheduling"), {}
        down, up, cordoned = host("a", ready="Unknown"), host("b"), host("c", cordoned=True)
        message = vm_state(*waiting, [up, down, cordoned]).message
        assert "can run the VM: a is not ready, c is cordoned: start them, free CPU or memory on others" in message
        message = vm_state(*waiting, [down, cordoned]).message
        assert "a is not ready, c is cordoned: start them, uncordon them, or end their maintenance" in message
        assert "free CPU" not in message
        assert vm_state(*waiting, [up]).message == vm_state(*waiting).message

    @pytest.mark.parametrize("phase", ["Failed", "Unknown"])
    def test_message_names_the_host_of_an_instance_that_failed(self, phase: str) -> None:
        instance = vmi(phase=phase)
        assert "host-1, which is not ready" in vm_state(vm("Running"), instance, {}, [host("host-1", "False")]).message
        message = vm_state(vm("Running"), instance, {}, [host("host-1"), host("other", "False")]).message
        assert "host-1" in message
        assert "not ready" not in message

    def test_unknown_word_of_kubevirt_is_shown(self) -> None:
        assert "SomethingNew" in vm_state(vm("SomethingNew"), None).message


def host(name: str, ready: str = "True", *, cordoned: bool = False) -> Obj:
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name}, "spec": {"unschedulable": cordoned}, "status": {"conditions": conditions}}


QUOTA = "harvesterhci.io/insufficient-resource-quota"


def test_a_vm_that_a_quota_stopped_says_so() -> None:
    vm = {
        "metadata": {"annotations": {QUOTA: "limits.cpu\x1b[2J of 10"}},
        "status": {"printableStatus": "Stopped"},
    }
    state = vm_state(vm, None)
    assert state.over_quota
    assert "the quota of its namespace is used up: raise it" in state.message
    assert "limits.cpu" in state.message
    assert "\x1b" not in state.message


@pytest.mark.parametrize(("status", "annotations"), [("Stopped", {}), ("Starting", {QUOTA: "limits.cpu of 10"})])
def test_no_other_vm_is_over_a_quota(status: str, annotations: dict[str, str]) -> None:
    """Harvester leaves its message on a VM that a user starts."""
    vm = {"metadata": {"annotations": annotations}, "status": {"printableStatus": status}}
    assert not vm_state(vm, None).over_quota
