"""Rules about add-ons, and about the repository with which Fleet delivers them."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS
from packager.rendering.gitrepo import GitRepoOptions

RULES = Rules()


@RULES.rule(
    "definition-addons",
    KINDS,
    "Settings of the add-ons must fit the distribution, the ClusterClass and the delivery.",
)
def _check_addons(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    addons = spec.get("addons", {})
    distribution = spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "addons")
    if addons.get("distribution", distribution) != distribution:
        detail = "set spec.distribution instead, and remove this"
        value = addons["distribution"]
        yield Finding((*path, "distribution"), Fault.INVALID, detail, value=value)

    cni = addons.get("cni", {}).get("name", "none")
    delivery = spec.get("addonDelivery", "Fleet")
    if distribution == "kubeadm" and delivery == "ClusterResourceSet":
        detail = (
            "creates HelmChart manifests for the Helm controller of RKE2 and K3s, which kubeadm "
            "lacks: use Fleet, which installs the charts itself, or None, and install them with "
            "Helm"
        )
        yield Finding(("spec", "addonDelivery"), Fault.UNSUPPORTED, detail, value=delivery)
    elif distribution == "kubeadm" and cni != "none" and delivery == "None":
        detail = (
            "is not installed with addonDelivery None: use Fleet, or remove the field and install "
            "a CNI yourself"
        )
        yield Finding((*path, "cni", "name"), Fault.INVALID, detail, value=cni)

    provider = addons.get("cloudProviderName")
    if provider == "harvester" and not spec.get("individualObjects"):
        detail = (
            "needs individualObjects, since ClusterClasses have no variable for it: set that, or "
            "remove the field"
        )
        yield Finding((*path, "cloudProviderName"), Fault.INVALID, detail, value=provider)


@RULES.rule(
    "definition-fleet",
    KINDS,
    "The Fleet repository must be the URL of a Git repository without credentials.",
)
def _check_fleet(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    fleet = spec.get("fleet")
    if fleet is None:
        return

    if spec.get("addonDelivery", "Fleet") != "Fleet":
        detail = "has no effect with this addonDelivery: remove it, or use Fleet"
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, detail)

    # The options validate themselves when they are created.
    try:
        GitRepoOptions(
            fleet["repo"],
            folder=fleet.get("path", ""),
            helm_secret_name=fleet.get("helmSecretName", ""),
            helm_repo_regex=fleet.get("helmRepoURLRegex", ""),
        )
    except ValueError as error:
        # The finding does not show the value, which may hold a password.
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, str(error))
