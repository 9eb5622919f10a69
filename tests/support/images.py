"""Images that a cluster declares, and their simulated files."""

from __future__ import annotations

from caphv.api.object import Obj
from sandbox.harvester.images import content_checksum


def declared(name: str, *, host: str = "images.example.com", right: bool = True) -> Obj:
    """An entry of `spec.images`, with the checksum of its file or another one."""
    url = f"https://{host}/{name.rpartition('/')[2]}.qcow2"
    return {"name": name, "url": url, "checksum": content_checksum(url if right else "another file")}


def by_version(prefix: str) -> Obj:
    """A boot disk with an image by version, in namespace `default`."""
    lookup = {"format": "default/{{.BaseOS}}-{{.K8sVersion}}", "baseOS": prefix}
    return {"volumeType": "image", "imageLookup": lookup, "volumeSize": "40Gi", "bootOrder": 1}
