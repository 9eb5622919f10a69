"""The plugin `kubectl caphv` for krew: a manifest, and an archive with what krew installs.

caphv is a Python package with compiled dependencies, so the archive has no program of its own but a launcher: it runs
this version's wheel with uv or pipx, which keep it in their cache.
"""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import yaml

REPOSITORY = "https://github.com/rancher-sandbox/cluster-api-provider-harvester"
NAME = "kubectl-caphv"
_LAUNCHER = """\
#!/bin/sh
# Runs caphv {version} as a plugin of kubectl, with uv or pipx.
set -eu
wheel="${{CAPHV_WHEEL:-{wheel}}}"
if command -v uv >/dev/null 2>&1; then
  exec uv tool run --quiet --from "$wheel" {name} "$@"
elif command -v pipx >/dev/null 2>&1; then
  exec pipx run --quiet --spec "$wheel" {name} "$@"
fi
echo "kubectl caphv needs uv (https://docs.astral.sh/uv/) or pipx (https://pipx.pypa.io/) on the PATH" >&2
exit 1
"""


def files(version: str, license_file: Path) -> dict[str, bytes]:
    """Archive and manifest by file name; reproducible byte for byte."""
    archive_name = f"{NAME}-v{version}.tar.gz"
    archive = _archive({NAME: launcher(version).encode(), "LICENSE": license_file.read_bytes()})
    return {archive_name: archive, "caphv.krew.yaml": _manifest(version, archive_name, archive).encode()}


def launcher(version: str) -> str:
    """Shell script that krew installs as `kubectl-caphv`."""
    wheel = f"{REPOSITORY}/releases/download/v{version}/caphv-{version}-py3-none-any.whl"
    return _LAUNCHER.format(version=version, wheel=wheel, name=NAME)


def _manifest(version: str, archive_name: str, archive: bytes) -> str:
    platform = {
        # The launcher is a shell script.
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
        "uri": f"{REPOSITORY}/releases/download/v{version}/{archive_name}",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "files": [{"from": NAME, "to": "."}, {"from": "LICENSE", "to": "."}],
        "bin": NAME,
    }
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "caphv"},
        "spec": {
            "version": f"v{version}",
            "homepage": REPOSITORY,
            "shortDescription": "Operate Cluster API clusters on Harvester",
            "description": (
                "Shows clusters on Harvester with what is wrong and what to do, checks everything they depend on, and\n"
                "scales, upgrades, moves and repairs them. Provider: Cluster API Provider Harvester (CAPHV).\n"
            ),
            "caveats": "Needs uv or pipx on the PATH; the first call downloads the Python package.\n",
            "platforms": [platform],
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False, width=1_000)


def _archive(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if name == NAME else 0o644
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0)
