"""Rules about images that are found by the version of a machine, or imported for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from caphv.api import bootimage
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import CLUSTERS, MACHINES, Subject
from webhooks.rules.volumes import IMAGE

RULES = Rules()


@RULES.rule(
    "image-lookup",
    MACHINES,
    "`imageLookup` must only be set for disks of type `image`, and without `imageName`.",
    "volumes[].imageLookup",
    "volumes[].imageName",
    "volumes[].volumeType",
    example=(
        "volumes: [{volumeType: image, imageName: default/opensuse, imageLookup: {format: "
        "'default/opensuse-{{.K8sVersion}}'}, volumeSize: 40Gi}]"
    ),
)
def _image_lookup(subject: Subject) -> Iterator[Finding]:
    for volume in subject.spec.at("volumes").each():
        lookup = volume.at("imageLookup")
        if lookup.value is None:
            continue
        if volume.at("volumeType").value != IMAGE:
            yield lookup.forbidden("an empty disk has no image: remove it, or use type image")
        elif volume.at("imageName").present:
            yield lookup.forbidden("imageName names the image already: remove one of them")


@RULES.rule(
    "image-lookup-base-os",
    MACHINES,
    "`imageLookup` must have `baseOS` if its format contains `{{.BaseOS}}`.",
    "volumes[].imageLookup.format",
    "volumes[].imageLookup.baseOS",
    example=(
        "volumes: [{volumeType: image, imageLookup: {format: '{{.BaseOS}}-{{.K8sVersion}}'}, "
        "volumeSize: 40Gi}]"
    ),
)
def _image_lookup_base_os(subject: Subject) -> Iterator[Finding]:
    for volume in subject.spec.at("volumes").each():
        lookup = volume.at("imageLookup")
        base_os = lookup.at("baseOS")
        if base_os.value is None and bootimage.needs_base_os(lookup.at("format").text):
            yield base_os.required(
                "format contains {{.BaseOS}}: name the operating system, for example sles-15-sp7"
            )


@RULES.rule(
    "image-import-iso",
    CLUSTERS,
    "The URL of an image must not lead to an ISO, which starts an installer: machines need cloud "
    "images.",
    "images[].url",
    example=(
        "images: [{name: default/sles-15, url: 'https://images.example.com/sles-15.iso', checksum: "
        f"{'a' * 128}}}]"
    ),
)
def _image_import_iso(subject: Subject) -> Iterator[Finding]:
    yield from _refuse_urls(subject, bootimage.is_iso, bootimage.ISO_REFUSED)


@RULES.rule(
    "image-import-host",
    CLUSTERS,
    "The URL of an image must not lead to a loopback or link-local address.",
    "images[].url",
    example=(
        f"images: [{{name: sles-15, url: 'https://127.0.0.1/a.qcow2', checksum: {'a' * 128}}}]"
    ),
)
def _image_import_host(subject: Subject) -> Iterator[Finding]:
    yield from _refuse_urls(subject, bootimage.leads_inside, bootimage.INSIDE_REFUSED)


def _refuse_urls(
    subject: Subject, is_refused: Callable[[str], bool], detail: str
) -> Iterator[Finding]:
    for image in subject.spec.at("images").each():
        url = image.at("url")
        if is_refused(url.text):
            # The value is left out, because a query may grant a download.
            yield Finding(url.path, Fault.INVALID, detail)


@RULES.rule(
    "image-import-unique",
    CLUSTERS,
    "Names of images must be unique, also with the target namespace.",
    "images[].name",
    "targetNamespace",
    example=(
        "images: [{name: sles-15, url: 'https://images.example.com/a.qcow2', checksum: "
        f"{'a' * 128}}}, {{name: sles-15, url: 'https://images.example.com/b.qcow2', checksum: "
        f"{'b' * 128}}}]"
    ),
)
def _image_import_unique(subject: Subject) -> Iterator[Finding]:
    target = subject.spec.at("targetNamespace").text
    names: set[str] = set()
    for image in subject.spec.at("images").each():
        name = image.at("name")
        qualified = bootimage.qualified(name.text, target)
        if name.text and qualified in names:
            yield name.problem(Fault.DUPLICATE, "another image has this name: remove one of them")
        names.add(qualified)
