"""Answers to the hooks of Cluster API's Runtime SDK."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from caphv.api.object import Key, Obj
from reconciler.extension.hooks import Facts, answer, paths

pytestmark = pytest.mark.unit

SPEC: Obj = {"cpu": 4, "cpuMax": 16, "memory": "8Gi", "memoryMax": "32Gi", "networks": ["default/a"]}
POLICY = "caphv.io/in-place-updates"
HOOKS = "/hooks.runtime.cluster.x-k8s.io/v1alpha1"


def grows(name: str, status: str = "True") -> Obj:
    can_grow = {"type": "VMCanGrow", "status": status, "message": "the VM cannot grow: why"}
    up_to_date = {"type": "VMUpToDate", "status": "True"}
    return {"metadata": {"name": name}, "status": {"conditions": [can_grow, up_to_date]}}


def facts(*machines: Obj) -> Facts:
    by_name = {machine["metadata"]["name"]: machine for machine in machines}

    def of_set(key: Key) -> list[Obj]:
        return list(machines) if key == Key("team", "old") else []

    return Facts(machine=lambda key: by_name.get(key.name), machines_of_set=of_set)


def set_side(name: str, spec: Obj, version: str = "v1.36.1", **annotations: str) -> Obj:
    template = {"spec": {"template": {"spec": spec}}}
    metadata = {"namespace": "team", "name": name, "annotations": annotations}
    return {
        "machineSet": {"metadata": metadata, "spec": {"template": {"spec": {"version": version}}}},
        "infrastructureMachineTemplate": {"kind": "HarvesterMachineTemplate", **template},
        "bootstrapConfigTemplate": {"kind": "RKE2ConfigTemplate", "spec": {"template": {"spec": {"a": 1}}}},
    }


def of_set(change: Obj, **desired: Any) -> Obj:
    return {"current": set_side("old", SPEC), "desired": set_side("new", {**SPEC, **change}, **desired)}


def machine_side(spec: Obj, version: str = "v1.36.1", **annotations: str) -> Obj:
    return {
        "machine": {"metadata": {"annotations": annotations}, "spec": {"version": version}},
        "infrastructureMachine": {
            "kind": "HarvesterMachine",
            "metadata": {"namespace": "team", "name": "one"},
            "spec": {**spec, "providerID": "harvester://a"},
        },
        "bootstrapConfig": {"kind": "KubeadmConfig", "spec": {}},
    }


def of_machine(change: Obj, **desired: Any) -> Obj:
    return {"current": machine_side(SPEC), "desired": machine_side({**SPEC, **change}, **desired)}


def patch_in(response: Obj, field: str) -> Any:
    assert response[field]["patchType"] == "JSONPatch"
    return json.loads(base64.b64decode(response[field]["patch"]))


@pytest.mark.parametrize(
    ("hook", "request_of", "field", "path"),
    [
        ("CanUpdateMachineSet", of_set, "infrastructureMachineTemplatePatch", "/spec/template/spec"),
        ("CanUpdateMachine", of_machine, "infrastructureMachinePatch", "/spec"),
    ],
)
class TestCanUpdate:
    def test_growth_is_answered_with_a_patch(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str
    ) -> None:
        response = answer(hook, request_of({"cpu": 8}), facts(grows("one"), grows("two")))
        assert (response["status"], response["kind"]) == ("Success", f"{hook}Response")
        assert patch_in(response, field) == [{"op": "add", "path": f"{path}/cpu", "value": 8}]
        assert response["affectsAvailability"] is False

    @pytest.mark.parametrize(
        ("change", "desired", "reason"),
        [
            ({"networks": []}, {}, "a change of networks needs another VM"),
            ({"cpu": 8, "networks": []}, {}, "a change of networks needs another VM"),
            ({"cpu": 8}, {"version": "v1.36.2"}, "a change of version of the Machine needs another VM"),
            ({"cpu": 32}, {}, "cpu becomes larger than cpuMax"),
        ],
    )
    def test_what_needs_another_vm_is_replaced_or_stops_the_rollout(
        self,
        hook: str,
        request_of: Callable[..., Obj],
        field: str,
        path: str,
        change: Obj,
        desired: Obj,
        reason: str,
    ) -> None:
        replaced = answer(hook, request_of(change, **desired), facts(grows("one")))
        assert (replaced["status"], field in replaced) == ("Success", False)
        assert reason in replaced["message"]
        stopped = answer(hook, request_of(change, **desired, **{POLICY: "Only"}), facts(grows("one")))
        assert (stopped["status"], field in stopped) == ("Failure", False)
        assert reason in stopped["message"]

    def test_vm_that_cannot_grow_is_replaced(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str
    ) -> None:
        response = answer(hook, request_of({"cpu": 8}), facts(grows("one", "False")))
        assert field not in response
        assert "machines are replaced: 1 of 1 VMs cannot grow: see condition VMCanGrow" in response["message"]
        assert "why" not in response["message"]

    @pytest.mark.parametrize("change", [{"cpu": 8}, {"nodeAffinity": {"a": 1}}])
    @pytest.mark.parametrize("status", ["False", "Unknown"])
    def test_vm_that_cannot_follow_is_replaced(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str, change: Obj, status: str
    ) -> None:
        machine = grows("one")
        machine["status"]["conditions"][1] |= {"status": status, "reason": "VMDiffers", "message": "drift"}
        response = answer(hook, request_of(change), facts(machine))
        assert field not in response
        assert "1 of 1 VMs cannot follow their machines" in response["message"]
        assert "drift" not in response["message"]

    def test_affinity_is_replaced_or_removed_whatever_vms_can_grow(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str
    ) -> None:
        request = request_of({"nodeAffinity": {"a": 1}})
        response = answer(hook, request, facts(grows("one", "False")))
        assert patch_in(response, field) == [{"op": "add", "path": f"{path}/nodeAffinity", "value": {"a": 1}}]
        back = {"current": request["desired"], "desired": request["current"]}
        known = facts(grows("one", "False"))
        assert patch_in(answer(hook, back, known), field) == [{"op": "remove", "path": f"{path}/nodeAffinity"}]

    @pytest.mark.parametrize("settings", [{}, {"policy": "Prefer"}, {"policy": "Only"}])
    def test_annotation_never_has_machines_replaced(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str, settings: Obj
    ) -> None:
        request = {**request_of({"cpu": 8}, **{POLICY: "Never"}), "settings": settings}
        assert field not in answer(hook, request, facts(grows("one")))

    def test_setting_applies_without_annotation(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str
    ) -> None:
        assert field not in answer(
            hook, {**request_of({"cpu": 8}), "settings": {"policy": "Never"}}, facts(grows("one"))
        )
        stopped = answer(hook, {**request_of({"cpu": 2}), "settings": {"policy": "Only"}}, facts(grows("one")))
        assert stopped["status"] == "Failure"

    def test_unknown_policy_replaces_nothing(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str
    ) -> None:
        response = answer(hook, request_of({"cpu": 8}, **{POLICY: "only"}), facts(grows("one")))
        assert (response["status"], field in response) == ("Failure", False)
        assert "use Prefer, Only, Never" in response["message"]

    def test_machines_of_other_providers_are_left_to_cluster_api(
        self, hook: str, request_of: Callable[..., Obj], field: str, path: str
    ) -> None:
        request = request_of({"cpu": 8}, **{POLICY: "Only"})
        for side in ("current", "desired"):
            for part in ("infrastructureMachineTemplate", "infrastructureMachine"):
                if part in request[side]:
                    request[side][part]["kind"] = "DockerMachineTemplate"
        assert answer(hook, request, facts()).keys() == {"apiVersion", "kind", "status"}


IN_PROGRESS = {"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""}


def updated(
    status: str,
    message: str,
    *others: Obj,
    reason: str = "VMDiffers",
    cpu: int = 8,
    observed: int = 2,
    annotations: dict[str, str] = IN_PROGRESS,
) -> Obj:
    condition = {"type": "VMUpToDate", "status": status, "message": message, "reason": reason}
    return {
        "metadata": {"name": "one", "generation": 2, "annotations": annotations},
        "spec": {**SPEC, "cpu": cpu, "providerID": "harvester://a"},
        "status": {"conditions": [{**condition, "observedGeneration": observed}, *others]},
    }


WANTED: Obj = {"desired": machine_side({**SPEC, "cpu": 8})}
DONE = "the VM has 8 CPUs, 8Gi of memory"


class TestUpdateMachine:
    def test_is_complete_when_the_vm_has_the_size(self) -> None:
        response = answer("UpdateMachine", WANTED, facts(updated("True", DONE)))
        assert (response["status"], response["retryAfterSeconds"], response["message"]) == ("Success", 0, DONE)

    @pytest.mark.parametrize(
        ("machine", "message"),
        [
            (updated("True", "", annotations={}), f"waiting until {DONE}"),
            (updated("True", "the VM has 4 CPUs, 8Gi of memory", cpu=4), f"waiting until {DONE}"),
            (updated("True", "the VM has 4 CPUs, 8Gi of memory", observed=1), f"waiting until {DONE}"),
            (updated("False", "the VM migrates"), "the VM migrates"),
            (updated("Unknown", "the VM does not exist"), "the VM does not exist"),
            (updated("True", "", {"type": "Ready", "status": "False", "message": "stopped"}, observed=1), "stopped"),
            (
                updated("False", "it differs", {"type": "VMCanGrow", "status": "False", "message": "it cannot grow"}),
                "it cannot grow",
            ),
            (
                updated(
                    "False",
                    "volumes[1] is being attached",
                    {"type": "VMCanGrow", "status": "False", "message": "it cannot grow"},
                    reason="VMUpdating",
                ),
                "volumes[1] is being attached",
            ),
        ],
    )
    def test_waits_and_says_for_what(self, machine: Obj, message: str) -> None:
        response = answer("UpdateMachine", WANTED, facts(machine))
        assert (response["status"], response["retryAfterSeconds"], response["message"]) == ("Success", 5, message)

    @pytest.mark.parametrize("provider_id", [None, "", "harvester://b"])
    def test_messages_are_only_for_who_knows_the_machine(self, provider_id: str | None) -> None:
        spec = {**SPEC, "cpu": 8, "providerID": provider_id}
        wanted = {**WANTED["desired"]["infrastructureMachine"], "spec": spec}
        request = {"desired": {"infrastructureMachine": wanted}}
        machine = updated("False", "the VM migrates")
        assert answer("UpdateMachine", request, facts(machine))["message"] == f"waiting until {DONE}"
        del machine["spec"]
        assert answer("UpdateMachine", request, facts(machine))["message"] == f"waiting until {DONE}"

    def test_waits_for_a_machine_that_is_not_known_yet(self) -> None:
        assert answer("UpdateMachine", WANTED, facts())["retryAfterSeconds"] == 5


def test_discovery_names_every_hook_at_its_path() -> None:
    response = answer("Discovery", {}, facts())
    assert response["kind"] == "DiscoveryResponse"
    assert {handler["failurePolicy"] for handler in response["handlers"]} == {"Fail"}
    served = {
        f"{HOOKS}/{handler['requestHook']['hook'].lower()}/{handler['name']}": handler["requestHook"]["hook"]
        for handler in response["handlers"]
    }
    assert served | {f"{HOOKS}/discovery": "Discovery"} == paths()
    assert set(served.values()) == {"CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"}
