"""Bills of materials as CycloneDX 1.6: of a version's Python packages, and of an image's packages.

`python -m tools.release.sbom` prints the bill of the system that it runs on, with its Debian
packages. This module only uses the standard library, because the image build runs it.
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

from tools.release.lock import Package

Json = dict[str, Any]

_FIELDS = "${Package}\t${Version}\t${Architecture}\n"


@dataclass(frozen=True, order=True)
class Debian:
    """An installed Debian package."""

    name: str
    version: str
    architecture: str

    @property
    def status(self) -> str:
        """The record of dpkg, for scanners of the image."""
        return _dpkg("--status", f"{self.name}:{self.architecture}").stdout


def bill(needed: list[Package], version: str) -> Json:
    """Return the document of a version of caphv and its dependencies; reproducible."""
    product = f"pkg:pypi/caphv@{version}"
    components = [_component(package) for package in needed]

    direct = [_purl(package) for package in needed if "caphv" in package.needed_by]
    edges = [{"ref": product, "dependsOn": direct}]
    for package in needed:
        uses = [_purl(other) for other in needed if package.name in other.needed_by]
        edges.append({"ref": _purl(package), "dependsOn": uses})

    subject = {
        "type": "application",
        "bom-ref": product,
        "name": "caphv",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    return {
        **_head(f"{product} {components}", subject),
        "components": components,
        "dependencies": edges,
    }


def _head(content: str, subject: Json) -> Json:
    # The serial number is derived from the content, so the same packages give the same document.
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": subject},
    }


def _purl(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Package) -> Json:
    component: Json = {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        # A package has a file for each platform, and each file has a hash.
        "properties": [{"name": "caphv:file-sha256", "value": digest} for digest in package.hashes],
    }
    if package.marker:
        component["properties"].append({"name": "caphv:marker", "value": package.marker})
    return component


def debian_packages(*names: str) -> list[Debian]:
    """Return the installed Debian packages with these names, or all of them."""
    lines = _dpkg("--show", f"--showformat={_FIELDS}", *names).stdout.splitlines()
    return sorted(Debian(*line.split("\t")) for line in lines)


def owners(paths: Iterable[Path]) -> list[Debian]:
    """Return the Debian packages that installed these files, if any."""
    # Packages name the folders as they were before /lib and /usr/lib became one.
    files = {str(path) for path in paths} | {str(path.resolve()) for path in paths}
    files |= {name.removeprefix("/usr") for name in files}

    # dpkg fails if any of the files does not belong to a package.
    lines = _dpkg("--search", *sorted(files), check=False).stdout.splitlines()
    names = {name for line in lines for name in line.rpartition(": ")[0].split(", ")}
    return debian_packages(*sorted(names)) if names else []


def distributions(path: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and version of the Python packages in these folders."""
    packages = metadata.distributions(path=list(path))
    return sorted({(package.metadata["Name"].lower(), package.version) for package in packages})


def image_bill(debian: Iterable[Debian], python: Iterable[tuple[str, str]]) -> Json:
    """Return the document of an image: interpreter, Python and Debian packages; reproducible."""
    release = platform.freedesktop_os_release()
    distribution = f"{release['ID']}-{release.get('VERSION_ID', '')}"

    # (type, name, version, purl)
    interpreter = platform.python_version()
    rows = [("platform", "python", interpreter, f"pkg:generic/python@{interpreter}")]
    for name, version in python:
        purl = f"pkg:pypi/{name.replace('_', '-')}@{version}"
        rows.append(("library", name, version, purl))
    for package in debian:
        purl = _deb_purl(package, release["ID"], distribution)
        rows.append(("library", package.name, package.version, purl))

    components = [
        {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
        for kind, name, version, purl in rows
    ]
    subject: Json = {"type": "container", "bom-ref": "image", "name": "caphv"}
    return {**_head(str(components), subject), "components": components}


def _dpkg(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=check)


def _deb_purl(package: Debian, vendor: str, distribution: str) -> str:
    version = package.version.replace("+", "%2B").replace(":", "%3A")
    qualifiers = f"arch={package.architecture}&distro={distribution}"
    return f"pkg:deb/{vendor}/{package.name}@{version}?{qualifiers}"


if __name__ == "__main__":
    document = image_bill(debian_packages(), distributions(sys.path))
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
