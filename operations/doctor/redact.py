"""Remove secrets from data that leaves a cluster.

Objects are reduced by knowledge of their fields. Users write freely in the configuration of nodes,
variables of topologies and unknown annotations. There a text stays only if its field is known to
hold no secret, or if the text cannot be one. Text that is itself YAML or JSON is reduced like an
object. All other text, such as logs, is searched for patterns of credentials.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import yaml

from caphv import data
from caphv.runtime.text import Limits, TextError, load_json, load_yaml, load_yaml_all
from operations.doctor.redactpatterns import (
    ARGUMENT,
    REMOVED,
    SECRET_BLOCK,
    SECRET_NAME,
    replace_blocks,
    replace_credentials,
)

# Fields that hold credentials, or text of users that may hold some. Only their names count, not
# their paths, because the kinds of other projects change.
_SECRET_FIELDS = frozenset(
    {
        "token",
        "password",
        "passwd",
        "pwd",
        "kubeconfig",
        "privatekey",
        "auth",
        "talosconfig",
        "chpasswd",
        "userdata",
        "userdatabase64",
        "networkdata",
        "networkdatabase64",
        "stringdata",
        "binarydata",
        "data",
        "content",
        "contents",
        "runcmd",
        "bootcmd",
        "bootcommands",
        "additionaluserdata",
        "additionalconfig",
        "configpatches",
        "strategicpatches",
        "ssh_keys",
        "cookie",
        "cookies",
    }
)
# Fields of kubeadm, RKE2, K3s and other providers with similar names.
_COMMANDS = re.compile(r"(?i)(?:pre|post)\w{0,64}commands")
_REFERENCES = frozenset({"secretName", "secretRef", "secretKeyRef", "remoteRef"})

# Below these fields users configure nodes freely.
_NODE_CONFIGURATION = frozenset(
    {
        "kubeadmConfigSpec",
        "clusterConfiguration",
        "initConfiguration",
        "joinConfiguration",
        "agentConfig",
        "serverConfig",
        "kthreesConfigSpec",
        "controlPlaneConfig",
        "privateRegistriesConfig",
        "ignition",
        # Rancher's clusters.
        "machineGlobalConfig",
        "machineSelectorConfig",
        "chartValues",
        "additionalManifest",
    }
)
# Fields of a node's configuration that hold no secret.
_PLAIN_FIELDS = frozenset(
    {
        "apiVersion",
        "kind",
        "name",
        "namespace",
        "path",
        "owner",
        "permissions",
        "encoding",
        "version",
        "format",
        "nodeLabels",
        "nodeTaints",
        "key",
        "effect",
        "operator",
        "cni",
        "username",
        "groups",
        "shell",
        "criSocket",
        "dnsDomain",
        "podSubnet",
        "serviceSubnet",
        "clusterDomain",
        "clusterDNS",
        "clusterCIDR",
        "serviceCIDR",
        "disableComponents",
        "kubernetesComponents",
        "pluginComponents",
        "cisProfile",
        "tlsSan",
        "certSANs",
        "systemDefaultRegistry",
        "dataDir",
        "kubeletPath",
        "snapshotter",
        "cloudProviderName",
        "servers",
        "op",
        "generateType",
        "imagePullPolicy",
    }
)
_HARMLESS = re.compile(
    r"(?i)(?:true|false|null|none|enabled?|disabled?|v?[0-9][0-9.,:%/-]{0,40}[a-z]{0,3}|)",
    re.ASCII,
)

# Annotations of these domains are known. Others may hold anything, even a whole Secret.
_KNOWN_ANNOTATIONS = re.compile(
    r"(?:[a-z0-9-]{1,63}\.){0,8}"
    r"(?:caphv\.io|x-k8s\.io|k8s\.io|kubernetes\.io|harvesterhci\.io|kubevirt\.io|cattle\.io"
    r"|cncf\.io|kube-vip\.io)/.*"
)
# Variables of the shipped ClusterClasses in which users write freely.
_FREE_VARIABLES = frozenset(
    {"addons", "controlPlaneFiles", "guestConfig", "registries", "workerFiles"}
)
_DROPPED_ANNOTATIONS = (
    "last-applied-configuration",
    "-server-configuration",
    "-cluster-configuration",
    "objectset.rio.cattle.io/applied",
)

# A text of this length is searched in milliseconds. No longer text of an object is useful.
_MAX_TEXT_LENGTH = 128 * 1024
_LIMITS = Limits(size=_MAX_TEXT_LENGTH, depth=30, nodes=20_000, seconds=1.0, aliases=False)
_MAPPING = re.compile(
    r"\s{0,64}(?:---[ \t]{0,8}\n\s{0,64})?(?:#[^\n]{0,256}\n\s{0,64}){0,8}"
    r"(?:-[ \t]{1,8})?[\"']?[\w./-]{1,128}[\"']?:(?:\s|$)"
)


def redact(value: Any) -> Any:
    """Return a copy of plain data without secrets."""
    return _reduce(value, "", is_strict=False)


def redact_text(text: str) -> str:
    """Return text, such as a log, without parts that look like a key, a token or a password."""
    return replace_blocks(replace_credentials(text), _holds_secret_text)


def _reduce(value: Any, name: str, *, is_strict: bool) -> Any:
    """Return a copy of a value without secrets.

    :param value: plain data
    :param name: the field that holds it
    :param is_strict: whether users write freely here
    """
    if isinstance(value, dict):
        return _reduce_object(value, is_strict=is_strict)

    # In a command, the item before a value names the value.
    if isinstance(value, list | tuple):
        return [
            REMOVED if _is_value_of(before, item) else _reduce(item, name, is_strict=is_strict)
            for before, item in zip(("", *value), value, strict=False)
        ]
    if not isinstance(value, str):
        return value
    return _reduce_setting(name, value) if is_strict else _reduce_text(value)


def _reduce_object(obj: dict[Any, Any], *, is_strict: bool) -> dict[Any, Any]:
    """Return a copy of an object without secrets; `is_strict` as in `_reduce`."""
    reduced: dict[Any, Any] = {}

    for field, value in obj.items():
        name = str(field)
        # Managed fields only repeat the names of other fields.
        if name == "managedFields":
            continue

        if name == "annotations" and isinstance(value, dict):
            reduced[name] = _reduce_annotations(value)
        elif name in ("variables", "overrides") and isinstance(value, list):
            reduced[name] = [_reduce_variable(variable) for variable in value]
        elif value and not isinstance(value, bool) and _is_secret(name, value, obj):
            reduced[name] = REMOVED
        else:
            # The key itself may be a credential.
            safe = replace_credentials(name) if len(name) <= 512 else REMOVED
            reduced[safe] = _reduce(value, name, is_strict=is_strict or name in _NODE_CONFIGURATION)

    return reduced


def _reduce_annotations(annotations: dict[str, Any]) -> dict[str, Any]:
    """Return annotations without copies of whole objects, and unknown ones without values."""
    return {
        name: _reduce_text(str(value)) if _KNOWN_ANNOTATIONS.fullmatch(name) else REMOVED
        for name, value in annotations.items()
        if not name.endswith(_DROPPED_ANNOTATIONS)
    }


def _reduce_variable(variable: Any) -> Any:
    """Reduce a variable of a topology; only variables of shipped ClusterClasses keep their text."""
    if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
        return _reduce(variable, "", is_strict=True)

    name = variable["name"]
    value = variable.get("value")
    has_secret_name = _is_secret_name(name) or _is_secret_field(name)
    if value and has_secret_name and not _is_reference(name, value, {}):
        return {**variable, "value": REMOVED}
    return {**variable, "value": _reduce(value, name, is_strict=name not in _shipped_variables())}


def _reduce_setting(name: str, value: str) -> str:
    """Remove a text that configures nodes, unless its field is known or it cannot be a secret."""
    if name in _PLAIN_FIELDS:
        return _reduce_text(value)
    if _HARMLESS.fullmatch(value):
        return value

    # Keep the name of a `--name=value` argument, because it helps the reader.
    argument, separator, setting = value.partition("=")
    if separator and argument.startswith("-") and " " not in argument and len(argument) < 100:
        return value if _HARMLESS.fullmatch(setting) else f"{argument}={REMOVED}"
    return REMOVED


def _reduce_text(text: str) -> str:
    """Reduce a text: as an object if it is JSON or YAML, else by patterns of credentials."""
    # User data of a VM may hold anything.
    if len(text) > _MAX_TEXT_LENGTH or text.startswith(("#cloud-config", "## template:", "#!")):
        return REMOVED

    try:
        if text.lstrip()[:1] in ("{", "["):
            return json.dumps(redact(load_json(text, _LIMITS)), ensure_ascii=False)
        if "\n" in text and _MAPPING.match(text):
            documents = redact(load_yaml_all(text, _LIMITS))
            return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)
    except TextError:
        pass  # neither JSON nor YAML

    return redact_text(text)


def _is_value_of(argument: Any, value: Any) -> bool:
    """Whether an item of a list is the value of the argument before it, as in a command."""
    if not isinstance(argument, str) or not isinstance(value, str):
        return False
    return ARGUMENT.fullmatch(argument) is not None and not value.startswith("-")


def _is_secret(name: str, value: Any, parent: dict[Any, Any]) -> bool:
    """Whether a field holds a secret.

    :param name: the name of the field
    :param value: the value of the field
    :param parent: the object that has the field
    """
    if parent.get("kind") == "Secret" and name in ("data", "stringData"):
        return True
    if _is_reference(name, value, parent):
        return False

    # Environment variables and topologies have pairs of `name` and `value`.
    if name == "value" and isinstance(parent.get("name"), str):
        return _is_secret_name(parent["name"]) or _is_secret_field(parent["name"])
    # Talos has pairs of certificate and key.
    if name.lower() == "key" and isinstance(value, str) and not {"crt", "cert"}.isdisjoint(parent):
        return True
    return _is_secret_field(name) or (isinstance(value, str) and _is_secret_name(name))


def _is_secret_field(name: str) -> bool:
    return name.lower() in _SECRET_FIELDS or _COMMANDS.fullmatch(name) is not None


def _is_secret_name(name: str) -> bool:
    return SECRET_NAME.search(name) is not None


def _holds_secret_text(name: str) -> bool:
    """Whether text below this name is a secret."""
    return _is_secret_field(name) or SECRET_BLOCK.search(name) is not None


def _is_reference(name: str, value: Any, parent: dict[Any, Any]) -> bool:
    """Whether a field refers to a Secret, and so has names but no content."""
    if isinstance(value, dict):
        is_name = "name" in value and value.keys() <= {"name", "namespace", "key"}
        return is_name or value.keys() <= _REFERENCES
    return name == "secretKey" and not _REFERENCES.isdisjoint(parent)


@functools.cache
def _shipped_variables() -> frozenset[str]:
    """Return the variables of the shipped ClusterClasses whose values are known to be no secret."""
    classes = data.folder("clusterclass").glob("*/clusterclass.yaml")
    documents = [load_yaml(file.read_bytes()) for file in classes]
    names = {
        variable["name"] for document in documents for variable in document["spec"]["variables"]
    }
    return frozenset(names - _FREE_VARIABLES)
