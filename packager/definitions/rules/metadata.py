"""Rules about labels and annotations."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import names, parking
from caphv.api.object import Obj
from caphv.api.parkschedule import ScheduleError, load_zone, parse_schedule
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

ADDONS_LABEL = "caphv.io/addons"
RULES = Rules()

_RESERVED_LABELS = {
    names.CNI_LABEL: "spec.addons.cni.name",
    names.CSI_LABEL: "spec.addons.csi.enabled",
    names.AUTO_IMPORT_LABEL: "spec.rancherAutoImport",
    ADDONS_LABEL: "spec.addonDelivery",
}
_RESERVED_ANNOTATIONS = {
    names.ADDON_VALUES_ANNOTATION: "spec.addons",
    names.OLD_CNI_MTU_ANNOTATION: "spec.addons.cni.mtu",
    names.OLD_CNI_ENCAPSULATION_ANNOTATION: "spec.addons.cni.encapsulation",
    names.OLD_CNI_BGP_ANNOTATION: "spec.addons.cni.bgp",
}


@RULES.rule(
    "definition-reserved",
    KINDS,
    "Labels and annotations that are derived from the spec, and the provider's records of a parked "
    "Cluster, must not be set by hand.",
)
def _check_reserved_names(obj: Obj) -> Iterator[Finding]:
    metadata = obj["metadata"]
    for part, reserved in (("labels", _RESERVED_LABELS), ("annotations", _RESERVED_ANNOTATIONS)):
        for name in sorted(reserved.keys() & metadata.get(part, {}).keys()):
            detail = f"is derived from {reserved[name]}: set that instead, and remove this"
            yield Finding(("metadata", part, name), Fault.FORBIDDEN, detail)
    for name in sorted(parking.RECORDS & metadata.get("annotations", {}).keys()):
        detail = "is a record of the provider about a Cluster that it parks: remove this"
        yield Finding(("metadata", "annotations", name), Fault.FORBIDDEN, detail)


@RULES.rule(
    "definition-park-schedule",
    KINDS,
    "Annotation `caphv.io/park-schedule` must have windows of days and times, and one time zone.",
)
def _check_park_schedule(obj: Obj) -> Iterator[Finding]:
    text = obj["metadata"].get("annotations", {}).get(names.PARK_SCHEDULE_ANNOTATION)
    if text is None:
        return
    try:
        load_zone(parse_schedule(text).zone)
    except ScheduleError as error:
        path: FieldPath = ("metadata", "annotations", names.PARK_SCHEDULE_ANNOTATION)
        yield Finding(path, Fault.INVALID, error.detail, value=text)
