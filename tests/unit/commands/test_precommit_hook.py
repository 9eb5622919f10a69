"""The hook that this project publishes for pre-commit: it names all files of a repository, also those of others."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from commands.main import cli
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

CLUSTER = """\
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: HarvesterCluster
metadata: {name: demo, namespace: clusters}
spec:
  targetNamespace: demo
  identitySecret: {name: harvester-identity, namespace: clusters}
  loadBalancerConfig: {ipamType: dhcp}
"""
OTHERS = {
    ".pre-commit-config.yaml": "repos: []\n",
    ".hidden.yaml": "- a: 1\n  b: [\n",
    ".github/workflows/check.yaml": "on: push\njobs: {}\n",
    "clusters/fleet.yaml": "defaultNamespace: x\n",
    "clusters/kustomization.yaml": "resources: [demo.yaml]\n",
    "package.json": '{"name": "x", "version": "1.0.0"}',
    "playbook.yaml": "- hosts: all\n  tasks: []\n",
    "values.yml": "replicas: 2\n",
    "workflow.yaml": "on: push\njobs: {}\n",
    "empty.yaml": "# nothing yet\n",
}


def written(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return sorted(files)


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["validate", *arguments], prog_name="caphv")


def hook(*files: str) -> Result:
    """The published hook of pre-commit, which names all files of the repository."""
    (published,) = yaml.safe_load((CHECKOUT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    program, *arguments = published["entry"].split()
    assert (program, published.get("pass_filenames", True)) == ("caphv", True)
    return CliRunner().invoke(cli, [*arguments, *files], prog_name="caphv")


def test_the_hook_skips_files_that_are_not_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = written(tmp_path, OTHERS)
    result = hook(*names)
    assert result.exit_code == 0, result.output
    result = hook(*names, *written(tmp_path, {"clusters/demo.yaml": CLUSTER}))
    assert result.exit_code == 0, result.output
    assert "1 object in" in result.output
    assert validate(".pre-commit-config.yaml").exit_code == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CLUSTER.replace("dhcp", "dhpc"), "schema-enum"),
        (CLUSTER.replace("kind: HarvesterCluster\n", ""), "kind: Required value"),
        (CLUSTER.replace("apiVersion", "apiVersoin"), "apiVersion: Required value"),
        ("- " + CLUSTER.replace("\n", "\n  "), "this is a list"),
        ("a: [\n", "yaml-syntax"),
    ],
)
def test_the_hook_reports_what_is_wrong_next_to_other_files(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = hook(*written(tmp_path, OTHERS | {"clusters/demo.yaml": text}))
    assert result.exit_code == 1
    assert "clusters/demo.yaml:" in result.output
    assert expected in result.output


def test_the_hook_and_the_folder_agree_on_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, OTHERS)
    result = validate(".")
    assert result.exit_code == 0, result.output


def test_a_file_that_does_not_exist_is_no_other_file(tmp_path: Path) -> None:
    assert validate("--skip-other-files", str(tmp_path / "absent.yaml")).exit_code == 2
