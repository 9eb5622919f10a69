"""A machine reports what its VM differs in now: the report depends on images and failure domains, too."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import conditions, names
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.machine.report import report_drift
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import virtual_machine
from reconciler.machine.vminputs import inputs_of
from reconciler.memory.machine import MachineMemory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics
from tests.support.reconciler.machines import OWNER, machine_spec

pytestmark = pytest.mark.unit

ZONE = {"name": "a", "attributes": {"topologyKey": names.ZONE_LABEL}, "controlPlane": True}


def image(name: str = "image-x", storage_class: str = "lh-x") -> Obj:
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"displayName": "sles-15"},
        "status": {"storageClassName": storage_class, "conditions": [{"type": "Imported", "status": "True"}]},
    }


class Machine:
    """A machine in zone `a` with a VM that was created for its spec."""

    def __init__(self, **spec: Any) -> None:
        self.images, self.domains, self.topics = [image()], [ZONE], Topics()
        self.version = "v1.36.2"
        self.queue: WorkQueue[Key] = WorkQueue("machines")
        self._memory = MachineMemory("u")
        metadata = {"namespace": "team", "name": "one", "uid": "u", "generation": 1}
        self.obj: Obj = {"metadata": metadata, "spec": {**machine_spec(), **spec}}
        self.vm = virtual_machine(inputs_of(self._scope()))
        self.vm["metadata"] |= {"uid": "vm", "generation": 1}

    def drift(self) -> str:
        """Reconcile; return the difference that the condition names, empty if the VM is up to date."""
        self.topics.unsubscribe_all(self.queue, Key("team", "one"))
        scope = self._scope()
        report_drift(scope, copy.deepcopy(self.vm), None)
        condition = conditions.get_condition(scope.draft.fields["conditions"], ConditionType.VM_UP_TO_DATE)
        assert condition
        return "" if condition["status"] == "True" else str(condition["message"])

    def upload(self, *images: Obj) -> bool:
        """Let Harvester have these images; return whether the machine is requeued."""
        self.images = list(images)
        self.topics.notify(triggers.images("harvester"))
        return len(self.queue) > 0

    def _scope(self) -> MachineScope:
        collections = {name: SimpleNamespace(store=()) for name in ("hosts", "pools")}
        session = SimpleNamespace(
            images=SimpleNamespace(store=self.images), fingerprint="harvester", deployment_object=None, **collections
        )
        store = SimpleNamespace(by_index=lambda *_: (), count=lambda *_: 0)
        scope = SimpleNamespace(
            obj=self.obj,
            machine={"spec": {"version": self.version}},
            spec=self.obj["spec"],
            owner=OWNER,
            cluster_key=Key("team", "cluster"),
            target_namespace="vms",
            control_plane=False,
            rancher_etcd=False,
            failure_domain="a",
            failure_domains=self.domains,
            memory=self._memory,
            draft=StatusDraft(self.obj),
            session=lambda: session,
            namespace=lambda: SimpleNamespace(vms=SimpleNamespace(store=store)),
            subscribe=lambda *topics: self.topics.subscribe(self.queue, Key("team", "one"), *topics),
            warning_event=lambda *_: None,
        )
        return cast(MachineScope, cast(Any, scope))


def test_image_that_harvester_no_longer_has_is_no_drift_of_a_vm_that_runs() -> None:
    machine = Machine()
    machine.images = []
    assert machine.drift() == ""
    machine.vm["metadata"]["generation"] = 2
    machine.vm["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = 3
    assert machine.drift().startswith("cores is 3, not 2")


def test_disk_that_exists_keeps_the_image_of_its_version() -> None:
    lookup = {"format": "default/{{.BaseOS}}", "baseOS": "sles-15"}
    machine = Machine(volumes=[{"volumeType": "image", "imageLookup": lookup, "volumeSize": "40Gi"}])
    assert machine.drift() == ""
    machine.obj["spec"]["volumes"][0]["imageLookup"]["format"] = "default/{{.K8sVersion}}"
    machine.obj["metadata"]["generation"] = 2
    for images in ([image()], [image(), {**image("image-y"), "spec": {"displayName": "1.36.2"}}], []):
        machine.images = list(images)
        assert machine.drift() == ""


def test_another_image_of_the_name_is_compared_when_it_appears_and_when_it_disappears() -> None:
    machine = Machine()
    assert machine.drift() == ""
    assert not machine.upload(image("image-y", "lh-y")), "an image concerns no machine that is up to date"
    assert "image: default/image-y" in machine.drift()
    assert machine.upload(image())
    assert machine.drift() == ""


def test_images_concern_no_machine_whose_drift_has_ended() -> None:
    machine = Machine()
    machine.vm["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = 3
    for generation in (2, 3):
        machine.vm["metadata"]["generation"] = generation
        assert machine.drift().startswith("cores is 3, not 2")
    machine.vm["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = 2
    machine.vm["metadata"]["generation"] = 4
    assert machine.drift() == ""
    assert not machine.upload(image())


def test_failure_domains_that_are_published_later_are_compared() -> None:
    machine = Machine()
    machine.domains = []
    assert machine.drift().startswith("nodeAffinity lacks the failure domain")
    machine.domains = [ZONE]
    assert machine.drift() == ""
