"""Whether a running VM can grow, and what it lacks."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.object import Obj
from reconciler.machine.drift import drift
from reconciler.machine.growth import growth_obstacle, growth_patch, is_growing, updated_message
from reconciler.machine.placement import affinity_patch
from reconciler.machine.vm import virtual_machine
from sandbox.harvester import hotplug, instances
from sandbox.harvester.mutations import MutationSettings, mutate
from tests.support.reconciler.machines import inputs

pytestmark = pytest.mark.unit


def host(name: str, labels: dict[str, str] | None = None) -> Obj:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {}}


HOSTS: list[Obj] = [host("a"), host("b")]
MAINTAINED: Obj = {"metadata": {"name": "b", "annotations": {names.MAINTENANCE_ANNOTATION: "running"}}, "spec": {}}


def required_terms(vm: Obj) -> list[Obj]:
    """Return the alternatives of the required node affinity of a VM."""
    rules = vm["spec"]["template"]["spec"]["affinity"].setdefault("nodeAffinity", {})
    terms: list[Obj] = rules.setdefault(REQUIRED, {}).setdefault("nodeSelectorTerms", [])
    return terms


def require(vm: Obj, operator: str, key: str, *values: str) -> None:
    """Require hosts with a label."""
    required_terms(vm).append({"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]})


def vm_of(**spec: Any) -> Obj:
    """Return the VM of a machine with maxima, as Harvester stores it."""
    sizes = {"cpu": 4, "cpuMax": 16, "memory": "8Gi", "memoryMax": "32Gi", **spec}
    return mutate(virtual_machine(replace(inputs(**sizes), hotplug=True)), None, MutationSettings())


def instance_of(vm: Obj, *conditions: Obj) -> Obj:
    vm = copy.deepcopy(vm)
    vm["metadata"]["uid"] = "u"
    vmi = instances.instance_of(vm, "a")
    return {**vmi, "status": {**hotplug.current_sizes(vmi), "nodeName": "a", "conditions": list(conditions)}}


def condition(kind: str, status: str) -> Obj:
    return {"type": kind, "status": status, "message": "because"}


def test_vm_with_maxima_that_can_migrate_can_grow() -> None:
    vm = vm_of()
    assert growth_obstacle(vm, instance_of(vm, condition("LiveMigratable", "True")), HOSTS) == ""


@pytest.mark.parametrize(
    ("change", "hosts", "obstacle"),
    [
        (lambda vm, _vmi: vm["metadata"]["annotations"].clear(), HOSTS, "replace the machine"),
        (
            lambda vm, _vmi: vm.update(status={"conditions": [condition("RestartRequired", "True")]}),
            HOSTS,
            "needs a restart first (because): restart the VM",
        ),
        (
            lambda _vm, vmi: vmi["status"]["conditions"].append(condition("LiveMigratable", "False")),
            HOSTS,
            "cannot migrate, which is how it gets its new size (because): correct that",
        ),
        (lambda _vm, _vmi: None, HOSTS[:1], "no other host"),
        (lambda _vm, _vmi: None, [HOSTS[0], MAINTAINED], "no other host"),
        (lambda vm, _vmi: require(vm, "In", "rack", "1"), [HOSTS[0], host("b", {"rack": "2"})], "relax the affinity"),
        (lambda vm, _vmi: require(vm, "In", "rack", "1"), HOSTS, "relax the affinity"),
        (lambda _vm, _vmi: None, [HOSTS[0], {**HOSTS[1], "spec": {"unschedulable": True}}], "no other host"),
        (
            lambda _vm, _vmi: None,
            [HOSTS[0], host("b", {"node-role.harvesterhci.io/witness": "true"})],
            "no other host",
        ),
    ],
)
def test_obstacle_is_named(change: Any, hosts: list[Obj], obstacle: str) -> None:
    vm = vm_of()
    vmi = instance_of(vm)
    change(vm, vmi)
    assert obstacle in growth_obstacle(vm, vmi, hosts)


def test_vm_that_does_not_run_cannot_grow() -> None:
    assert growth_obstacle(vm_of(), None, HOSTS) == "it does not run: start it on Harvester"


@pytest.mark.parametrize(
    ("operator", "values", "labels", "grows"),
    [
        ("In", ["1", "2"], {"rack": "2"}, True),
        ("NotIn", ["1"], {"rack": "1"}, False),
        ("NotIn", ["1"], {}, True),
        ("Exists", [], {"rack": ""}, True),
        ("Exists", [], {}, False),
        ("DoesNotExist", [], {}, True),
        ("DoesNotExist", [], {"rack": "1"}, False),
        ("Gt", ["3"], {"rack": "4"}, True),
        ("Gt", ["3"], {"rack": "3"}, False),
        ("Gt", ["3"], {"rack": "x"}, False),
        ("Gt", [], {"rack": "4"}, False),
        ("Lt", ["3"], {"rack": "2"}, True),
        ("Lt", ["3"], {}, False),
        ("Other", ["3"], {"rack": "3"}, False),
    ],
)
def test_vm_grows_only_if_its_affinity_allows_another_host(
    operator: str, values: list[str], labels: dict[str, str], grows: bool
) -> None:
    vm = vm_of()
    require(vm, operator, "rack", *values)
    assert (growth_obstacle(vm, instance_of(vm), [HOSTS[0], host("b", labels)]) == "") is grows


@pytest.mark.parametrize(("field", "grows"), [("metadata.name", True), ("metadata.other", False)])
def test_fields_of_a_host_count_like_labels(field: str, grows: bool) -> None:
    vm = vm_of()
    require(vm, "DoesNotExist", "rack")
    required_terms(vm)[-1]["matchFields"] = [{"key": field, "operator": "In", "values": ["b"]}]
    assert (growth_obstacle(vm, instance_of(vm), HOSTS) == "") is grows


def test_rules_of_unusual_size_are_not_compared_with_hosts() -> None:
    vm = vm_of()
    require(vm, "In", "rack", *("x" * 60 for _ in range(300)))
    assert growth_obstacle(vm, instance_of(vm), HOSTS) == ""


def test_vm_on_a_cordoned_host_grows_on_the_only_other_host() -> None:
    vm = vm_of()
    assert growth_obstacle(vm, instance_of(vm), [{**HOSTS[0], "spec": {"unschedulable": True}}, HOSTS[1]]) == ""


def test_memory_that_harvester_took_from_a_vm_that_cannot_grow_is_no_growth() -> None:
    """Its memory never becomes that of the spec, and a change of affinity alone must end."""
    vm = vm_of()
    expected = vm_of()
    del vm["metadata"]["annotations"][names.HOTPLUG_ANNOTATION]
    vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = "8092Mi"
    assert growth_patch(vm, expected) == {}


sizes = st.tuples(st.integers(1, 16), st.integers(1, 32))


@given(sizes, sizes)
def test_patch_makes_the_vm_what_a_larger_spec_wants_and_never_smaller(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    vm = vm_of(cpu=before[0], memory=f"{before[1]}Gi")
    bigger = {"cpu": after[0], "memory": f"{after[1]}Gi", "cpuMax": 16, "memoryMax": "32Gi"}
    expected = virtual_machine(replace(inputs(**bigger), hotplug=True))
    patch = growth_patch(vm, expected)

    domain = vm["spec"]["template"]["spec"]["domain"]
    for section, values in (patch or {"spec": {"template": {"spec": {"domain": {}}}}})["spec"]["template"]["spec"][
        "domain"
    ].items():
        domain[section] |= values
    assert domain["cpu"]["sockets"] == max(before[0], after[0])
    assert domain["memory"]["guest"] == f"{max(before[1], after[1])}Gi"
    assert bool(patch) == (after[0] > before[0] or after[1] > before[1])
    if after[0] >= before[0] and after[1] >= before[1]:
        assert drift(expected, vm) == ()


@pytest.mark.parametrize(
    ("section", "values"),
    [("cpu", {"sockets": 8}), ("memory", {"guest": "16Gi"})],
)
def test_vm_grows_until_its_instance_has_the_size(section: str, values: Obj) -> None:
    vm = vm_of()
    vmi = instance_of(vm)
    assert not is_growing(vm, vmi)
    vm["spec"]["template"]["spec"]["domain"][section] |= values
    assert is_growing(vm, vmi)
    assert not is_growing(vm, instance_of(vm))


def test_instance_that_reports_no_size_has_not_grown() -> None:
    vm = vm_of()
    assert is_growing(vm, {"status": {}})
    assert is_growing(vm, None)


def expression(key: str) -> Obj:
    return {"matchExpressions": [{"key": key, "operator": "Exists"}]}


REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
node_rules = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.sampled_from([{"nodeSelectorTerms": [expression("a")]}, {"nodeSelectorTerms": [expression("b")]}]),
        PREFERRED: st.sampled_from([[{"weight": 1, "preference": expression("a")}]]),
    },
)


@given(node_rules, node_rules, st.booleans())
def test_affinity_patch_leads_to_the_expected_rules_and_then_ends(before: Obj, after: Obj, domain: bool) -> None:
    changes = {"failure_domain": "host-1"} if domain else {}
    actual = mutate(virtual_machine(replace(inputs(nodeAffinity=before), **changes)), None, MutationSettings())
    expected = virtual_machine(replace(inputs(nodeAffinity=after), **changes))
    affinity, wanted = (vm["spec"]["template"]["spec"]["affinity"] for vm in (actual, expected))
    patch = affinity_patch(affinity, wanted)
    for kind, rules in patch.items():
        merged = {**affinity.get(kind, {}), **rules}
        affinity[kind] = {name: value for name, value in merged.items() if value is not None}

    stored = mutate(actual, actual, MutationSettings())
    assert affinity_patch(stored["spec"]["template"]["spec"]["affinity"], wanted) == {}
    assert bool(patch) == (before != after)
    assert "podAntiAffinity" not in patch


def test_message_tells_specs_apart_that_differ_in_what_a_running_vm_follows() -> None:
    spec: Obj = {"cpu": 4, "memory": "8Gi", "nodeAffinity": {"a": 1}}
    others = [
        {"cpu": 5},
        {"memory": "9Gi"},
        {"nodeAffinity": {"a": 2}},
        {"nodeAffinity": None},
        {"workloadAffinity": {}},
        {"volumes": [{"volumeSize": "40Gi"}]},
    ]
    messages = [updated_message({**spec, **other}) for other in others]
    assert [message != updated_message(spec) for message in messages] == [True, True, True, True, False, True]
    assert updated_message({"memory": "8Gi", "cpu": 4, "nodeAffinity": {"a": 1}}) == updated_message(spec)
