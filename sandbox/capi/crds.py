"""CRDs of the providers, reduced to the fields that the stand-ins and the ClusterClasses use.

The CRDs of template kinds are derived, because each wraps the spec of its kind by contract. The
spec of a bootstrap object inside a control plane's spec is derived as well.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.capi.distribution import ALL, K3S, distributions_for
from sandbox.capi.resources import CORE
from sandbox.capi.talos.kinds import CONFIGS, CONTROL_PLANES

FOLDER = Path(__file__).parent.parent / "crds" / "providers"
KUBEADM = "kubeadm"
KUBEADM_KINDS = ("KubeadmConfig", "KubeadmControlPlane")
TALOS_KINDS = (CONFIGS.kind, CONTROL_PLANES.kind)
# Each row has a kind of bootstrap objects, the kind of its control planes, and the path in the spec
# of a control plane to the spec of a bootstrap object.
_CONFIG_FIELDS = (
    (K3S.configs.kind, K3S.control_planes.kind, ("kthreesConfigSpec",)),
    (*KUBEADM_KINDS, ("kubeadmConfigSpec",)),
    (*TALOS_KINDS, ("controlPlaneConfig", "controlplane")),
)
_JOINS_AT = "availableServerIPs"
# Fields that templates omit, because each created object has its own.
_NOT_IN_TEMPLATES = ("machineTemplate", "replicas", "version")


def custom_resource_definitions(
    core: str = "v1beta2", *, without: Collection[str] = ()
) -> list[Obj]:
    """Return the CRDs of four kinds per distribution, three for Talos, with their contract label.

    There are none of kubeadm for core v1beta1, because its objects of that version are too
    different from the objects of our class, and none of Talos, whose stand-ins do not run there.

    :param core: the API version of the core
    :param without: names of distributions whose CRDs come with their real providers
    """
    kinds = {
        crd["spec"]["names"]["kind"]: crd for crd in manifests.read(sorted(FOLDER.glob("*.yaml")))
    }
    for config, control_plane, path in _CONFIG_FIELDS:
        parent = _spec(kinds[control_plane])
        for name in path[:-1]:
            parent = parent["properties"][name]
        parent["properties"][path[-1]] = _spec(kinds[config])

    crds = []
    for distribution in distributions_for(core):
        if distribution.name in without:
            continue
        resources = (distribution.configs, distribution.control_planes)
        if distribution in ALL:
            crds += [kinds[resource.kind] for resource in resources]
            continue

        # There is no file for RKE2's CRDs of the older contract. They are derived from K3s's CRDs,
        # which follow that contract.
        examples = (K3S.configs, K3S.control_planes)
        for resource, example in zip(resources, examples, strict=True):
            crds.append(
                _convert_to_v1beta1(kinds[resource.kind], kinds[example.kind], resource.version)
            )
    if core == "v1beta2" and KUBEADM not in without:
        crds += [kinds[kind] for kind in KUBEADM_KINDS]
    templates = [_template_crd(crd) for crd in crds]
    if core == "v1beta2":
        talos = [kinds[kind] for kind in TALOS_KINDS]
        crds += talos
        # This release of the control plane provider has no templates.
        templates.append(_template_crd(talos[0]))
    return [*crds, *templates]


def _convert_to_v1beta1(original: Obj, example: Obj, name: str) -> Obj:
    """Return a CRD in the version `name`, which follows contract v1beta1 like `example`."""
    crd = copy.deepcopy(original)
    crd["metadata"]["labels"] = {f"{CORE}/v1beta1": name}
    (version,) = crd["spec"]["versions"]
    version["name"] = name
    version.pop("additionalPrinterColumns", None)

    # The contracts differ in the status and in the template of machines.
    properties = _properties(crd)
    example_properties = _properties(example)
    status = copy.deepcopy(example_properties["status"])
    joins_at = properties["status"]["properties"].get(_JOINS_AT)
    if joins_at is not None:
        # Nodes of K3s join at the endpoint, so the example lacks the field.
        status["properties"][_JOINS_AT] = joins_at
    properties["status"] = status
    spec = properties["spec"]["properties"]
    example_spec = example_properties["spec"]["properties"]
    if "machineTemplate" in spec:
        spec["machineTemplate"] = example_spec["machineTemplate"]
    return crd


def _properties(crd: Obj) -> Obj:
    (version,) = crd["spec"]["versions"]
    properties: Obj = version["schema"]["openAPIV3Schema"]["properties"]
    return properties


def _spec(crd: Obj) -> Obj:
    spec: Obj = _properties(crd)["spec"]
    return spec


def _template_crd(kind: Obj) -> Obj:
    """Return the CRD of the template of a kind."""
    crd = copy.deepcopy(kind)
    spec = crd["spec"]
    name = f"{kind['spec']['names']['kind']}Template"
    names = {
        "kind": name,
        "listKind": f"{name}List",
        "plural": f"{name.lower()}s",
        "singular": name.lower(),
    }
    spec["names"] = names
    crd["metadata"]["name"] = f"{names['plural']}.{spec['group']}"

    for version in spec["versions"]:
        version.pop("additionalPrinterColumns", None)
        schema = version["schema"]["openAPIV3Schema"]
        if "version" in schema["properties"]["spec"]["properties"]:
            version.pop("subresources")
        version["schema"]["openAPIV3Schema"] = _wrap_schema(schema)
    return crd


def _wrap_schema(schema: Obj) -> Obj:
    """Return the schema of a template, with the spec of its kind below `spec.template`."""
    inner = schema["properties"]["spec"]
    for name in _NOT_IN_TEMPLATES:
        inner["properties"].pop(name, None)
    if "required" in inner:
        inner["required"] = [name for name in inner["required"] if name not in _NOT_IN_TEMPLATES]

    template = {"type": "object", "required": ["spec"], "properties": {"spec": inner}}
    top = {name: schema["properties"][name] for name in ("apiVersion", "kind", "metadata")}
    spec = {"type": "object", "required": ["template"], "properties": {"template": template}}
    return {
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {**top, "spec": spec},
    }
