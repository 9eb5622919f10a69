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
_REFERENCES = frozenset({"secretName", "secretRef", "secretKeyRef", "remoteRef"})
_DROPPED_ANNOTATIONS = ("last-applied-configuration", "-server-configuration", "-cluster-configuration")
# What a key is called, in fields, variables, arguments and texts.
_KEYS = (
    r"(?:token|password|passwd|passphrase|(?<![a-z])pass|basic[-_]?auth|client[-_]?secret|_secret"
    r"|(?:api|access|private|certificate|encryption|secret|client)[-_]?key(?:[-_]?data)?)"
)
_TEXTS = tuple(
    map(
        re.compile,
        (
            r"(?s)()-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?-----END [A-Z0-9 ]*PRIVATE KEY-----",
            r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",  # a JSON Web Token
            r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
            r"()\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,})",
            r"()\b(?:kubeconfig-[a-z0-9-]+|token-[a-z0-9]{5}):[a-z0-9]{40,}",  # Rancher's
            r"()\bK10[0-9a-f]{64}::\S+",  # of RKE2 and K3s, to join
            r"()(?<![\w.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]|\.\w)",  # of kubeadm, to join
            # A password with a slash is no valid URL, but written. A port is none, nor is the user of SSH.
            r"(://)[^\s/:@\"']{0,256}:(?!\d{1,5}/)[^\s@\"']{1,512}(?=@)",
            r"(://)(?!git@)[^\s/:@\"']{1,512}(?=@)",
            r"(?i)(bearer )[A-Za-z0-9._~+/=:-]{8,}",
            r"(?i)(\bauthorization\\*[\"']?\s*[:=]\s*(?:\[|\\*[\"'])?basic )[A-Za-z0-9+/=_-]+",
            # In quotes, of YAML, JSON, or JSON in a string of JSON, up to their end.
            rf"(?i)((?:{_KEYS}|(?<![a-z])auth)\\*[\"']?\s*[:=]\s*(\\*[\"']))(?:(?!\2)(?:\\.|[^\\\n]))+",
            rf"(?i)({_KEYS}\\*[\"']? ?[:=][ \t]*)[^\s&\"',\\}}]{{6,}}",
            rf"(?i)(--[\w-]{{0,64}}{_KEYS}[ =])[^\s&\"',\\]{{6,}}",
            # An argument and its value as two items, of JSON and of YAML.
            rf"(?i)(--[\w-]{{0,64}}{_KEYS}\\*[\"']\s*,\s*(\\*[\"'])(?!-))(?:(?!\2)(?:\\.|[^\\\n]))+",
            rf"(?im)(^[ \t]*-[ \t]+[\"']?--[\w-]{{0,64}}{_KEYS}[\"']?[ \t]*\n[ \t]*-[ \t]+)(?![\"']?-)[^\n]+",
        ),
    )
)
# Of a variable, and of a field with text: a field `secret` may name one.
_USER_DATA = r"userdata(?:[-_]?base64)?|cloud[-_]?init|cloud[-_]?config"
_NAMES = re.compile(rf"(?i)(?:{_KEYS}|credentials?|secret|{_USER_DATA})$")
_TEXT_FIELDS = re.compile(rf"(?i)(?:{_KEYS}|credentials?|{_USER_DATA})$")
_ARGUMENT = re.compile(rf"(?i)--[\w-]{{0,64}}{_KEYS}")
# The first line of a block scalar of YAML: how deep its field is, and its name.
_BLOCK = re.compile(r"([ \t]*(?:-[ \t]+)*)[\"']?([\w.-]{1,128})[\"']?[ \t]*:[ \t]*[|>][-+1-9]{0,2}[ \t]*(?:#.*)?")


def redacted(value: Any) -> Any:
    """Return a copy of plain data without secrets."""
    if isinstance(value, dict):
        return {name: _field(name, each, value) for name, each in value.items() if name != "managedFields"}
    if isinstance(value, list):
        return [
            REMOVED if _is_value_of(before, each) else redacted(each)
            for before, each in zip(("", *value), value, strict=False)
        ]
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    """Return text, such as a log, without what looks like a key, a token or a password."""
    for pattern in _TEXTS:
        text = pattern.sub(rf"\g<1>{REMOVED}", text)
    return _without_blocks(text)


def _without_blocks(text: str) -> str:
    """Remove block scalars of YAML, which have their value on the lines below the name."""
    kept: list[str] = []
    depth = -1
    for line in text.split("\n"):
        inside = not line.strip() or len(line) - len(line.lstrip(" \t")) > depth
        if depth >= 0 and inside:
            continue
        depth = -1
        kept.append(line)
        if "|" in line or ">" in line:
            first = _BLOCK.fullmatch(line.rstrip("\r"))
            if first and (_TEXT_FIELDS.search(first[2]) or _is_secret(first[2])):
                depth = len(first[1])
                kept.append(f"{' ' * depth}  {REMOVED}")
    return "\n".join(kept)


def _is_value_of(argument: Any, value: Any) -> bool:
    """Whether an item of a list is the value of the argument before it, as in the arguments of a command."""
    both = isinstance(argument, str) and isinstance(value, str)
    return both and _ARGUMENT.fullmatch(argument) is not None and not value.startswith("-")


def _field(name: str, value: Any, parent: dict[str, Any]) -> Any:
    if name == "annotations" and isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not key.endswith(_DROPPED_ANNOTATIONS)}
        return redacted(kept)
    if not value or _is_reference(name, value, parent):
        return redacted(value)
    if _is_secret(name) or (isinstance(value, str) and _TEXT_FIELDS.search(name)):
        return REMOVED
    variable = parent.get("name") if name == "value" else None
    if isinstance(variable, str) and (_NAMES.search(variable) or _is_secret(variable)):
        return REMOVED
    return redacted(value)


def _is_reference(name: str, value: Any, parent: dict[str, Any]) -> bool:
    """Whether a field refers to a Secret: that has names, not content."""
    if isinstance(value, dict):
        return ("name" in value and set(value) <= {"name", "namespace", "key"}) or set(value) <= _REFERENCES
    return name == "secretKey" and not _REFERENCES.isdisjoint(parent)


def _is_secret(name: str) -> bool:
    return name.lower() in _FIELDS or _COMMANDS.match(name) is not None
