"""Rules about what must fit the distribution: ClusterClass and version of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

DISTRIBUTIONS = ("rke2", "k3s", "kubeadm")
RULES = Rules()


@RULES.rule(
    "definition-class",
    KINDS,
    "The ClusterClass must fit the distribution, and must not be set with `individualObjects`.",
)
def _check_class(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    path: FieldPath = ("spec", "clusterClass")
    name = spec.get("clusterClass")
    distribution = spec.get("distribution", "rke2")
    if name and spec.get("individualObjects"):
        detail = "must not be set with individualObjects: remove one of them"
        yield Finding(path, Fault.FORBIDDEN, detail)
    # A user's own class may have any name, and create clusters of any distribution.
    others = {f"harvester-{other}" for other in DISTRIBUTIONS if other != distribution}
    if name in others:
        detail = (
            f"does not create clusters of {distribution}: remove the field, and the right class is "
            "used"
        )
        yield Finding(path, Fault.INVALID, detail, value=name)


@RULES.rule(
    "definition-version", KINDS, "The suffix of the version must be one of the distribution."
)
def _check_version(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    version = spec["kubernetesVersion"]
    distribution = spec.get("distribution", "rke2")
    # `rke2r1` and `rke2r2` are releases of one distribution, so the number is no part of its name.
    suffix = version.partition("+")[2].rstrip("0123456789")
    expected = {"rke2": "rke2r", "k3s": "k3s", "kubeadm": ""}[distribution]
    if suffix and suffix != expected:
        detail = (
            f"is not a version of {distribution}: remove the suffix after +, and it is filled in"
        )
        yield Finding(("spec", "kubernetesVersion"), Fault.INVALID, detail, value=version)
