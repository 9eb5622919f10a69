"""`caphv generate --interactive`: which questions it asks, what it offers, and the summary of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from caphv.api.object import Obj
from commands.generate_answers import Interview, command_line, show_summary
from operations.capacity.free import CapacityObjects
from operations.capacity.surroundings import Surroundings
from operations.read.objects import HarvesterObjects
from packager.definitions.flags import FLAGS
from packager.definitions.fromflags import definition_of
from packager.definitions.model import Definition, parse
from tests.support.ippools import pool

pytestmark = pytest.mark.unit

LEAST = {
    "--name": "demo",
    "--k8s-version": "v1.36.2+rke2r1",
    "--image": "default/sles",
    "--ssh-keypair": "default/key",
    "--network": "default/lan",
}
ASKED = [flag.name for flag in FLAGS if flag.ask]


def surroundings(*names: str, images: int = 1, pools: list[Obj] | None = None) -> Surroundings:
    objs: list[Obj] = [
        {"metadata": {"namespace": "default", "name": f"i-{n:02}"}, "spec": {"displayName": f"sles-{n:02}"}}
        for n in range(images)
    ]
    keys: list[Obj] = [{"metadata": {"namespace": "default", "name": name}} for name in names]
    harvester = HarvesterObjects(images=objs, key_pairs=keys, networks=keys, pools=pools or [])
    return Surroundings(CapacityObjects(harvester), ["default", "local-x", "vms"], ["longhorn"])


def interview(
    missing: str, *answers: str, harvester: Surroundings | None = None, **given: str
) -> tuple[Interview, str]:
    """Ask for one flag, all others being given; return the interview and what it wrote."""
    found = Interview(dict.fromkeys((flag.name for flag in FLAGS), "x") | LEAST | {missing: ""}, lambda _: None)
    found.flag_values["--image-lookup"] = ""
    found.flag_values |= {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    found.harvester = harvester
    found._check_harvester = lambda _flag, _text: None  # type: ignore[method-assign]
    result = CliRunner().invoke(
        click.Command("ask", callback=found.ask), input="".join(f"{each}\n" for each in answers)
    )
    assert result.exit_code == 0, result.output
    return found, result.stderr


def test_only_what_no_flag_gives_is_asked_for() -> None:
    found, text = interview("--network", "default/lan")
    assert found.answers == {"--network": "default/lan"}
    assert text.count(": ") == 1


def test_the_namespace_is_by_default_the_name() -> None:
    found, text = interview("--namespace", "")
    assert (found.answers["--namespace"], "[demo]" in text) == ("demo", True)


def test_names_on_harvester_are_offered_by_number_and_the_only_one_is_the_default() -> None:
    found, text = interview("--network", "2", harvester=surroundings("lan", "wan"))
    assert found.answers["--network"] == "default/wan"
    assert "\n   1  default/lan\n   2  default/wan\n" in text
    assert ", or a number" in text
    found, text = interview("--network", "", harvester=surroundings("lan"))
    assert (found.answers["--network"], "[default/lan]" in text) == ("default/lan", True)
    found, text = interview("--network", "", "default/wan", harvester=surroundings("lan", "wan"))
    assert "an answer is required, or give --network" in text
    found, text = interview("--network", "7", "default/x", harvester=surroundings("lan"))
    assert "Error" in text
    _, text = interview("--network", "default/x")
    assert ", or a number" not in text


def test_namespaces_of_the_system_are_not_offered() -> None:
    found, text = interview("--target-namespace", "2", harvester=surroundings())
    assert found.answers["--target-namespace"] == "vms"
    assert "local-x" not in text


@pytest.mark.parametrize(("images", "more"), [(30, ""), (31, "and 1 more"), (42, "and 12 more")])
def test_a_long_list_is_cut(images: int, more: str) -> None:
    _, text = interview("--image", "1", harvester=surroundings(images=images))
    assert ("more" in text) is bool(more)
    assert more in text
    assert ("  30  default/sles-29" in text, "sles-30" in text) == (True, False)


def test_image_by_version_is_not_asked_for() -> None:
    found, _ = interview("--image", image_lookup="default/sles-{{.K8sVersion}}")
    assert found.answers == {}


def test_several_pools_are_given_by_number() -> None:
    pools = [pool("a"), pool("b"), pool("c")]
    found, _ = interview("--ip-pool-refs", " 3, 1 ,,x", harvester=surroundings(pools=pools))
    assert found.answers["--ip-pool-refs"] == "c,a,x"
    for answer, value in (("3", "c"), ("0", "0"), ("4", "4"), ("000001", "000001"), ("00001", "a")):
        found, _ = interview("--ip-pool-refs", answer, harvester=surroundings(pools=pools))
        assert found.answers["--ip-pool-refs"] == value, answer


@pytest.mark.parametrize(("flag", "value"), [("--gateway", "10.0.0.1"), ("--subnet-mask", "255.255.255.0")])
@pytest.mark.parametrize("given", [{"ip_pool_refs": "a,b"}, {"ip_pool_refs": "", "ip_pool": "a"}])
def test_gateway_and_mask_are_those_of_the_first_pool(flag: str, value: str, given: dict[str, str]) -> None:
    answers = [""] * (1 if given["ip_pool_refs"] else 2)
    found, text = interview(flag, *answers, harvester=surroundings(pools=[pool("a"), pool("b")]), **given)
    assert (found.answers[flag], f"[{value}]" in text) == (value, True)


def test_without_a_pool_there_is_no_question_for_its_gateway() -> None:
    found, text = interview("--gateway", "", ip_pool_refs="", ip_pool="")
    assert (found.answers, "Gateway" in text) == ({"--ip-pool-refs": ""}, False)


def test_a_pool_without_a_valid_range_suggests_nothing() -> None:
    broken = pool("a")
    broken["spec"]["ranges"] = [{"subnet": "nonsense", "gateway": "10.0.0.1"}]
    _, text = interview("--gateway", "10.0.0.9", harvester=surroundings(pools=[broken]), ip_pool_refs="a")
    assert "[" not in text


# The kubeconfig


def asked(read: Any, known: Path | None, *answers: str) -> tuple[Any, str]:
    found = Interview({}, read)
    results: list[Any] = []
    command = click.Command("ask", callback=lambda: results.append(found.ask_kubeconfig(known)))
    text = CliRunner().invoke(command, input="".join(f"{each}\n" for each in answers)).stderr
    return (results, found.harvester), text


def test_a_kubeconfig_that_is_known_is_read_and_not_asked_for(tmp_path: Path) -> None:
    seen = surroundings()
    assert asked(lambda _: seen, tmp_path) == (([tmp_path], seen), "")

    def fail(_path: Path) -> None:
        raise click.UsageError("no answer")

    assert asked(fail, tmp_path) == (([tmp_path], None), "warning: no answer\n")


def test_a_kubeconfig_is_asked_for_until_it_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    reads: list[Path] = []

    def read(path: Path) -> Surroundings:
        reads.append(path)
        if len(reads) == 1:
            raise click.UsageError("no answer")
        return surroundings()

    (results, found), text = asked(read, None, "x", " ~/y ")
    assert (results, reads) == ([tmp_path / "y"], [Path("x"), tmp_path / "y"])
    assert found is not None
    assert "no answer" in text
    assert asked(read, None, " ")[0] == ([None], None)


# The summary


def summary(
    capsys: pytest.CaptureFixture[str],
    server: str = "",
    harvester: Surroundings | None = None,
    *,
    creates_identity: bool = False,
    **more: str,
) -> list[str]:
    given = LEAST | {f"--{name.replace('_', '-')}": value for name, value in more.items()}
    show_summary(parsed(given), harvester, server, creates_identity=creates_identity)
    return capsys.readouterr().err.splitlines()


def parsed(given: Mapping[str, str]) -> Definition:
    found, problems = parse(definition_of(given))
    assert found is not None, problems
    return found


def test_a_summary_has_a_line_for_each_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert summary(capsys) == [
        "",
        "Summary",
        "  Cluster               demo/demo, rke2 v1.36.2+rke2r1",
        "  Control plane         3 of 2 CPU, 4Gi memory, disks 40Gi",
        "  Pool workers          2 of 2 CPU, 4Gi memory, disks 40Gi",
        "  Image                 default/sles",
        "  Login                 user sles, KeyPair default/key",
        "  Networks              default/lan",
        "  Machine addresses     DHCP",
        "  Control plane address DHCP",
        "  Harvester             namespace default",
        "  Identity              Secret demo/demo-harvester-identity, which must exist: caphv identity create "
        "--harvester-kubeconfig FILE --target-namespace default --secret-namespace demo "
        "--secret-name demo-harvester-identity | kubectl apply -f -",
        "  Add-ons               by ClusterResourceSet",
        "",
    ]


def test_a_summary_names_pools_servers_and_disks(capsys: pytest.CaptureFixture[str]) -> None:
    more = {"ip_pool_refs": "a,b", "gateway": "10.0.0.1", "subnet_mask": "255.255.255.0", "lb_ip_pool": "b"}
    more |= {"dns": "10.0.0.2", "worker_replicas": "2", "extra_disk": "10Gi"}
    found = "\n".join(summary(capsys, "https://h", creates_identity=True, **more))
    assert "IPPool a, IPPool b; gateway 10.0.0.1, mask 255.255.255.0" in found
    assert "Control plane address IPPool b\n" in found
    assert "namespace default on https://h\n" in found
    assert "which must exist" not in found
    seen = surroundings(pools=[pool("a"), pool("b")])
    assert "IPPool b (5 addresses free)\n" in "\n".join(summary(capsys, "", seen, **more))
    assert " + 10Gi" in found


def test_the_command_line_has_what_was_answered() -> None:
    values = {"--name": "demo", "--image": "default/a b", "--network": ""}
    assert command_line(values, None) == "caphv generate --interactive --name demo --image 'default/a b'"
    assert command_line(values, Path("h.yaml")).startswith(
        "caphv generate --interactive --harvester-kubeconfig h.yaml --name demo"
    )
