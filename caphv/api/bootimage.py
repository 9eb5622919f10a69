"""Images of machines: names that follow from a Kubernetes version, and imports of a cluster. Pure.

The terms of a format are those of other providers of Cluster API (cluster-api-provider-aws:
`GenerateAmiName` in pkg/cloud/services/ec2/ami.go; cluster-api-provider-nutanix:
`NutanixImageLookup` in api/v1beta1). A name has no wildcards, so that two machines of a version
never boot from different images.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from caphv.api.object import Obj, list_at

FORMAT = re.compile(
    r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?"
    r"([-A-Za-z0-9_.]|\{\{ ?[.](BaseOS|K8sVersion) ?\}\})+$"
)
NAME = re.compile(
    r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
CHECKSUM = re.compile(r"^[0-9a-fA-F]{128}$")
URL = re.compile(
    r"^https?://([A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(:[0-9]{1,5})?/[-A-Za-z0-9._~:/?@!$&()*+,;=%\[\]]*$"
)
# Hosts of URLs in lower case that lead to the machine itself, to its link or, in other notations of
# addresses, to who knows where. The CRDs have this pattern, too.
LOCAL = re.compile(
    r"^https?://(([^/:]*[.])?localhost[.]?"
    r"|[0-9]+([.][0-9]+){0,2}[.]?"
    r"|(0[0-9]*|127)([.][0-9]+){3}[.]?|169[.]254([.][0-9]+){2}[.]?"
    r"|[0-9]+([.](0|[1-9][0-9]*))*[.]0[0-9]+([.][0-9]+)*[.]?"
    r"|([0-9]+[.])*0x[0-9a-f]+([.](0x[0-9a-f]+|[0-9]+))*[.]?"
    r"|\[[0:]*1?\]|\[fe[89ab][0-9a-f]:[^\]]*\]|\[(0*:)*:?ffff:[^\]]*\]|\[64:ff9b:[^\]]*\]|\[[^\].]*[.][^\]]*\])[:/]"
)
ISO_REFUSED = "is an ISO, which starts an installer: give a cloud image (qcow2 or raw)"
INSIDE_REFUSED = "leads to the host that downloads it: name a server"
"""Why such URLs are refused. The CRDs have these messages, too."""
_TERM = re.compile(r"\{\{ ?[.](BaseOS|K8sVersion) ?\}\}")
PENDING_IMPORTS = (
    "Harvester is importing the image",
    "Harvester has not created",
    "the image is being deleted",
    "the request for it failed",
    "waiting for Harvester",
)
"""How condition ImagesReady describes an image that may be imported soon; all else is a failure."""
_LONGEST_FORMAT = 256
_LONGEST_URL = 1024
# Harvester makes the display name of an image the value of a label.
_IMAGE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class ImageLookupError(ValueError):
    """A lookup gives no name; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ImageImport:
    """An image that a HarvesterCluster declares.

    :param name: its display name
    :param checksum: SHA-512 of the file, in lower case
    """

    namespace: str
    name: str
    url: str
    checksum: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def object_name(self) -> str:
        """Return the name of the VirtualMachineImage.

        Up to 1.7, Harvester names the StorageClass of an image after the object alone, so that
        images of two namespaces with one name would share a class (harvester#5165). So the name
        depends on the namespace, too, and is the same for all clusters.
        """
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:10]
        readable = re.sub("[^a-z0-9]+", "-", self.name.lower())[:50].strip("-")
        return f"{readable or 'image'}-{digest}"


def needs_base_os(text: str) -> bool:
    """Return whether a format contains the term for the operating system."""
    return "BaseOS" in _terms(text)


def _terms(text: str) -> set[str]:
    return {match[1] for match in _TERM.finditer(text)}


def is_iso(url: str) -> bool:
    """Return whether a URL leads to an ISO, by the end of its path."""
    return url.partition("?")[0].lower().endswith(".iso")


def leads_inside(url: str) -> bool:
    """Return whether the host of a URL is a loopback or link-local address by its spelling.

    A name may have such an address as well, so that this guards against the plain cases only.
    """
    return bool(LOCAL.match(url.lower()))


