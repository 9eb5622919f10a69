"""`caphv generate` in this process: the least flags, the guide's example, and what comes out."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import Obj
from commands.main import cli
from packager.definitions.model import check

TOKEN = "kubeconfig-user-abcde:0123456789"
KUBECONFIG = f"""\
apiVersion: v1
kind: Config
clusters: [{{name: harvester, cluster: {{server: "https://harvester.example.com:6443"}}}}]
users: [{{name: admin, user: {{token: "{TOKEN}"}}}}]
contexts: [{{name: main, context: {{cluster: harvester, user: admin}}}}]
current-context: main
"""
# The example of the operations guide, word for word but for the kubeconfig.
GUIDE = shlex.split(
    "--name production-cluster --namespace prod-ns --image default/sles15-sp7-minimal-vm.x86_64-cloud-qu2.qcow2 "
    "--ssh-keypair default/capi-ssh-key --network default/production --gateway 172.16.0.1 --subnet-mask 255.255.0.0 "
    "--ip-pool prod-ip-pool --dns 172.16.0.1 --cp-replicas 3 --worker-replicas 2 --cpu 4 --memory 8Gi --disk-size 80Gi "
    "--k8s-version v1.31.14"
)
LEAST = ["--name", "demo", "--image", "default/sles", "--ssh-keypair", "default/key", "--network", "default/production"]


def call(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["generate", *arguments], input=stdin, prog_name="caphv")


def objects(result: Result) -> list[Obj]:
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def offline(kubeconfig: Path) -> tuple[str, ...]:
    """A kubeconfig whose server does not exist."""
    return ("--harvester-kubeconfig", str(kubeconfig), "--no-harvester")


def definition(*arguments: str) -> Obj:
    (found,) = objects(call(*arguments, "-o", "definition"))
    assert check(found) == []
    return dict(found)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    file = tmp_path / "harvester.yaml"
    file.write_text(KUBECONFIG)
    return file
