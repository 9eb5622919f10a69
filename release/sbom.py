"""The bill of materials: the Python packages in the image, as CycloneDX 1.6."""

import uuid
from typing import Any

from release.lock import Package


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