def look_up(lookup: Mapping[str, Any], version: str) -> str:
    """Return the reference `<namespace>/<name>` or `<name>` of the image that a lookup gives.

    Raises `ImageLookupError`.

    :param lookup: `imageLookup` of a disk
    :param version: version of the Machine, empty for none
    """
    text = lookup.get("format")
    base_os = lookup.get("baseOS") or ""
    if not isinstance(text, str) or len(text) > _LONGEST_FORMAT or not FORMAT.fullmatch(text):
        raise ImageLookupError(
            "format must be a name with {{.K8sVersion}} and {{.BaseOS}}, and an optional namespace "
            "and '/' before it"
        )
    if needs_base_os(text) and not base_os:
        raise ImageLookupError("format contains {{.BaseOS}}: set baseOS")
    if not version and "K8sVersion" in _terms(text):
        raise ImageLookupError("format contains {{.K8sVersion}}: set spec.version of the Machine")

    # Image tags of RKE2 and K3s have a dash for the plus, too, which no label may contain.
    values = {"BaseOS": str(base_os), "K8sVersion": version.removeprefix("v").replace("+", "-")}
    # No value may lead to another namespace, so only the name is filled in.
    namespace, slash, name_format = text.rpartition("/")
    name = _TERM.sub(lambda match: values[match[1]], name_format)
    if not _IMAGE_NAME.fullmatch(name):
        raise ImageLookupError(
            f"gives {name!r}, which cannot be the name of an image: use at most 63 letters, "
            "digits, '-', '_' and '.', with a letter or digit at both ends"
        )
    return f"{namespace}{slash}{name}"


class NamedImages(NamedTuple):
    """A HarvesterMachine with the names of its images, and why lookups give none."""

    machine: Obj
    problems: list[str]


def with_image_names(machine: Obj, version: str) -> NamedImages:
    """Return a HarvesterMachine whose lookups are replaced by names, and why some give none.

    The lookup stays next to the name. A machine without lookups is returned as it is.

    :param version: version of the Machine, empty for none
    """
    volumes = list_at(machine, "spec", "volumes")
    if not any(volume.get("imageLookup") for volume in volumes):
        return NamedImages(machine, [])

    named = []
    problems = []
    for index, volume in enumerate(volumes):
        lookup = volume.get("imageLookup")
        name = volume.get("imageName")
        if isinstance(lookup, dict) and not name:
            try:
                name = look_up(lookup, version)
            except ImageLookupError as error:
                problems.append(f"spec.volumes[{index}].imageLookup: {error}")
        named.append({**volume, "imageName": name} if name else volume)
    return NamedImages({**machine, "spec": {**machine["spec"], "volumes": named}}, problems)


def imports(cluster_spec: Mapping[str, Any]) -> dict[tuple[str, str], ImageImport]:
    """Return the images that a HarvesterCluster declares, by namespace and name.

    Entries with problems are left out.
    """
    target = str(cluster_spec.get("targetNamespace") or "")
    declared: dict[tuple[str, str], ImageImport] = {}
    for entry in _entries(cluster_spec):
        if not _entry_problem(entry):
            namespace, _, name = entry["name"].rpartition("/")
            image = ImageImport(namespace or target, name, entry["url"], entry["checksum"].lower())
            declared.setdefault((image.namespace, image.name), image)
    return declared


def import_problems(cluster_spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield why entries of `images` cannot be imported; admission refuses such entries."""
    target = str(cluster_spec.get("targetNamespace") or "")
    names: set[str] = set()
    for index, entry in enumerate(_entries(cluster_spec)):
        problem = _entry_problem(entry)
        if not problem:
            name = qualified(entry["name"], target)
            problem = (
                f".name: {name} is declared twice: remove one of them" if name in names else ""
            )
            names.add(name)
        if problem:
            yield f"spec.images[{index}]{problem}"


def qualified(name: str, target_namespace: str) -> str:
    """Return `<namespace>/<name>` for the name of an object, which may have no namespace."""
    return name if "/" in name else f"{target_namespace}/{name}"


def _entries(cluster_spec: Mapping[str, Any]) -> list[Any]:
    entries = cluster_spec.get("images")
    return entries if isinstance(entries, list) else []


def _entry_problem(entry: Any) -> str:
    """Return the field of an entry that cannot be used, and the remedy; empty if all can."""
    if not isinstance(entry, dict):
        return ": give name, url and checksum"
    name, url, checksum = (entry.get(field) for field in ("name", "url", "checksum"))
    # The value of a URL is left out, because it may contain a password.
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return (
            ".name: use at most 63 letters, digits, '-', '_' and '.', after an optional namespace"
        )
    if not isinstance(url, str) or len(url) > _LONGEST_URL or not URL.fullmatch(url):
        return ".url: use http or https, and no credentials, blanks or fragment"
    if not isinstance(checksum, str) or not CHECKSUM.fullmatch(checksum):
        return ".checksum: give the SHA-512 checksum of the file, 128 hexadecimal digits"
    return _url_problem(url)


def _url_problem(url: str) -> str:
    if is_iso(url):
        return f".url: {ISO_REFUSED}"
    if leads_inside(url):
        return f".url: {INSIDE_REFUSED}"
    return ""
