"""`caphv generate --interactive` from the first question to the objects, with answers that are wrong."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from packager.definitions.flags import FLAGS
from tests.support.generate import GUIDE, KUBECONFIG, LEAST, TOKEN, call, objects, offline

pytestmark = pytest.mark.unit


def test_answers_make_the_same_as_flags(kubeconfig: Path) -> None:
    reported = dict(zip(GUIDE[::2], GUIDE[1::2], strict=True))
    reported["--ip-pool-refs"] = reported.pop("--ip-pool")
    answers = [reported.get(flag.name, "") for flag in FLAGS if flag.ask]
    result = call("--interactive", "--no-harvester", stdin="\n".join([str(kubeconfig), *answers, "n", ""]))
    plain = call(*GUIDE, *offline(kubeconfig))
    shown = {obj["kind"]: obj for obj in objects(result)}
    wanted = {obj["kind"]: obj for obj in objects(plain)}
    assert shown.keys() == wanted.keys()
    assert shown["Cluster"]["spec"] == wanted["Cluster"]["spec"]
    assert TOKEN not in result.stderr
    asked = result.stderr.index("Apply to the management cluster [y/N]")
    summary = result.stderr[result.stderr.index("\nSummary\n") : asked]
    assert "prod-ns/production-cluster, rke2 v1.31.14+rke2r1" in summary
    assert "IPPool prod-ip-pool; gateway 172.16.0.1, mask 255.255.0.0" in summary
    assert "on https://harvester.example.com:6443" in summary


def test_the_summary_comes_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with_pools = ("--gateway", "--subnet-mask", "--dns")
    questions = [flag for flag in FLAGS if flag.ask and flag.name not in (*LEAST, *with_pools)]
    empty = "\n" * (len(questions) + 1)
    refused = call(*LEAST, "--interactive", "--to", str(out), stdin=f"{empty}n\n")
    assert (refused.exit_code, out.exists()) == (1, False)
    assert refused.stderr.index("Summary") < refused.stderr.index(f"Write to {out}?")
    assert call(*LEAST, "--interactive", "--to", str(out), stdin=f"{empty}y\n").exit_code == 0
    assert out.exists()


def test_an_unreachable_harvester_refuses_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(KUBECONFIG.replace("harvester.example.com:6443", "127.0.0.1:9"))
    result = call(*LEAST, "--harvester-kubeconfig", str(nowhere))
    assert result.exit_code == 0
    assert "warning: Harvester does not answer, so that nothing was checked there" in result.stderr
    assert call(*LEAST, *offline(nowhere)).stderr == ""
    asked = call("--interactive", stdin=f"{tmp_path / 'none.yaml'}\n{nowhere}\ndemo\n")
    assert asked.stderr.count("Kubeconfig for Harvester") == 2
    assert "No such file" in asked.stderr
    assert "so there are no suggestions" in asked.stderr


def test_answers_are_kept_when_they_do_not_fit_together() -> None:
    wrong = (*LEAST, "--ip-pool-refs", "machines", "--dns", "10.0.0.1", "--interactive", "-o", "definition")
    result = call(*wrong, stdin="\n" * len(FLAGS))
    assert result.exit_code == 1
    (again,) = (line.strip() for line in result.stderr.splitlines() if line.startswith("  caphv generate"))
    assert "error: --gateway" in result.stderr
    words = shlex.split(again)[2:]
    fixed = call(*words, "--gateway", "10.0.0.2", "--subnet-mask", "255.255.255.0", "-o", "definition", stdin="\n" * 9)
    assert fixed.exit_code == 0, fixed.output
    assert next(yaml.safe_load_all(fixed.stdout))["spec"]["addresses"]["gateway"] == "10.0.0.2"


def test_a_wrong_answer_is_asked_for_again() -> None:
    answers = ["", "Demo", "demo", "", "latest", "v1.34.2", "rke", "rke2", "2", "3"]
    result = call("--interactive", "-o", "definition", stdin="\n".join(answers))
    assert result.stderr.count("Name of the cluster: ") == 2
    assert 'Error: must be "rke2", "k3s" or "kubeadm"' in result.stderr
    assert result.stderr.count("Machines of the control plane") == 2


def test_an_answer_that_is_required_is_asked_for_again_with_the_reason() -> None:
    names = [flag for flag in FLAGS if flag.ask]
    required = names.index(next(flag for flag in names if flag.name == "--network"))
    given = {"--name": "demo", "--image": "default/sles", "--ssh-keypair": "default/admin"}
    answers = ["", *(given.get(flag.name, "") for flag in names[:required]), "", "default/production"]
    result = call("--interactive", "-o", "definition", stdin="\n".join([*answers, *[""] * 9]))
    assert result.exit_code == 0, result.output
    assert "an answer is required, or give --network" in result.stderr
