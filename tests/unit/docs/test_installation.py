"""docs/installation.md: names and files in its commands are those of the shipped objects and of a release."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import doccommands
from tools.release import krew
from tools.release.__main__ import contents, project_version

pytestmark = pytest.mark.unit


def commands(checkout: Path, *start: str) -> list[list[str]]:
    """Words of the commands of the page that start with these ones."""
    blocks = doccommands.blocks(checkout / "docs" / "installation.md")
    found = [words for block in blocks for words in doccommands.commands(block)]
    return [words for words in found if words[: len(start)] == list(start)]


def test_own_certificate_has_the_names_of_all_services(checkout: Path) -> None:
    """API servers and Prometheus refuse a certificate without the name that they call."""
    prefix = "subjectAltName="
    (names,) = [
        word.removeprefix(prefix).split(",")
        for words in commands(checkout, "openssl")
        for word in words
        if word.startswith(prefix)
    ]
    folder = checkout / "deploy" / "kustomize"
    documents = [obj for path in folder.rglob("*.yaml") for obj in yaml.safe_load_all(path.read_text()) if obj]
    services = [obj["metadata"] for obj in documents if obj["kind"] == "Service"]
    assert len(services) == 3
    assert sorted(names) == sorted(f"DNS:{each['name']}.{each['namespace']}.svc" for each in services)


def test_plugin_is_installed_from_the_files_of_a_release(checkout: Path, tmp_path: Path) -> None:
    """Without `--archive`, krew downloads the archive from a release that does not exist yet."""
    (install,) = commands(checkout, "kubectl", "krew", "install")
    named = dict(word.removeprefix("--").split("=") for word in install[3:])
    wheel = tmp_path / krew.wheel_name(project_version())
    wheel.write_bytes(b"the wheel")
    assert named.keys() == {"manifest", "archive"}
    assert {name.removeprefix("out/") for name in named.values()} <= contents(wheel=wheel).keys()
