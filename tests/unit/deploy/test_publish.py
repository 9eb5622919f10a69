"""What a release pushes and signs, in which order, with programs in place of docker and cosign."""

import hashlib
import json
import re
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.support.image import stages
from tools.release import components
from tools.release.__main__ import project_version
from tools.release.publish import main

pytestmark = pytest.mark.unit

# Writes down how it was called, and what docker would write.
PROGRAM = """\
#!{python}
import json, pathlib, sys
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
folder = pathlib.Path({folder!r})
with open(folder / "calls", "a") as calls:
    calls.write(json.dumps([name, *words]) + "\\n")
flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
if (folder / "broken").exists() and (folder / "broken").read_text() in words:
    sys.exit(1)
if "metadata-file" in flags:
    digest = "sha256:" + {{"controller": "c", "packager": "d"}}[flags["target"]] * 64
    pathlib.Path(flags["metadata-file"]).write_text(json.dumps({{"containerimage.digest": digest}}))
elif "output" in flags:
    for platform in flags["platform"].split(","):
        place = pathlib.Path(flags["output"].partition("dest=")[2], platform.replace("/", "_"))
        place.mkdir(parents=True, exist_ok=True)
        (place / "sbom.cdx.json").write_text(json.dumps([flags["target"], platform]))
"""
REPOSITORY = "registry.example.com/caphv"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("docker", "cosign"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(PROGRAM.format(python=sys.executable, folder=str(tmp_path)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / f"caphv-{project_version()}-py3-none-any.whl").write_bytes(b"the wheel")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("COSIGN_KEY", raising=False)
    return tmp_path


def publish(folder: Path, *more: str) -> Result:
    (wheel,) = (folder / "wheel").iterdir()
    arguments = [f"--repository={REPOSITORY}", f"--wheel={wheel}", f"--output={folder / 'out'}", *more]
    return CliRunner().invoke(main, arguments)


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def test_images_are_pushed_then_signed_and_attested_by_digest(folder: Path) -> None:
    result = publish(folder)
    assert result.exit_code == 0, result.output
    tag, out = f"{REPOSITORY}:v{project_version()}", folder / "out"
    expected: list[list[str]] = []
    for target, name, letter in (("controller", tag, "c"), ("packager", f"{tag}-packager", "d")):
        pinned = f"{name}@sha256:{letter * 64}"
        build = ["docker", "buildx", "build", "--platform=linux/amd64,linux/arm64"]
        what = ["--provenance=mode=max", "--sbom=true", f"--metadata-file={out / target}.json", "--push", "."]
        expected += [
            [*build, f"--target={target}", f"--tag={name}", *what],
            [*build, f"--target={target}-bill", f"--output=type=local,dest={out / target}-bills", "."],
            ["cosign", "sign", "--yes", "--recursive", pinned],
        ]
        for platform in ("amd64", "arm64"):
            bill = out / f"sbom-{target}-linux-{platform}.cdx.json"
            assert json.loads(bill.read_text()) == [f"{target}-bill", f"linux/{platform}"]
            expected.append(["cosign", "attest", "--yes", "--type=cyclonedx", f"--predicate={bill}", pinned])
    bundle = str(out / "SHA256SUMS.sigstore.json")
    expected.append(["cosign", "sign-blob", "--yes", "--bundle", bundle, str(out / "SHA256SUMS")])
    assert calls(folder) == expected


def test_files_name_the_images_that_were_pushed(folder: Path) -> None:
    assert publish(folder).exit_code == 0
    tag = f"{REPOSITORY}:v{project_version()}"
    for file, image in (
        ("caphv.yaml", f"{tag}@sha256:{'c' * 64}"),
        ("infrastructure-components.yaml", f"{tag}@sha256:{'c' * 64}"),
        ("packager.yaml", f"{tag}-packager@sha256:{'d' * 64}"),
    ):
        assert re.findall(r"^\s+image: (.+)$", (folder / "out" / file).read_text(), re.MULTILINE) == [image]


def test_check_sums_cover_all_files_the_wheel_and_the_bills(folder: Path) -> None:
    assert publish(folder).exit_code == 0
    lines = (folder / "out" / "SHA256SUMS").read_text().splitlines()
    found = {line.split("  ")[1]: line.split("  ")[0] for line in lines}
    for name, digest in found.items():
        assert hashlib.sha256((folder / "out" / name).read_bytes()).hexdigest() == digest
    wheel = f"caphv-{project_version()}-py3-none-any.whl"
    assert {wheel, "caphv.krew.yaml", "sbom-controller-linux-arm64.cdx.json", "caphv.yaml"} <= found.keys()
    assert "SHA256SUMS" not in found


def test_plugin_for_headlamp_is_a_file_of_the_release_if_it_was_built(folder: Path) -> None:
    plugin = folder / "out" / "caphv-headlamp"
    plugin.mkdir(parents=True)
    (plugin / "main.js").write_text("// built")
    (plugin / "package.json").write_text(json.dumps({"version": project_version()}))
    assert publish(folder).exit_code == 0
    name = f"caphv-headlamp-{project_version()}.tar.gz"
    with tarfile.open(folder / "out" / name) as archive:
        assert archive.getnames() == ["caphv-headlamp/main.js", "caphv-headlamp/package.json"]
    assert name in (folder / "out" / "SHA256SUMS").read_text()


def test_plugin_of_another_version_is_not_published(folder: Path) -> None:
    plugin = folder / "out" / "caphv-headlamp"
    plugin.mkdir(parents=True)
    (plugin / "package.json").write_text('{"version": "0.0.1"}')
    result = publish(folder)
    assert result.exit_code == 1
    assert "has version 0.0.1" in result.output
    assert "make headlamp" in result.output
    assert not (folder / "calls").exists()


def test_nothing_is_signed_that_was_not_pushed(folder: Path) -> None:
    (folder / "broken").write_text("--push")
    result = publish(folder)
    assert result.exit_code == 1
    assert "docker failed" in result.output
    assert [call[0] for call in calls(folder)] == ["docker"]
    assert not (folder / "out" / "SHA256SUMS").exists()


def test_dry_run_prints_the_same_commands_and_does_nothing(folder: Path) -> None:
    result = publish(folder, "--dry-run")
    assert result.exit_code == 0, result.output
    assert not (folder / "calls").exists()
    assert not (folder / "out").exists()
    printed = result.output.splitlines()
    assert publish(folder).exit_code == 0
    assert [re.sub(r"sha256:\w+", "", line) for line in printed] == [
        re.sub(r"sha256:\w+", "", " ".join(call)) for call in calls(folder)
    ]


def test_own_key_signs_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSIGN_KEY", "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----")
    assert publish(folder).exit_code == 0
    signed = [call for call in calls(folder) if call[0] == "cosign"]
    assert len(signed) == 7
    assert all("--key env://COSIGN_KEY" in " ".join(call) for call in signed)
    assert "BEGIN" not in (folder / "calls").read_text()


def test_dockerfile_has_the_stages_and_bases_by_digest(checkout: Path) -> None:
    dockerfile = (checkout / "Dockerfile").read_text()
    found = stages(dockerfile)
    assert {"controller", "controller-bill", "packager", "packager-bill"} <= found.keys()
    for target in ("controller", "packager"):
        (line,) = [line for line in found[f"{target}-bill"] if line.startswith("COPY ")]
        assert line.endswith("sbom.cdx.json /")
    bases = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - found.keys()
    assert bases == {"python:${PYTHON}", "scratch"}
    assert re.search(r"^ARG PYTHON=\S+@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)


def test_workflow_publishes_tags_with_an_identity_to_sign_with(checkout: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load((checkout / ".github" / "workflows" / "release.yaml").read_text())
    # YAML 1.1 reads `on` as true.
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    job = workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert job["permissions"]["id-token"] == "write"
    steps = [step.get("run", step.get("uses", "")) for step in job["steps"]]
    (publishing,) = [number for number, step in enumerate(steps) if "tools.release.publish" in step]
    assert "--dry-run" not in steps[publishing]
    (provenance,) = [number for number, step in enumerate(steps) if "attest-build-provenance" in step]
    assert provenance > publishing
    uses = [step["uses"] for step in job["steps"] if "uses" in step]
    assert [each for each in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []
    assert components.IMAGE.startswith("ghcr.io/")
