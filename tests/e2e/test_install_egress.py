"""The NetworkPolicy of the chart: where the provider may connect to."""

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


def spec_of(checkout: Path, folder: Path, **values: object) -> Obj:
    """The spec of the policy with these values of `networkPolicy`."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"networkPolicy": {"enabled": True, **values}}))
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
    (policy,) = [obj for obj in objects if obj["metadata"]["name"] == "caphv-controller-manager"]
    return dict(policy["spec"])


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
