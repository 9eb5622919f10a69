"""Where a VM differs from its machine, and what Harvester does to a VM that is no difference."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.names import EVACUATED_STRATEGY_ANNOTATION
from caphv.api.object import Obj
from reconciler.machine.drift import drift
from reconciler.machine.placement import avoid, domain_requirement
from reconciler.machine.vm import VirtualMachineInputs, can_grow, virtual_machine
from sandbox.harvester.hotplug import denial_reason
from sandbox.harvester.mutations import MutationSettings, mutate
from sandbox.harvester.releases import RELEASES, release_named
from tests.support.reconciler.machines import inputs
from webhooks.admission import Review, validate

pytestmark = pytest.mark.unit

STRATEGY = "harvesterhci.io/vmRunStrategy"
CLAIMS = "harvesterhci.io/volumeClaimTemplates"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONES = {
    REQUIRED: {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")
        ]
    }
}


def on_harvester(vm: Obj, cpu: int = 1600, memory: int = 150) -> Obj:
    return mutate(vm, None, MutationSettings(cpu, memory))


def spec_of(vm: Obj) -> Obj:
    found: Obj = vm["spec"]["template"]["spec"]
    return found


machines = st.builds(
    inputs,
    cpu=st.integers(1, 64),
    memory=st.sampled_from(["1Gi", "4096Mi", "8Gi", "17179869184", "1.5Gi", "8G"]),
    networks=st.lists(st.sampled_from(["default/a", "b", "default/c"]), min_size=1, max_size=3, unique=True),
    firmware=st.sampled_from([None, {"efi": True}, {"efi": True, "secureBoot": True}, {"efi": False}]),
    tpm=st.sampled_from([None, {"enabled": True}, {"enabled": True, "persistent": True}]),
    nodeAffinity=st.sampled_from([None, ZONES]),
)


@given(machines, st.integers(100, 3200), st.integers(100, 400), st.booleans(), st.sampled_from(["", "zone-1"]))
def test_mutations_of_harvester_are_no_drift(
    machine: VirtualMachineInputs, cpu: int, memory: int, control_plane: bool, domain: str
) -> None:
    wanted = virtual_machine(replace(machine, control_plane=control_plane, failure_domain=domain))
    made = on_harvester(wanted, cpu, memory)
    assert drift(wanted, made) == ()
    assert drift(wanted, mutate(made, made, MutationSettings(cpu, memory))) == ()


def test_class_that_the_image_no_longer_has_is_no_drift() -> None:
    """Harvester may have deleted the image, or made it again, since it made the disk."""
    machine = inputs()
    made = on_harvester(virtual_machine(machine))
    without_class = {name: replace(image, storage_class="") for name, image in machine.images.items()}
    assert drift(virtual_machine(replace(machine, images=without_class)), made) == ()
    moved = {name: replace(image, storage_class="other") for name, image in machine.images.items()}
    (difference,) = drift(virtual_machine(replace(machine, images=moved)), made)
    assert "storageClass: other" in difference


@given(machines, machines)
def test_no_drift_means_the_same_machine(one: VirtualMachineInputs, other: VirtualMachineInputs) -> None:
    """Of two specs, the VM of one is up to date for the other only where the specs mean the same."""
    wanted, made = virtual_machine(one), virtual_machine(other)
    if not drift(wanted, on_harvester(made)):
        domain, same = spec_of(wanted)["domain"], spec_of(made)["domain"]
        assert domain["cpu"] == same["cpu"]
        assert domain.get("firmware") == same.get("firmware")
        assert domain["devices"].get("tpm") == same["devices"].get("tpm")
        assert spec_of(wanted)["networks"] == spec_of(made)["networks"]


def machine_of_go() -> tuple[Obj, Obj]:
    """What is wanted, and a VM of the Go provider: other names of disks, affinity with itself, no label of ours."""
    wanted = virtual_machine(inputs())
    made = on_harvester(wanted)
    claims = json.loads(made["metadata"]["annotations"][CLAIMS])
    for number, claim in enumerate(claims):
        claim["metadata"] = {**claim["metadata"], "name": f"node-1-disk-{number}-x7k2p"}
        spec_of(made)["volumes"][number]["persistentVolumeClaim"]["claimName"] = f"node-1-disk-{number}-x7k2p"
    made["metadata"]["annotations"] = {CLAIMS: json.dumps(claims)}
    made["spec"]["template"]["metadata"]["labels"].pop("caphv.io/cluster")
    spec_of(made)["affinity"]["podAntiAffinity"] = {}
    return wanted, made


def test_vm_of_the_go_provider_is_up_to_date() -> None:
    assert drift(*machine_of_go()) == ()


@pytest.mark.parametrize("release", ["1.7", "1.8", "1.9"])
@pytest.mark.parametrize("maxima", [{"cpuMax": 16}, {"memoryMax": "32Gi"}, {"cpuMax": 8, "memoryMax": "8Gi"}])
def test_vm_that_can_grow_is_up_to_date(release: str, maxima: Obj) -> None:
    settings = MutationSettings(release=release_named(release))
    growing = replace(inputs(**maxima), hotplug=True)
    wanted = virtual_machine(growing)
    made = mutate(wanted, None, settings)
    assert drift(wanted, made) == ()
    assert denial_reason(spec_of(made)["domain"]) == ""

    bigger = virtual_machine(
        replace(growing, machine={**growing.machine, "spec": {**growing.machine["spec"], "cpu": 5}})
    )
    assert "cores is 4, not 5" in drift(bigger, made)
    spec_of(made)["domain"]["memory"]["guest"] = "16Gi"
    assert drift(wanted, made) == ("guest memory is 16Gi, not 8Gi",)


def test_machine_with_maxima_takes_over_a_vm_of_the_go_provider_as_it_is() -> None:
    """Only a restart could make the VM able to grow, so its topology is no difference."""
    _, made = machine_of_go()
    kept = replace(inputs(cpuMax=16, memoryMax="32Gi"), hotplug=can_grow(made))
    assert spec_of(made)["domain"]["cpu"]["cores"] == 4
    assert drift(virtual_machine(kept), made) == ()


@pytest.mark.parametrize("made", [on_harvester(virtual_machine(inputs())), machine_of_go()[1]], ids=["own", "Go"])
def test_vm_without_maxima_may_have_the_annotation_of_vms_that_grow(made: Obj) -> None:
    annotated = copy.deepcopy(made)
    annotated["metadata"]["annotations"][names.HOTPLUG_ANNOTATION] = "true"
    assert drift(virtual_machine(inputs()), annotated) == ()


def test_quantities_are_compared_as_numbers() -> None:
    wanted = virtual_machine(inputs(memory="4096Mi"))
    made = on_harvester(wanted)
    spec_of(made)["domain"]["resources"]["limits"] = {"cpu": "4000m", "memory": "4Gi"}
    assert drift(wanted, made) == ()


def test_bare_network_is_that_of_the_namespace() -> None:
    wanted = virtual_machine(inputs())
    made = on_harvester(wanted)
    spec_of(made)["networks"][1]["multus"]["networkName"] = "storage"
    assert drift(wanted, made) == ()
    spec_of(made)["networks"][0]["multus"]["networkName"] = "production"
    (difference,) = drift(wanted, made)
    assert difference.startswith("networks is [target/production, target/storage], not [default/production")


def test_volume_of_a_csi_driver_is_no_drift() -> None:
    wanted = virtual_machine(inputs())
    made = on_harvester(wanted)
    spec_of(made)["volumes"].append(
        {"name": "pvc-1", "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": True}}
    )
    spec_of(made)["domain"]["devices"]["disks"].append({"name": "pvc-1", "disk": {"bus": "scsi"}})
    assert drift(wanted, made) == ()


@pytest.mark.parametrize(
    ("strategy", "annotations", "drifts"),
    [
        ({"runStrategy": "Always"}, {}, False),
        ({"runStrategy": "RerunOnFailure"}, {}, False),
        ({"running": True}, {}, False),
        # Harvester writes the strategy of every VM that is not halted into its annotation.
        ({"runStrategy": "Manual"}, {STRATEGY: "Manual"}, True),
        ({"runStrategy": "Once"}, {STRATEGY: "Once"}, True),
        ({"runStrategy": "Halted"}, {}, True),
        ({"runStrategy": "Halted"}, {STRATEGY: "Halted"}, True),
        ({"running": False}, {}, True),
        # It leaves a host that is evacuated, and starts again with the strategy that it had.
        ({"runStrategy": "Halted"}, {EVACUATED_STRATEGY_ANNOTATION: "RerunOnFailure"}, False),
        ({"runStrategy": "Halted"}, {EVACUATED_STRATEGY_ANNOTATION: "Manual"}, True),
    ],
)
def test_run_strategy(strategy: Obj, annotations: dict[str, str], drifts: bool) -> None:
    wanted = virtual_machine(inputs())
    made = on_harvester(wanted)
    del made["spec"]["runStrategy"]
    made["spec"] |= strategy
    made["metadata"]["annotations"] |= annotations
    assert bool(drift(wanted, made)) is drifts


@pytest.mark.parametrize("domain", ["", "host-1"])
@pytest.mark.parametrize("affinity", [None, ZONES])
def test_hosts_that_an_evacuation_keeps_a_vm_from_are_no_drift(domain: str, affinity: Obj | None) -> None:
    wanted = virtual_machine(replace(inputs(nodeAffinity=affinity), failure_domain=domain))
    made = on_harvester(wanted)
    rules = spec_of(made)["affinity"].setdefault("nodeAffinity", {})
    spec_of(made)["affinity"]["nodeAffinity"] = avoid(rules, [], ["host-1"])
    assert "NotIn" in str(spec_of(made))
    requirement = domain_requirement(domain, ())
    assert drift(wanted, mutate(made, made, MutationSettings()), requirement) == ()


@pytest.mark.parametrize("release", list(RELEASES))
def test_vm_without_maxima_is_admitted_everywhere_and_with_sockets_is_not(release: str) -> None:
    """The reason for cores: docs/adr/0013-sockets.md."""
    settings = MutationSettings(release=release_named(release))
    made = mutate(virtual_machine(inputs()), None, settings)
    assert denial_reason(spec_of(made)["domain"]) == ""
    assert not can_grow(made)

    by_sockets = copy.deepcopy(virtual_machine(inputs()))
    spec_of(by_sockets)["domain"]["cpu"] = {"cores": 1, "sockets": 4, "threads": 1}
    admitted = mutate(by_sockets, None, settings)
    assert bool(denial_reason(spec_of(admitted)["domain"])) is (release not in ("1.5", "1.9"))


def test_as_many_cpus_in_sockets_are_no_drift() -> None:
    """VMs of the Go provider, of a user and of a machine with a maximum keep their topology."""
    wanted = virtual_machine(inputs())
    made = on_harvester(wanted)
    for topology in ({"cores": 1, "sockets": 4, "threads": 1}, {"cores": 2, "sockets": 2}, {"cores": 4}):
        spec_of(made)["domain"]["cpu"] = topology
        assert drift(wanted, made) == ()


def resize(vm: Obj) -> None:
    claims = json.loads(vm["metadata"]["annotations"][CLAIMS])
    claims[0]["spec"]["resources"]["requests"]["storage"] = "60Gi"
    vm["metadata"]["annotations"][CLAIMS] = json.dumps(claims)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vm: spec_of(vm)["domain"]["cpu"].update(sockets=2), "cores is 8, not 4"),
        (lambda vm: spec_of(vm)["domain"]["resources"]["limits"].update(cpu="2"), "CPU limit is 2, not 4"),
        (
            lambda vm: spec_of(vm)["domain"]["resources"]["limits"].update(memory="16Gi"),
            "memory limit is 16Gi, not 8Gi",
        ),
        (
            lambda vm: spec_of(vm)["networks"].pop(),
            "networks is [default/production], not [default/production, target/storage]",
        ),
        (lambda vm: spec_of(vm)["domain"]["devices"]["interfaces"][0].update(model="e1000"), "interfaces is [e1000"),
        (lambda vm: spec_of(vm)["domain"]["devices"]["disks"][0].update(bootOrder=3), "disks is [{bus: virtio, bootO"),
        (resize, "size: 60Gi"),
        (lambda vm: spec_of(vm)["volumes"].pop(0), "disks is"),
        (
            lambda vm: spec_of(vm)["domain"].update(firmware={"bootloader": {"efi": {}}}),
            "firmware is EFI with secure boot, not BIOS",
        ),
        (lambda vm: spec_of(vm)["domain"]["devices"].update(tpm={}), "TPM is on, not off"),
        (lambda vm: spec_of(vm).update(hostname="other"), "hostname is other, not node-1"),
        (lambda vm: spec_of(vm)["affinity"].pop("nodeAffinity"), "nodeAffinity lacks rules of the machine"),
        (
            lambda vm: vm["spec"]["template"]["metadata"]["labels"].pop("harvestercluster/machinetype"),
            "label harvestercluster/machinetype is unset, not controlplane-prod",
        ),
    ],
)
def test_edit_is_named_with_both_values(change: Callable[[Obj], Any], message: str) -> None:
    wanted = virtual_machine(replace(inputs(nodeAffinity=ZONES), control_plane=True))
    made = on_harvester(wanted)
    before = copy.deepcopy(made)
    change(made)
    assert made != before
    (difference,) = drift(wanted, made)
    assert message in difference


@pytest.mark.parametrize(
    "annotation",
    [
        *("{", "{}", '"x"', "1", "null", "[{}]", "[null]", "[1]", '{"a": 1}', '[{"metadata": {"name": ["x"]}}]'),
        *(f'[{{"metadata": {{"name": "CLAIM"}}, "spec": {spec}}}]' for spec in ("1", '"x"', '{"resources": [1]}')),
        '[{"metadata": {"name": "CLAIM", "annotations": [1]}, "spec": {"storageClassName": {"a": [1]}}}]',
    ],
)
def test_annotation_of_another_form_is_an_edit_of_the_disks(annotation: str) -> None:
    wanted = virtual_machine(inputs())
    made = on_harvester(wanted)
    name = spec_of(made)["volumes"][0]["persistentVolumeClaim"]["claimName"]
    made["metadata"]["annotations"][CLAIMS] = annotation.replace("CLAIM", name)
    (difference,) = drift(wanted, made)
    assert difference.startswith("disks is")


def test_changed_machine_is_drift_of_its_vm() -> None:
    made = on_harvester(virtual_machine(inputs()))
    differences = drift(virtual_machine(inputs(cpu=8, memory="16Gi")), made)
    assert differences == ("cores is 4, not 8", "CPU limit is 4, not 8", "memory limit is 8Gi, not 16Gi")


@pytest.mark.parametrize("strict", [True, False])
def test_failure_domain_may_be_a_requirement_or_a_preference(strict: bool) -> None:
    new = replace(inputs(nodeAffinity=ZONES), failure_domain="host-7", domain_strict=not strict)
    old = on_harvester(virtual_machine(replace(new, domain_strict=strict)))
    assert drift(virtual_machine(new), old, new.requirement) == ()
    without = on_harvester(virtual_machine(replace(new, failure_domain="")))
    found = drift(virtual_machine(new), without, new.requirement)
    assert found == ("nodeAffinity lacks the failure domain of the machine",)


TOGETHER = {"podAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}]}}
EDITS: dict[str, Any] = {
    "cpu": 8,
    "memory": "16Gi",
    "volumes": [{"volumeType": "image", "imageName": "default/sles", "volumeSize": "80Gi", "bootOrder": 1}],
    "networks": ["default/production"],
    "firmware": {"efi": True},
    "tpm": {"enabled": True},
    "failureDomain": "zone-1",
    "nodeAffinity": ZONES,
    "workloadAffinity": TOGETHER,
}


def edited(**spec: Any) -> VirtualMachineInputs:
    return replace(inputs(**spec), failure_domain=str(spec.get("failureDomain") or ""))


def immutable(differences: str, edited_spec: Obj, spec: Obj) -> list[tuple[tuple[Any, ...], bool]]:
    """Fields that rule `machine-immutable` finds, and whether that is a warning only."""
    conditions = [{"type": "VMUpToDate", "status": "False" if differences else "True", "message": differences}]
    metadata = {"namespace": "ns", "name": "node-1", "uid": "uid-1"}
    old = {"metadata": metadata, "spec": edited_spec, "status": {"ready": True, "conditions": conditions}}
    verdict = validate(Review("UPDATE", "HarvesterMachine", "v1beta1", {**old, "spec": spec}, old))
    found = (*verdict.errors, *verdict.warnings)
    return [(each.path, each in verdict.warnings) for each in found if each.rule == "machine-immutable"]


@pytest.mark.parametrize("field", EDITS)
def test_admission_lets_a_user_take_back_each_edit_that_a_difference_names(field: str) -> None:
    before, now = edited(), edited(**{field: EDITS[field]})
    differences = drift(virtual_machine(now), on_harvester(virtual_machine(before)), now.requirement)
    specs = now.machine["spec"], before.machine["spec"]
    assert differences
    for difference in differences:
        assert immutable(difference, *specs) == [(("spec", field), True)]
    assert immutable("", *specs) == [(("spec", field), False)]


@pytest.mark.parametrize("absent", ["cpu", "resources", "devices", "limits", "domain"])
def test_vm_from_which_a_part_was_taken_has_drifted(absent: str) -> None:
    """An administrator may have written it by hand; Harvester fills in only a part of it."""
    wanted = virtual_machine(inputs(cpu=2))
    edited = on_harvester(wanted)
    spec = spec_of(edited)
    place = {"limits": spec["domain"]["resources"], "domain": spec}.get(absent, spec["domain"])
    del place[absent]
    assert drift(wanted, edited) != ()
