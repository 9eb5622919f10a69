"""`caphv generate --apply` with a management cluster in memory, and questions with what a Harvester has."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import Obj, key_of
from caphv.runtime.errors import Invalid, Unreachable
from commands import generate_harvester
from commands.main import cli
from operations.capacity.free import CapacityObjects
from operations.capacity.surroundings import Surroundings
from operations.read.objects import HarvesterObjects, Unseen
from packager.definitions.flags import FLAGS
from tests.support import kubeconfigs
from tests.support.commandservers import Servers
from tests.support.generate import LEAST
from tests.support.ippools import pool
from tests.support.packager.definitions import definition

pytestmark = pytest.mark.unit


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    file = tmp_path / "harvester.yaml"
    file.write_text(yaml.safe_dump(kubeconfigs.valid()))
    return file


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, identity: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    for obj in generated(found, identity):
        found.management.serve(obj["apiVersion"], obj["kind"])
    return found


def flags(identity: Path, *more: str) -> tuple[str, ...]:
    return ("generate", *LEAST, "--harvester-kubeconfig", str(identity), "--no-harvester", *more)


def generated(servers: Servers, identity: Path) -> list[Obj]:
    result = servers.caphv(*flags(identity))
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def test_all_objects_are_applied_and_named(servers: Servers, identity: Path) -> None:
    result = servers.caphv(*flags(identity, "--apply"))
    assert result.exit_code == 0, result.output
    objs = generated(servers, identity)
    assert len(objs) > 4
    for obj in objs:
        assert servers.management.find(obj["kind"], *reversed(key_of(obj))) is not None
    applied = [request.split(maxsplit=1)[1] for request in servers.management.requests]
    assert applied == [f"{obj['kind']} {obj['metadata']['name']}" for obj in objs]
    assert result.stdout.count("applied ") == len(objs)
    assert servers.management.closed


def stored_identity(servers: Servers, content: str) -> None:
    data = {"kubeconfig": base64.b64encode(content.encode()).decode()}
    metadata = {"name": "demo-harvester-identity", "namespace": "demo"}
    servers.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def secrets(servers: Servers) -> list[str]:
    return [request for request in servers.management.requests if " Secret " in request]


def test_an_identity_that_exists_is_kept(servers: Servers, identity: Path) -> None:
    (secret,) = (obj for obj in generated(servers, identity) if obj["kind"] == "Secret")
    assert key_of(secret) == ("demo", "demo-harvester-identity")
    stored_identity(servers, secret["stringData"]["kubeconfig"])
    same = servers.caphv(*flags(identity, "--apply"))
    assert (same.exit_code, secrets(servers)) == (0, [])
    stored_identity(servers, "another")
    before = list(servers.management.requests)
    other = servers.caphv(*flags(identity, "--apply"))
    assert (other.exit_code, "Secret demo/demo-harvester-identity exists with another" in other.output) == (1, True)
    assert servers.management.requests == before, "nothing was applied"
    replaced = servers.caphv(*flags(identity, "--apply", "--replace-identity"))
    assert (replaced.exit_code, secrets(servers)) == (0, ["apply Secret demo-harvester-identity"])


def test_what_is_refused_is_named_and_fails(servers: Servers, identity: Path) -> None:
    servers.management.errors["apply Cluster"] = Invalid(422, "Invalid", "no such class")
    result = servers.caphv(*flags(identity, "--apply"))
    assert (result.exit_code, "error: " in result.stderr, "no such class" in result.stderr) == (1, True, True)
    assert "applied Cluster demo/demo" not in result.stdout
    assert "applied Secret demo/demo-harvester-identity" in result.stdout


def test_a_server_that_does_not_answer_is_an_error(servers: Servers, identity: Path) -> None:
    servers.management.errors["get"] = Unreachable("https://management:6443: no answer")
    result = servers.caphv(*flags(identity, "--apply"))
    assert (result.exit_code, "the management cluster cannot be reached" in result.output) == (2, True)


def test_what_clusters_share_stays_as_it_is(servers: Servers, identity: Path) -> None:
    assert servers.caphv(*flags(identity, "--apply")).exit_code == 0
    servers.management.requests.clear()
    again = servers.caphv(*flags(identity, "--apply", "--replace-identity"))
    assert again.exit_code == 0, again.output
    kinds = {request.split()[1] for request in servers.management.requests}
    assert "Cluster" in kinds
    assert not kinds & {"Namespace", "ClusterClass", "HarvesterMachineTemplate"}


# Questions


def surroundings() -> Surroundings:
    images = [
        {"metadata": {"namespace": "default", "name": "a"}, "spec": {"displayName": "sles-15"}},
        {
            "metadata": {"namespace": "default", "name": "b"},
            "spec": {"displayName": "ubuntu"},
            "status": {"conditions": [{"type": "Imported", "status": "False"}]},
        },
    ]
    bound = pool("bound")
    bound["spec"]["selector"] = {"network": "default/production"}
    full = pool("full", allocated={f"10.0.0.{number}": "team/one" for number in range(10, 14)})
    broken = pool("broken")
    broken["spec"]["ranges"] = [{"subnet": "nonsense"}]
    harvester = HarvesterObjects(
        images=images,
        key_pairs=[{"metadata": {"namespace": "default", "name": "key"}}],
        networks=[{"metadata": {"namespace": "default", "name": "production"}}],
        pools=[bound, full, broken],
    )
    return Surroundings(CapacityObjects(harvester), ["default", "kube-system", "vms"], ["longhorn"])


@pytest.mark.parametrize(
    ("unseen", "note"),
    [
        ("VMs of other namespaces", "the account does not see VMs of other namespaces: "),
        ("ippools.loadbalancer.harvesterhci.io", "the account may not list ippools: "),
        ("events", ""),
    ],
)
def test_what_the_account_may_not_see_is_not_called_checked(
    monkeypatch: pytest.MonkeyPatch, unseen: str, note: str
) -> None:
    found = surroundings()
    found.capacity.harvester.unseen.append(Unseen(unseen, "forbidden", forbidden=True))
    monkeypatch.setattr(generate_harvester, "read", lambda *_: found)
    notes = generate_harvester.preflight("", definition(), None).unchecked
    assert [text.startswith(note) for text in notes] == [True] * bool(note)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, identity: Path) -> Any:
    """Answer questions by flag, the others with nothing; return the result."""
    monkeypatch.setattr(generate_harvester, "read", lambda _content: surroundings())
    monkeypatch.setattr(generate_harvester, "preflight", lambda *_: generate_harvester.Preflight())

    def ask(**answers: str | tuple[str, ...]) -> Any:
        lines = [str(identity)]
        for flag in FLAGS:
            if flag.ask and ("ip_pool_refs" in answers or flag.name not in WITH_POOLS):
                answer = answers.get(flag.name.removeprefix("--").replace("-", "_"), "")
                lines += [answer] if isinstance(answer, str) else answer
        words = ["generate", "--interactive", "-o", "definition"]
        return CliRunner().invoke(cli, words, input="\n".join([*lines, *[""] * 5]), prog_name="caphv")

    return ask


WITH_POOLS = ("--gateway", "--subnet-mask", "--dns")
NAMED = {"name": "demo", "image": "1", "target_namespace": "vms"}


def test_questions_offer_what_harvester_has(asked: Any) -> None:
    result = asked(**NAMED, ip_pool_refs="1", dns="10.0.0.1")
    assert result.exit_code == 0, result.output
    spec = yaml.safe_load(result.stdout)["spec"]
    machines = spec["machines"]
    assert (machines["image"], machines["sshKeyPair"]) == ("default/sles-15", "default/key")
    assert machines["networks"] == ["default/production"]
    assert spec["addresses"]["ipPoolRefs"] == ["bound"]
    assert (spec["addresses"]["gateway"], spec["addresses"]["subnetMask"]) == ("10.0.0.1", "255.255.255.0")
    text = result.stderr
    for line in (
        "   1  default/sles-15\n",
        "   2  default/ubuntu  (not imported)\n",
        "   1  bound  (5 addresses free, for default/production)\n",
        "   2  broken  (ranges are invalid)\n",
        "   3  full  (1 address free)\n",
    ):
        assert line in text
    assert "kube-system" not in text


def test_what_harvester_does_not_have_is_asked_for_again(asked: Any) -> None:
    result = asked(**{**NAMED, "image": ("9", "default/none", "default/sles-15")})
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.stdout)["spec"]["machines"]["image"] == "default/sles-15"
    assert result.stderr.count("Error: ") == 2


def test_without_pools_no_gateway_is_asked_for(asked: Any) -> None:
    result = asked(**NAMED)
    assert result.exit_code == 0, result.output
    assert "addresses" not in yaml.safe_load(result.stdout)["spec"]


def test_a_pool_without_an_address_for_each_machine_is_asked_for_again(asked: Any) -> None:
    result = asked(**NAMED, worker_replicas="2", ip_pool_refs=("full", "bound"), dns="10.0.0.1")
    assert result.exit_code == 0, result.output
    assert yaml.safe_load(result.stdout)["spec"]["addresses"]["ipPoolRefs"] == ["bound"]


def test_user_data_has_to_be_text(identity: Path, servers: Servers) -> None:
    Path("user-data").write_bytes(b"\xff\xfe")
    for name in ("user-data", "."):
        result = servers.caphv(*flags(identity, "--user-data", name))
        assert (result.exit_code, "--user-data" in result.output) == (2, True)
