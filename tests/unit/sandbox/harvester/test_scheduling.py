"""On which host the simulated Harvester starts a VM."""

from __future__ import annotations

from collections import Counter

import pytest

from caphv.api.object import Obj
from sandbox.harvester.quantities import demand, parse_quantity
from sandbox.harvester.scheduling import Placement, choose_host, explain_no_host, selects, unpermitted_devices

pytestmark = pytest.mark.unit

ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
GIB = 1024**3


def host(name: str, zone: str = "a", *, cpu: int = 8, memory: str = "32Gi", ready: str = "True", **spec: bool) -> Obj:
    status = {"allocatable": {"cpu": str(cpu), "memory": memory}, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "labels": {ZONE: zone, HOSTNAME: name}}, "spec": spec, "status": status}


def vm(*, memory: str = "4Gi", cpu: str = "2", labels: Obj | None = None, **spec: object) -> Obj:
    domain = {"resources": {"requests": {"cpu": cpu, "memory": memory}}}
    template = {"metadata": {"labels": labels or {}}, "spec": {"domain": domain, **spec}}
    return {"metadata": {"name": "new", "namespace": "ns"}, "spec": {"template": template}}


def node_affinity(*terms: Obj) -> Obj:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> Obj:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def anti_affinity(key: str, *, required: bool) -> Obj:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"role": "cp"}}}
    if required:
        return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighted = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def placed(name: str, *, memory: float = 1, namespace: str = "ns", **labels: str) -> Placement:
    return Placement(name, namespace, labels, 1, memory * GIB)


def test_the_emptiest_host_is_taken() -> None:
    assert choose_host(vm(), [host("one"), host("two")], [placed("one")]) == "two"


@pytest.mark.parametrize("broken", [{"ready": "Unknown"}, {"unschedulable": True}])
def test_host_that_is_not_ready_or_closed_is_left_out(broken: Obj) -> None:
    assert choose_host(vm(), [host("one", **broken)], []) == ""


@pytest.mark.parametrize(("memory", "cpu", "fits"), [("31Gi", "7", True), ("32Gi", "1", False), ("1Gi", "8", False)])
def test_what_runs_already_takes_room(memory: str, cpu: str, fits: bool) -> None:
    assert bool(choose_host(vm(memory=memory, cpu=cpu), [host("one")], [placed("one")])) == fits


@pytest.mark.parametrize(
    ("term", "chosen"),
    [
        (expression(ZONE, "In", "b", "c"), "two"),
        (expression(ZONE, "NotIn", "a"), "two"),
        (expression("disk", "NotIn", "slow"), "one"),
        (expression("disk", "Exists"), ""),
        (expression("disk", "DoesNotExist"), "one"),
        ({}, ""),
    ],
)
def test_required_node_affinity(term: Obj, chosen: str) -> None:
    hosts = [host("one", "a"), host("two", "b")]
    assert choose_host(vm(affinity=node_affinity(term)), hosts, []) == chosen


def test_terms_are_alternatives_and_their_expressions_all_count() -> None:
    hosts = [host("one", "a"), host("two", "b")]
    both = {
        "matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}, {"key": "disk", "operator": "Exists"}]
    }
    assert choose_host(vm(affinity=node_affinity(both)), hosts, []) == ""
    assert choose_host(vm(affinity=node_affinity(both, expression(ZONE, "In", "b"))), hosts, []) == "two"


def test_node_selector() -> None:
    assert choose_host(vm(nodeSelector={HOSTNAME: "two"}), [host("one"), host("two")], []) == "two"
    assert choose_host(vm(nodeSelector={HOSTNAME: "three"}), [host("one"), host("two")], []) == ""


def test_required_anti_affinity_leaves_the_zone_of_a_match() -> None:
    hosts = [host("one", "a"), host("two", "a"), host("three", "b")]
    others = [placed("one", role="cp"), placed("three", memory=9)]
    assert choose_host(vm(affinity=anti_affinity(ZONE, required=True)), hosts, others) == "three"
    assert choose_host(vm(affinity=anti_affinity(ZONE, required=True)), hosts[:2], others) == ""
    elsewhere = [placed("one", namespace="other", role="cp")]
    assert choose_host(vm(affinity=anti_affinity(ZONE, required=True)), hosts[:1], elsewhere) == "one"


def test_preferred_anti_affinity_spreads_and_never_refuses() -> None:
    hosts = [host("one", "a"), host("two", "b")]
    wish = anti_affinity(HOSTNAME, required=False)
    assert choose_host(vm(affinity=wish), hosts, [placed("one", role="cp"), placed("two", memory=20)]) == "two"
    assert choose_host(vm(affinity=wish), hosts[:1], [placed("one", role="cp")]) == "one"


