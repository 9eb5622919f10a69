"""The NetworkPolicies of the chart: where provider and packager may connect to, and who may connect to them."""

from __future__ import annotations

import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.addresses import AddressNotAllowed, AddressPolicy
from sandbox.processes import binaries

pytestmark = pytest.mark.e2e


PROVIDER, PACKAGER = "caphv-controller-manager", "caphv-packager"
WITH_PACKAGER: Obj = {"packager": {"enabled": True, "repository": "https://git.example.com/fleet.git"}}


def spec_of(checkout: Path, folder: Path, **values: object) -> Obj:
    """The spec of the provider's policy with these values of `networkPolicy`."""
    (spec,) = specs(checkout, folder, {}, **values).values()
    return spec


def specs(checkout: Path, folder: Path, others: Obj, **values: object) -> dict[str, Obj]:
    """The specs of all policies by name, with these values of `networkPolicy` and others."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"networkPolicy": {"enabled": True, **values}, **others}))
    command = [
        binaries.binary("helm"),
        "template",
        "caphv",
        checkout / "deploy" / "chart",
        "--namespace=caphv-system",
        f"--values={file}",
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = [obj for obj in yaml.safe_load_all(done.stdout) if obj and obj["kind"] == "NetworkPolicy"]
    return {obj["metadata"]["name"]: obj["spec"] for obj in objects}


def test_egress_is_open_unless_asked_for(checkout: Path, tmp_path: Path) -> None:
    spec = spec_of(checkout, tmp_path)
    assert spec["policyTypes"] == ["Ingress"]
    assert "egress" not in spec


def test_default_egress_agrees_with_the_address_check(checkout: Path, tmp_path: Path) -> None:
    spec = spec_of(checkout, tmp_path, restrictEgress=True)
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    dns, rest = spec["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    blocks = [peer["ipBlock"] for peer in rest["to"]]
    assert {block["cidr"] for block in blocks} == {"0.0.0.0/0", "::/0"}
    refused = [ip_network(network) for block in blocks for network in block["except"]]
    for network in refused:
        with pytest.raises(AddressNotAllowed):
            AddressPolicy().check(str(network[-1]))
    for address in ("169.254.169.254", "127.0.0.1", "100.100.100.200", "fd00:ec2::254", "fe80::1"):
        assert any(
            ip_address(address) in network for network in refused if network.version == ip_address(address).version
        )


@pytest.mark.parametrize("values", [{}, {"restrictEgress": True}])
def test_rules_of_the_operator_replace_the_default(checkout: Path, tmp_path: Path, values: Obj) -> None:
    """A list takes effect by itself: one without effect would leave open what its author believes closed."""
    rules = [{"to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}]}]
    spec = spec_of(checkout, tmp_path, egress=rules, **values)
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == rules


def test_packager_has_a_policy_of_its_own(checkout: Path, tmp_path: Path) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    settings = {"CAPHV_RECEIVER_ADDRESS": "[::]:9292"}
    others = {"packager": {**WITH_PACKAGER["packager"], "settings": settings}}
    found = specs(checkout, tmp_path, others, metricsFrom=peers)
    assert found.keys() == {PROVIDER, PACKAGER}
    selected = {name: spec["podSelector"]["matchLabels"]["control-plane"] for name, spec in found.items()}
    assert selected == {PROVIDER: "controller-manager", PACKAGER: "packager"}
    metrics, health, receiver = found[PACKAGER]["ingress"]
    assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": peers}
    assert health == {"ports": [{"port": "health", "protocol": "TCP"}]}
    assert receiver == {"ports": [{"port": 9292, "protocol": "TCP"}]}
    # Without receiver there is no port for it; and egress is open unless asked for.
    plain = specs(checkout, tmp_path, WITH_PACKAGER)[PACKAGER]
    assert (len(plain["ingress"]), plain["policyTypes"]) == (2, ["Ingress"])


def test_rules_of_the_provider_do_not_cut_the_packager_off(checkout: Path, tmp_path: Path) -> None:
    """They name no Git host: the packager has rules of its own, or those of `restrictEgress` alone."""
    rules = [{"to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}]}]
    git = [{"to": [{"ipBlock": {"cidr": "10.30.0.0/16"}}]}]
    restricted = specs(checkout, tmp_path, WITH_PACKAGER, restrictEgress=True)
    assert restricted[PACKAGER]["egress"] == restricted[PROVIDER]["egress"]
    listed = specs(checkout, tmp_path, WITH_PACKAGER, restrictEgress=True, egress=rules)
    assert (listed[PROVIDER]["egress"], "egress" in listed[PACKAGER]) == (rules, False)
    both = specs(checkout, tmp_path, WITH_PACKAGER, egress=rules, packagerEgress=git)
    assert (both[PROVIDER]["egress"], both[PACKAGER]["egress"]) == (rules, git)
    assert both[PACKAGER]["policyTypes"] == ["Ingress", "Egress"]
