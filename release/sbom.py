"""Bills of materials as CycloneDX 1.6: of the Python packages of a version, and of all packages in an image.

`python -m release.sbom` prints the bill of the system that it runs on, with its Debian packages. This module only uses
the standard library, because the image build runs it.
"""

import json
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from release.lock import Package

_FIELDS = "${Package}\t${Version}\t${Architecture}\n"


@dataclass(frozen=True, order=True)
class Debian:
    """An installed Debian package."""

    name: str
    version: str
    architecture: str

    @property
    def status(self) -> str:
        """What dpkg knows of it, for scanners of the image."""
        return _dpkg("--status", f"{self.name}:{self.architecture}").stdout


def bill(needed: list[Package], version: str) -> dict[str, Any]:
    """CycloneDX document of a version of caphv and its dependencies; reproducible."""
    own = f"pkg:pypi/caphv@{version}"
    components = [_component(package) for package in needed]
    edges = [{"ref": own, "dependsOn": [_purl(package) for package in needed if "caphv" in package.needed_by]}]
    for package in needed:
        uses = [_purl(other) for other in needed if package.name in other.needed_by]
        edges.append({"ref": _purl(package), "dependsOn": uses})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{own} {components}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "caphv",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": edges,
    }


def _purl(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Package) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        # A package has a file, and so a hash, per platform.
        "properties": [{"name": "caphv:file-sha256", "value": digest} for digest in package.hashes],
    }
    if package.marker:
        component["properties"].append({"name": "caphv:marker", "value": package.marker})
    return component


def installed() -> list[Debian]:
    """All Debian packages of this system."""
    return _debian(())


def owners(paths: Iterable[Path]) -> list[Debian]:
    """The Debian packages that files of this system are from; files of no package are ignored."""
    # Packages name the folders from before /lib and /usr/lib became one.
    names = {str(path) for path in paths} | {str(path.resolve()) for path in paths}
    names |= {name.removeprefix("/usr") for name in names}
    found = _dpkg("--search", *sorted(names), check=False).stdout.splitlines()
    packages = {name for line in found for name in line.rpartition(": ")[0].split(", ")}
    return _debian(sorted(packages)) if packages else []


def distributions(path: Sequence[str]) -> list[tuple[str, str]]:
    """Name and version of the Python packages in these folders."""
    found = {(each.metadata["Name"].lower(), each.version) for each in metadata.distributions(path=list(path))}
    return sorted(found)


def image_bill(debian: Iterable[Debian], python: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """CycloneDX document of an image: the interpreter that runs this, Python and Debian packages; reproducible."""
    release = platform.freedesktop_os_release()
    distribution = f"{release['ID']}-{release.get('VERSION_ID', '')}"
    interpreter = platform.python_version()
    components = [
        _listed("platform", "python", interpreter, f"pkg:generic/python@{interpreter}"),
        *(
            _listed("library", name, version, f"pkg:pypi/{name.replace('_', '-')}@{version}")
            for name, version in python
        ),
        *(_listed("library", each.name, each.version, _deb_purl(each, release["ID"], distribution)) for each in debian),
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, str(components))}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "image", "name": "caphv"}},
        "components": components,
    }


def _debian(names: Sequence[str]) -> list[Debian]:
    lines = _dpkg("--show", f"--showformat={_FIELDS}", *names).stdout.splitlines()
    return sorted(Debian(*line.split("\t")) for line in lines)


def _dpkg(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=check)


def _deb_purl(package: Debian, vendor: str, distribution: str) -> str:
    version = package.version.replace("+", "%2B").replace(":", "%3A")
    return f"pkg:deb/{vendor}/{package.name}@{version}?arch={package.architecture}&distro={distribution}"


def _listed(kind: str, name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(image_bill(installed(), distributions(sys.path)), indent=2) + "\n")
