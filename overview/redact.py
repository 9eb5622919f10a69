"""Takes secrets out of what leaves a cluster: by the name of a field, and by what a text looks like."""

from __future__ import annotations

import re
from typing import Any

REMOVED = "(removed)"
# Fields that hold credentials, or text of users that may hold some. Names, not paths: kinds of others change.
_FIELDS = frozenset(
    {
        "token",
        "password",
        "passwd",
        "kubeconfig",
        "privatekey",
        "userdata",
        "userdatabase64",
        "networkdata",
        "networkdatabase64",
        "stringdata",
        "content",
        "contents",
        "data",
        "auth",
        "runcmd",
        "bootcmd",
        "bootcommands",
        "additionaluserdata",  # of RKE2
        "additionalconfig",  # of Ignition
        "configpatches",
        "strategicpatches",
        "talosconfig",
    }
)
# Of kubeadm, RKE2, K3s and others that name them alike.
_COMMANDS = re.compile(r"(?i)^(?:pre|post)\w*commands$")
_DROPPED_ANNOTATIONS = ("last-applied-configuration", "-server-configuration", "-cluster-configuration")
_TEXTS = tuple(
    map(
        re.compile,
        (
            r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?-----END [A-Z0-9 ]*PRIVATE KEY-----",
            r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",  # a JSON Web Token
            r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
            r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,})",
            r"\b(?:kubeconfig-[a-z0-9-]+|token-[a-z0-9]{5}):[a-z0-9]{40,}",  # Rancher's
            r"\bK10[0-9a-f]{64}::\S+",  # of RKE2 and K3s, to join
            r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
            r"(?i)(?<=bearer )[A-Za-z0-9._~+/=:-]{8,}",
            r"(?i)(?:(?<=token=)|(?<=token: )|(?<=password=)|(?<=password: )|(?<=client-key-data: ))[^\s&\"',]{6,}",
        ),
    )
)
_KEYS = r"token|password|passwd|credentials?|(?:api|access|private|certificate|encryption)_?key"
# Of a variable, and of a field with text: a field `secret` may name one.
_NAMES = re.compile(rf"(?i)(?:{_KEYS}|secret)$")
_TEXT_FIELDS = re.compile(rf"(?i)(?:{_KEYS}|_secret)$")


def redacted(value: Any) -> Any:
    """Return a copy of plain data without secrets."""
    if isinstance(value, dict):
        return {name: _field(name, each, value) for name, each in value.items() if name != "managedFields"}
    if isinstance(value, list):
        return [redacted(each) for each in value]
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Return text, such as a log, without what looks like a key, a token or a password."""
    for pattern in _TEXTS:
        text = pattern.sub(REMOVED, text)
    return text


def _field(name: str, value: Any, parent: dict[str, Any]) -> Any:
    if name == "annotations" and isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not key.endswith(_DROPPED_ANNOTATIONS)}
        return redacted(kept)
    # References to Secrets have names, not content.
    if _is_secret(name) and value and not (isinstance(value, dict) and set(value) <= {"name", "namespace", "key"}):
        return REMOVED
    if value and isinstance(value, str) and _TEXT_FIELDS.search(name):
        return REMOVED
    variable = parent.get("name") if name == "value" else None
    if isinstance(variable, str) and (_NAMES.search(variable) or _is_secret(variable)):
        return REMOVED
    return redacted(value)


def _is_secret(name: str) -> bool:
    return name.lower() in _FIELDS or _COMMANDS.match(name) is not None
