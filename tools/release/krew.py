"""The plugin `kubectl caphv` for krew: a manifest, and an archive with what krew installs.

caphv is a Python package with compiled dependencies, so the archive has a launcher instead of a
program. The launcher runs the wheel next to it with uv or pipx, which keep its dependencies in
their cache. krew compares the archive, and so the wheel, with the hash in the manifest.
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
# krew links to this file from a folder on the PATH; the wheel is next to the file itself.
self="$0"
while [ -L "$self" ]; do
  link="$(readlink "$self")"
  case "$link" in
    /*) self="$link" ;;
    *) self="${{self%/*}}/$link" ;;
  esac
done
wheel="${{CAPHV_WHEEL:-${{self%/*}}/{wheel}}}"
if command -v uv >/dev/null 2>&1; then
  exec uv tool run --quiet --from "$wheel" {name} "$@"
elif command -v pipx >/dev/null 2>&1; then
  exec pipx run --quiet --spec "$wheel" {name} "$@"
fi
echo "kubectl caphv needs uv (https://docs.astral.sh/uv/) or pipx (https://pipx.pypa.io/) on the \
PATH" >&2
exit 1
"""


def files(version: str, license_file: Path, wheel: Path) -> dict[str, bytes]:
    """Return archive and manifest by file name, reproducible byte for byte.

    Raises `ValueError` if the wheel is of another version.
    """
    if wheel.name != wheel_name(version):
        expected = wheel_name(version)
        raise ValueError(f"{wheel} is not {expected}, the wheel of this version: run `make wheel`")

    content = {
        NAME: launcher(version).encode(),
        wheel.name: wheel.read_bytes(),
        "LICENSE": license_file.read_bytes(),
    }
    archive_name = f"{NAME}-v{version}.tar.gz"
    archive = _archive(content)
    manifest = _manifest(version, archive_name, archive, list(content))
    return {archive_name: archive, "caphv.krew.yaml": manifest.encode()}


def wheel_name(version: str) -> str:
    """Return the file name of the wheel of a version."""
    return f"caphv-{version}-py3-none-any.whl"


def launcher(version: str) -> str:
    """Return the shell script that krew installs as `kubectl-caphv`."""
    return _LAUNCHER.format(version=version, wheel=wheel_name(version), name=NAME)


def _manifest(version: str, archive_name: str, archive: bytes, names: list[str]) -> str:
    platform = {
        # The launcher is a shell script.
        "selector": {
            "matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]
        },
        "uri": f"{REPOSITORY}/releases/download/v{version}/{archive_name}",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "files": [{"from": name, "to": "."} for name in names],
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
                "Shows clusters on Harvester with what is wrong and what to do, checks everything "
                "they depend on, and\nscales, upgrades, moves and repairs them. Provider: Cluster "
                "API Provider Harvester (CAPHV).\n"
            ),
            "caveats": (
                "Needs uv or pipx on the PATH; the first call downloads the packages that caphv "
                "depends on.\n"
            ),
            "platforms": [platform],
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False, width=1_000)


def _archive(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o755 if name == NAME else 0o644
            tar.addfile(member, io.BytesIO(content))

    # A time in the header would change the hash of the archive with each build.
    return gzip.compress(out.getvalue(), mtime=0)
