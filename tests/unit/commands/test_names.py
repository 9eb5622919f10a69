"""Names of objects on a command line: one that cannot be a name is wrong usage, in every command."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from commands.main import cli
from tests.support import kubeconfigs

pytestmark = pytest.mark.unit

NAMED = [
    ["identity", "rotate", "NAME"],
    ["doctor", "--harvester=NAME"],
    ["doctor", "NAME"],
    ["status", "NAME"],
    ["tree", "NAME"],
    ["delete", "NAME"],
    ["scale", "NAME", "--workers", "2"],
    ["upgrade", "NAME", "--version", "v1.36.2"],
    ["etcd", "members", "NAME"],
    ["etcd", "remove", "NAME"],
    ["support-bundle", "NAME"],
    ["backup", "NAME", "nowhere"],
    ["move", "NAME", "--to-context", "other"],
    ["bundles", "trace", "NAME"],
    ["packager", "sync", "--folder", "nowhere", "--confirm", "NAME"],
]


# An empty option is one that is not given.
CASES = [
    (words, name) for words in NAMED for name in ("", "a/", "a/b/c", "/") if name or "--harvester=NAME" not in words
]


@pytest.mark.parametrize(("words", "name"), CASES, ids=str)
def test_what_cannot_be_a_name_is_wrong_usage(words: list[str], name: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfigs.valid()))
    result = CliRunner().invoke(
        cli, [word.replace("NAME", name) for word in words], env={"KUBECONFIG": str(file)}, prog_name="caphv"
    )
    assert result.exit_code == 2, result.output
    assert f"{name!r} is n" in result.output
    assert "NAMESPACE/NAME" in result.output


def test_a_cloud_config_needs_a_name(tmp_path: Path) -> None:
    file = tmp_path / "harvester.yaml"
    file.write_text(yaml.safe_dump(kubeconfigs.valid()))
    for verb in ("create", "renew", "revoke"):
        for name, namespace in (("", "shop-vms"), ("shop", ""), ("a/b", "shop-vms")):
            words = ["cloud-config", verb, name, "-n", namespace, "--harvester-kubeconfig", str(file), "--yes"]
            result = CliRunner().invoke(cli, words, prog_name="caphv")
            assert result.exit_code == 2, result.output
            assert "is not the name of an object" in result.output