def test_selector() -> None:
    assert selects({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"})
    assert not selects({"matchLabels": {"a": "1"}}, {"a": "2"})
    assert selects({}, {"a": "1"})
    assert not selects(None, {"a": "1"})


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 0.5), ("2", 2), (4, 4), ("4Gi", 4 * GIB), ("1k", 1000), (None, 0), ("1e3", 1000)]
)
def test_quantities(text: str | int | None, value: float) -> None:
    assert parse_quantity(text) == value


def test_text_that_is_not_a_quantity() -> None:
    with pytest.raises(ValueError, match="'4 GB' is not a quantity"):
        parse_quantity("4 GB")


def test_demand_is_requests_then_limits_then_guest() -> None:
    assert demand({"domain": {"resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "250m"}}}})[0] == 0.25
    assert demand({"domain": {"resources": {"limits": {"memory": "2Gi"}}}}) == (1, 2 * GIB)
    assert demand({"domain": {"cpu": {"cores": 3}, "memory": {"guest": "1Gi"}}}) == (3, GIB)


@pytest.mark.parametrize(
    ("free", "used", "requested", "chosen"),
    [(1, 0, 1, "b"), (1, 1, 1, ""), (2, 1, 1, "b"), (1, 0, 2, ""), (0, 0, 0, "a")],
)
def test_a_vm_runs_where_its_devices_are_free(free: int, used: int, requested: int, chosen: str) -> None:
    other = host("b")
    other["status"]["allocatable"]["gpu"] = str(free)
    new = vm()
    new["spec"]["template"]["spec"]["domain"]["devices"] = {"hostDevices": [{"deviceName": "gpu"}] * requested}
    taken = Placement("b", "ns", {}, 1, GIB, Counter(gpu=used))
    assert choose_host(new, [host("a"), other], [taken]) == chosen


def pinned_vm(**cpu: object) -> Obj:
    new = vm(memory="4Gi", cpu="2")
    domain = new["spec"]["template"]["spec"]["domain"]
    domain["cpu"] = {"cores": 2, "dedicatedCpuPlacement": True, **cpu}
    domain["memory"] = {"guest": "4Gi", "hugepages": {"pageSize": "1Gi"}}
    return new


@pytest.mark.parametrize(
    ("manager", "pages", "fits"), [("true", "4Gi", True), ("false", "4Gi", False), ("true", "3Gi", False)]
)
def test_pinned_vm_needs_a_cpu_manager_and_huge_pages_instead_of_memory(manager: str, pages: str, fits: bool) -> None:
    able = host("a", memory="1Gi")
    able["metadata"]["labels"]["cpumanager"] = manager
    able["status"]["allocatable"]["hugepages-1Gi"] = pages
    assert bool(choose_host(pinned_vm(), [able], [])) == fits


def test_isolated_emulator_thread_takes_a_cpu_more() -> None:
    spec = pinned_vm(isolateEmulatorThread=True)["spec"]["template"]["spec"]
    assert demand(spec) == (3, 0)


def test_explanation_has_the_reasons_of_each_host_as_the_scheduler_writes_them() -> None:
    new = vm(memory="31Gi", affinity=node_affinity(expression(ZONE, "In", "a")))
    new["spec"]["template"]["spec"]["domain"]["devices"] = {"hostDevices": [{"deviceName": "n.com/a"}]}
    hosts = [
        host("one"),
        host("two", cpu=1),
        host("three", "b"),
        host("four", unschedulable=True),
        host("five", ready="Unknown"),
    ]
    hosts[0]["status"]["allocatable"]["n.com/a"] = "1"
    assert explain_no_host(new, hosts, [placed("one", memory=8)]) == (
        "0/5 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 Insufficient n.com/a, "
        "1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable."
    )
    taken = Placement("one", "ns", {}, 1, GIB, Counter({"n.com/a": 1}))
    assert "2 Insufficient n.com/a" in explain_no_host(new, hosts, [taken])


def test_explanation_of_anti_affinity() -> None:
    new = vm(affinity=anti_affinity(HOSTNAME, required=True))
    text = explain_no_host(new, [host("one")], [placed("one", role="cp")])
    assert text == "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."


def test_device_that_no_host_offers_is_not_permitted_but_one_that_is_disabled_is() -> None:
    new = vm()
    new["spec"]["template"]["spec"]["domain"]["devices"] = {"hostDevices": [{"deviceName": "n.com/a"}]}
    assert unpermitted_devices(new, [host("one")]) == ["n.com/a"]
    disabled = host("one")
    disabled["status"]["allocatable"]["n.com/a"] = "0"
    assert unpermitted_devices(new, [disabled]) == []
    assert unpermitted_devices(vm(), [host("one")]) == []
