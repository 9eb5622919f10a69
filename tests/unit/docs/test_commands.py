"""Commands in the documentation are taken out of it: shells can read them, they exist, and what costs nothing is run.

`tests/e2e/test_docs_tools.py` asks helm and clusterctl for theirs; docs/fleet-addons.md and docs/quick-start.md have
tests of their own, which do what the pages say.
"""

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from commands.main import cli
from tests.support import doccommands
from tools.release.__main__ import contents

pytestmark = pytest.mark.unit

BLOCKS = [(page, block) for page in doccommands.PAGES for block in doccommands.blocks(page)]
COMMANDS = [(page, words) for page, block in BLOCKS for words in doccommands.commands(block)]
# Programs of a Unix, in the guest or next to kubectl, and of those that install; ours is `caphv`.
PROGRAMS = {
    *("kubectl", "kubectl-harvester", "clusterctl", "helm", "make", "caphv", "git", "docker", "curl", "jq", "base64"),
    *("python", ".venv/bin/python", "export", "alias", "for", "done", "true", "cd", ".", "mkdir", "rm", "cat", "ls"),
    *("sed", "grep", "tar", "date", "etcdctl", "rke2", "lsmod", "modprobe", "openssl", "cosign", "gh", "sha256sum"),
    *("cut", "kill", "head", "xargs", "while", "set", "cp", "awk", ".venv/bin/caphv"),
}
VERBS = {
    *("annotate", "api-resources", "apply", "create", "delete", "describe", "edit", "exec", "explain", "get", "label"),
    *("kustomize", "logs", "patch", "port-forward", "replace", "rollout", "scale", "wait"),
    *("caphv", "krew"),  # plugins
}
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: harvester
clusters: [{name: harvester, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: caphv, user: {token: example}}]
contexts: [{name: harvester, context: {cluster: harvester, user: caphv}}]
"""
# What pages make before they use it, or take from their reader.
MADE = re.compile(
    r"-|/.*|~/.*|(harvester|class|cluster|first|machine|management|production)\.yaml"
    r"|clusters/.*|FILE|substituted.*|https://.*"
)


def test_blocks_are_found() -> None:
    assert {"README.md", "installation.md", "migration.md", "backup-and-restore.md", "troubleshooting.md"} <= {
        page.name for page, _ in BLOCKS
    }
    assert len(COMMANDS) > 100


def test_shells_can_read_them() -> None:
    for page, block in BLOCKS:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{page.name}: {done.stderr}\n{block}"


def test_programs_exist() -> None:
    assert [f"{page.name}: {' '.join(words)}" for page, words in COMMANDS if not known(words)] == []


def known(words: list[str]) -> bool:
    name, *rest = words
    if name.startswith("kubectl"):
        verb = next(word for word in rest if not word.startswith("-") and word not in after_options(words))
        return verb in VERBS
    return name.removesuffix("()") in PROGRAMS


def after_options(words: list[str]) -> set[str]:
    """Values of the options that may come before kubectl's verb."""
    return {after for word, after in itertools.pairwise(words) if word in ("-n", "--namespace", "--kubeconfig")}


def test_files_are_there(checkout: Path) -> None:
    """In the checkout, in a release, or among those that a page makes or takes from its reader."""
    released = {f"out/{name}" for name in contents()}
    named = [(page.name, name) for page, words in COMMANDS for name in files(words)]
    assert len(named) > 5
    missing = [
        f"{page}: {name}"
        for page, name in named
        if name not in released and not MADE.fullmatch(name) and not (checkout / name).exists()
    ]
    assert missing == []


def files(words: list[str]) -> Iterator[str]:
    """Files that kubectl and helm are given."""
    if words[0] == "kubectl":
        yield from (after for word, after in itertools.pairwise(words) if word in ("-f", "-k"))
    elif words[0] == "helm" and words[1] in ("install", "upgrade"):
        yield words[3]


def test_an_upgrade_with_helm_keeps_what_another_command_has_set() -> None:
    """With `--set` alone, Helm resets all other values to the defaults of the chart."""
    upgrades = [words for _, words in COMMANDS if words[:2] == ["helm", "upgrade"]]
    assert len(upgrades) >= 3
    assert [" ".join(words) for words in upgrades if "--reset-then-reuse-values" not in words] == []


def test_commands_of_ours_have_help() -> None:
    """Options and commands are checked by test_docs; here each is really called."""
    for words in (words for _, words in COMMANDS if words[0] == "caphv"):
        path: list[str] = []
        command: click.Command = cli
        for word in words[1:]:
            found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
            if found is None:
                break
            command, path = found, [*path, word]
        done = CliRunner().invoke(cli, [*path, "--help"])
        assert done.exit_code == 0, " ".join(words)
        assert "Usage:" in done.output


def test_commands_of_validation_do_what_they_say(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = checkout / "examples" / "rke2-pools.yaml"
    (tmp_path / "clusters").mkdir()
    for target in ("cluster.yaml", "clusters/one.yaml", "production.yaml"):
        shutil.copy(example, tmp_path / target)
    found = [words for page, words in COMMANDS if page.name == "validation.md" and words[0] == "caphv"]
    assert len(found) >= 4
    for words in found:
        arguments = words[1 : words.index(">")] if ">" in words else words[1:]
        done = CliRunner().invoke(cli, arguments, input=example.read_text() if "-" in arguments else None)
        assert done.exit_code == 0, f"{' '.join(words)}\n{done.output}"
        assert done.output


def test_commands_of_the_generator_do_what_they_say(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that need no answers and no cluster; what would be applied is printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "harvester.yaml").write_text(KUBECONFIG)
    page = (checkout / "docs" / "gitops.md").read_text(encoding="utf-8")
    definition = re.search(r"```yaml\n(apiVersion: caphv\.io/.*?)```", page, re.DOTALL)
    assert definition
    (tmp_path / "production.yaml").write_text(definition[1])
    found = [words for _, words in COMMANDS if words[:2] == ["caphv", "generate"] and "--interactive" not in words]
    offline = [list(itertools.takewhile(lambda word: word != ">", words[1:])) for words in found]
    offline = [[word for word in words if word != "--apply"] for words in offline]
    assert len(offline) >= 4
    for arguments in offline:
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, f"{' '.join(arguments)}\n{done.output}"
        assert {"Cluster", "HarvesterCluster"} & {obj["kind"] for obj in objects(done.stdout)}


def objects(text: str) -> list[dict[str, Any]]:
    """Objects of a stream of YAML, or of a list in JSON."""
    found = [obj for obj in yaml.safe_load_all(text) if obj]
    return [item for obj in found for item in (obj if isinstance(obj, list) else obj.get("items", [obj]))]


def test_the_check_finds_what_is_wrong() -> None:
    block = "for x in $(kubectl get vm); do  # why\n  caphv sideways -f <<'Y' | cat\nit: 'x\nY\ndone\n"
    assert list(doccommands.commands(block)) == [
        ["for", "x", "in", "substituted"],
        ["caphv", "sideways", "-f"],
        ["cat"],
        ["done"],
        ["kubectl", "get", "vm"],
    ]
