"""Machine configurations and secrets of Talos, as its bootstrap provider writes them. Pure.

Modelled after `controllers/talosconfig_controller.go` of the provider, and
`pkg/machinery/config/generate` of siderolabs/talos v1.12, with the fields that a simulated guest
or this project reads.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Sequence
from typing import Any

import yaml

from caphv.api.object import Obj, at, key_of, list_at, text_at
from sandbox.capi.bootstrap import endpoint_of
from sandbox.capi.nodeconfig import UnusableConfigError
from sandbox.processes import pki

_TYPES = ("controlplane", "worker")
# Lists that a patch replaces. It appends to others.
_REPLACED = ("podSubnets", "serviceSubnets")
_HOSTNAME_DOCUMENT_SINCE = (1, 12)


def new_bundle(cluster: str) -> Obj:
    """Return the new CAs and tokens of a cluster."""
    return {
        "cluster": {"id": _random_text(), "secret": _random_text()},
        "secrets": {"bootstraptoken": f"{secrets.token_hex(3)}.{secrets.token_hex(8)}"},
        "trustdinfo": {"token": f"{secrets.token_hex(3)}.{secrets.token_hex(8)}"},
        "certs": {
            name: _encode_pair(pki.CA.create(f"{cluster}-{name}").pair) for name in ("k8s", "os")
        },
    }


def authority(bundle: Obj, name: str) -> pki.CA:
    """Return the CA `k8s` of the cluster, or `os` of its machine APIs."""
    pair = bundle["certs"][name]
    return pki.CA(pki.KeyPair(*(base64.b64decode(pair[field]) for field in ("crt", "key"))))


def client_config(cluster: str, bundle: Obj) -> Obj:
    """Return the configuration of a client of machine APIs.

    The provider also lists the addresses of control planes in it.
    """
    ca = authority(bundle, "os")
    # An organisation is a role in the machine API.
    pair = _encode_pair(ca.client("admin", ["os:admin"]))
    context = {"endpoints": [], "ca": bundle["certs"]["os"]["crt"], **pair}
    return {"context": cluster, "contexts": {cluster: context}}


def machine_config(spec: Obj, cluster: Obj, machine: Obj, bundle: Obj) -> str:
    """Return the machine configuration for a Machine. Raises `UnusableConfigError`.

    :param spec: the spec of its TalosConfig
    """
    if spec["generateType"] == "none":
        documents = _load(str(spec.get("data") or ""))
        if not documents:
            raise UnusableConfigError("failed to specify config data with none generate type")
    else:
        documents = _generate(spec, cluster, machine, bundle)

    for patch in spec.get("strategicPatches") or ():
        for document in _load(patch):
            documents = _apply(documents, document)
    return yaml.safe_dump_all(documents, sort_keys=False)


def merge(base: Any, patch: Any) -> Any:
    """Return a value after a strategic merge patch, which appends to most lists."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = dict(base)
        for name, value in patch.items():
            is_new = name not in base or name in _REPLACED
            merged[name] = value if is_new else merge(base[name], value)
        return merged
    if isinstance(base, list) and isinstance(patch, list):
        return [*base, *patch]
    return patch


def _apply(documents: Sequence[Obj], patch: Obj) -> list[Obj]:
    """Return the documents with a patch merged into the one of its kind and name, or added."""
    result = list(documents)
    for number, document in enumerate(documents):
        if _identity(document) == _identity(patch):
            result[number] = merge(document, patch)
            return result
    return [*result, patch]


def _identity(document: Obj) -> tuple[object, object]:
    # The main document has no kind, nor needs a patch for it a version.
    return document.get("kind"), document.get("name")


def _generate(spec: Obj, cluster: Obj, machine: Obj, bundle: Obj) -> list[Obj]:
    kind = spec["generateType"]
    if kind not in _TYPES:
        raise UnusableConfigError(f'unknown generate type specified: "{kind}"')

    is_control_plane = kind == "controlplane"
    certificates = {
        name: pair if is_control_plane else {"crt": pair["crt"], "key": ""}
        for name, pair in bundle["certs"].items()
    }
    network = cluster["spec"].get("clusterNetwork") or {}
    config: Obj = {
        "version": "v1alpha1",
        "machine": {
            "type": kind,
            "token": bundle["trustdinfo"]["token"],
            "ca": certificates["os"],
            "kubelet": {"image": f"ghcr.io/siderolabs/kubelet:{machine['spec']['version']}"},
            "network": {},
            "install": {"disk": "/dev/sda", "wipe": False},
        },
        "cluster": {
            **bundle["cluster"],
            "controlPlane": {"endpoint": f"https://{endpoint_of(cluster)}"},
            **({"clusterName": key_of(cluster).name} if is_control_plane else {}),
            "network": {
                "dnsDomain": network.get("serviceDomain") or "cluster.local",
                "podSubnets": list_at(network, "pods", "cidrBlocks") or ["10.244.0.0/16"],
                "serviceSubnets": list_at(network, "services", "cidrBlocks") or ["10.96.0.0/12"],
            },
            "token": bundle["secrets"]["bootstraptoken"],
            "ca": certificates["k8s"],
        },
    }

    hostname = _hostname(spec, machine)
    if not hostname:
        return [config]
    if _minor(str(spec.get("talosVersion") or "")) < _HOSTNAME_DOCUMENT_SINCE:
        config["machine"]["network"]["hostname"] = hostname
        return [config]
    document = {"apiVersion": "v1alpha1", "kind": "HostnameConfig", "auto": "off"}
    return [config, {**document, "hostname": hostname}]


def _hostname(spec: Obj, machine: Obj) -> str:
    source = at(spec, "hostname", "source")
    if source == "MachineName":
        return key_of(machine).name
    if source == "InfrastructureName":
        return text_at(machine, "spec", "infrastructureRef", "name")
    return ""


def _minor(version: str) -> tuple[int, ...]:
    """Return major and minor number of a version such as `v1.12`. Empty without a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _load(text: str) -> list[Obj]:
    try:
        return [document for document in yaml.safe_load_all(text) if document]
    except yaml.YAMLError:
        raise UnusableConfigError("machine configuration or patch is not YAML") from None


def _encode_pair(pair: pki.KeyPair) -> Obj:
    values = {"crt": pair.certificate, "key": pair.key}
    return {name: base64.b64encode(value).decode() for name, value in values.items()}


def _random_text() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()
