"""CRDs of the providers, reduced to the fields that the stand-ins and the ClusterClasses use.

Template kinds are derived: by contract each wraps the spec of its kind. So is the spec of a bootstrap object inside a
control plane's spec.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.capi.distribution import ALL, K3S, in_version
from sandbox.capi.resources import CORE

FOLDER = Path(__file__).parent.parent / "crds" / "providers"
KUBEADM = "kubeadm"
KUBEADM_KINDS = ("KubeadmConfig", "KubeadmControlPlane")
# Kinds of bootstrap objects, and the field in which a control plane of its kind has their spec.
_CONFIG_FIELDS = (
    (K3S.configs.kind, K3S.control_planes.kind, "kthreesConfigSpec"),
    (*KUBEADM_KINDS, "kubeadmConfigSpec"),
)
# Fields that templates omit, because each created object has its own.
_OWN = ("machineTemplate", "replicas", "version")


def custom_resource_definitions(core: str = "v1beta2", *, without: Collection[str] = ()) -> list[Obj]:
    """The CRDs of four kinds per distribution, with their contract label, for a core of an API version.

    Those of the distributions named by `without` come with their real providers. kubeadm has none for core v1beta1:
    its objects of that version are too different from those of our class.
    """
    kinds = {crd["spec"]["names"]["kind"]: crd for crd in manifests.read(sorted(FOLDER.glob("*.yaml")))}
    for config, control_plane, field in _CONFIG_FIELDS:
        _spec(kinds[control_plane])["properties"][field] = _spec(kinds[config])
    found = []
    for distribution in in_version(core):
        if distribution.name in without:
            continue
        own = (distribution.configs, distribution.control_planes)
        if distribution in ALL:
            found += [kinds[resource.kind] for resource in own]
        else:
            examples = (K3S.configs, K3S.control_planes)
            found += [_of_v1beta1(kinds[a.kind], kinds[b.kind], a.version) for a, b in zip(own, examples, strict=True)]
    if core == "v1beta2" and KUBEADM not in without:
        found += [kinds[kind] for kind in KUBEADM_KINDS]
    return [*found, *map(_template, found)]


def _of_v1beta1(crd: Obj, example: Obj, name: str) -> Obj:
    """A CRD in a version that follows contract v1beta1, as that of `example` does."""
    crd = copy.deepcopy(crd)
    crd["metadata"]["labels"] = {f"{CORE}/v1beta1": name}
    (version,) = crd["spec"]["versions"]
    version["name"] = name
    version.pop("additionalPrinterColumns", None)
    fields, others = (each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] for each in (crd, example))
    fields["status"] = others["status"]
    if "machineTemplate" in fields["spec"]["properties"]:
        fields["spec"]["properties"]["machineTemplate"] = others["spec"]["properties"]["machineTemplate"]
    return crd


def _spec(crd: Obj) -> Obj:
    (version,) = crd["spec"]["versions"]
    found: Obj = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def _template(kind: Obj) -> Obj:
    crd = copy.deepcopy(kind)
    spec, name = crd["spec"], f"{kind['spec']['names']['kind']}Template"
    names = {"kind": name, "listKind": f"{name}List", "plural": f"{name.lower()}s", "singular": name.lower()}
    spec["names"] = names
    crd["metadata"]["name"] = f"{names['plural']}.{spec['group']}"
    for version in spec["versions"]:
        version.pop("additionalPrinterColumns", None)
        if "version" in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]:
            version.pop("subresources")
        version["schema"]["openAPIV3Schema"] = _wrapped(version["schema"]["openAPIV3Schema"])
    return crd


def _wrapped(schema: Obj) -> Obj:
    inner = schema["properties"]["spec"]
    for name in _OWN:
        inner["properties"].pop(name, None)
    if "required" in inner:
        inner["required"] = [name for name in inner["required"] if name not in _OWN]
    template = {"type": "object", "required": ["spec"], "properties": {"spec": inner}}
    top = {name: schema["properties"][name] for name in ("apiVersion", "kind", "metadata")}
    spec = {"type": "object", "required": ["template"], "properties": {"template": template}}
    return {"type": "object", "required": ["metadata", "spec"], "properties": {**top, "spec": spec}}
