"""The scenarios for a real Harvester say what they lack, and the page of their variables is complete."""

import re
from pathlib import Path

import pytest

from tests.support.installation import NUMBERS, Unfit, live
from tests.support.paths import CHECKOUT
from tests.support.scenarios import scenarios

pytestmark = pytest.mark.unit

SOURCE = (CHECKOUT / "tests" / "support" / "installation.py").read_text(encoding="utf-8")
PAGE = (CHECKOUT / "docs" / "live-tests.md").read_text(encoding="utf-8")
VALUES = {
    "IMAGE": "default/sles",
    "SSH_KEYPAIR": "default/admin",
    "NETWORK": "default/production",
    "VM_POOLS": "a,b",
    "LB_POOL": "lb",
    "GATEWAY": "192.0.2.1",
    "SUBNET_MASK": "255.255.255.0",
    "VERSION": "v1.35.1+rke2r1",
    "LATER_VERSION": "v1.36.3+rke2r1",
}


def environment(**values: str) -> dict[str, str]:
    return {f"CAPHV_E2E_{name}": value for name, value in values.items()}


def test_all_that_is_missing_is_named() -> None:
    with pytest.raises(Unfit, match=r"set CAPHV_E2E_IMAGE, CAPHV_E2E_SSH_KEYPAIR, .*CAPHV_E2E_LATER_VERSION"):
        live(environment(MANAGEMENT_KUBECONFIG="m", HARVESTER_KUBECONFIG="h"))


def test_kubeconfigs_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"CAPHV_E2E_MANAGEMENT_KUBECONFIG: no such file: .*absent"):
        live(environment(MANAGEMENT_KUBECONFIG=str(tmp_path / "absent"), HARVESTER_KUBECONFIG=__file__, **VALUES))


def test_values_reach_the_cluster() -> None:
    found = live(environment(MANAGEMENT_KUBECONFIG=__file__, HARVESTER_KUBECONFIG=__file__, WORKERS="3", **VALUES))
    assert found.identity == Path(__file__)
    assert (found.spec.workers, found.spec.machines, found.spec.image) == (3, ("a", "b"), "default/sles")
    assert (found.spec.namespace, found.later) == ("caphv-e2e", "v1.36.3+rke2r1")


def test_values_that_do_not_fit_are_named_all_at_once() -> None:
    values = {**VALUES, "WORKERS": "two", "TIMEOUT": "0", "LATER_VERSION": VALUES["VERSION"]}
    with pytest.raises(Unfit) as caught:
        live(environment(MANAGEMENT_KUBECONFIG=__file__, HARVESTER_KUBECONFIG=__file__, **values))
    reported = str(caught.value)
    assert all(f"CAPHV_E2E_{name}: " in reported for name in ("WORKERS", "TIMEOUT", "LATER_VERSION"))


def test_a_group_of_scenarios_comes_with_the_cluster_that_it_needs() -> None:
    names = [scenario.__name__ for scenario in scenarios(["scale"])]
    assert names[:2] == ["gives_the_control_plane_an_address_first", "brings_up_all_machines"]
    assert (names[2], names[-1], len(names)) == ("makes_a_machine_more", "deletes_everything", 7)
    assert not any("cluster" in scenario.__name__ for scenario in scenarios(["webhook"])[:4])
    assert len(scenarios(["webhook"])) == 5
    with pytest.raises(ValueError, match="no scenarios sale: there are webhook"):
        scenarios(["sale", "scale"])


def test_every_variable_is_explained() -> None:
    used = set(re.findall(r"given\(\"(\w+)\"", SOURCE)) | set(VALUES) | {"MANAGEMENT_KUBECONFIG"}
    used |= {"IDENTITY_KUBECONFIG", *NUMBERS}
    assert {f"CAPHV_E2E_{name}" for name in used} | {"CAPHV_E2E_STORIES"} == set(re.findall(r"`(CAPHV_E2E_\w+)`", PAGE))
