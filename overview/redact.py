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
        "postrke2commands",
        "prerke2commands",
    }
)
_DROPPED_ANNOTATIONS = ("last-applied-configuration", "-server-configuration")
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
_NAMES = re.compile(r"(?i)(?:token|password|passwd|secret|credentials?|api_?key|private_?key)$")


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
    lower = name.lower()
    if name == "annotations" and isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not key.endswith(_DROPPED_ANNOTATIONS)}
        return redacted(kept)
    # References to Secrets have names, not content.
    if lower in _FIELDS and value and not (isinstance(value, dict) and set(value) <= {"name", "namespace", "key"}):
        return REMOVED
    if name == "value" and isinstance(parent.get("name"), str) and _NAMES.search(parent["name"]):
        return REMOVED
    return redacted(value)
