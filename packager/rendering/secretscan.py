"""Keeps secrets out of Git: what is rendered is refused when it holds a Secret or looks like a credential.

A commit cannot be taken back, so doubt refuses. What is found is never shown, only where it stands.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from caphv.validation.finding import Fault, FieldPath, Finding

RULE = "no-secrets-in-git"
DESCRIPTION = "What is written to Git must not be a Secret or look like a credential."

# Forms that are credentials wherever they stand.
_CREDENTIAL = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY"
    r"|\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"  # a JSON Web Token
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,})"
    r"|\bkubeconfig-[a-z0-9-]+:[a-z0-9]{40,}|\btoken-[a-z0-9]{5}:[a-z0-9]{40,}"  # Rancher's
    r"|\bK10[0-9a-f]{64}::"  # of RKE2 and K3s, to join
    r"|[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"  # a password in a URL
    r"|\bclient-key-data\b"
)
# Names of fields whose value is a credential, unless they only say where one is.
_NAME = r"(?:pass(?:wd|word|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?|auth)"
_SUSPICIOUS = re.compile(rf"(?:^|[-_.a-z0-9]){_NAME}s?$", re.I)
_LINE = re.compile(rf"^[ \t-]*[\"']?[A-Za-z0-9_.-]*{_NAME}[\"']?[ \t]*[:=][ \t]*[\"']?([^\s\"'#]{{6,}})", re.I | re.M)
_HARMLESS = re.compile(
    r"(?:true|false|null|none|default|enabled|disabled|[0-9.]+|[./][A-Za-z0-9_./-]*|\$\{?[A-Za-z_]+\}?)", re.I
)


def check(value: Any, path: FieldPath = ()) -> list[Finding]:
    """Return a finding for each Secret and each field that looks like a credential in a document or in values."""
    return list(_check(value, path))


def _check(value: Any, path: FieldPath) -> Iterator[Finding]:
    if isinstance(value, str):
        if _is_credential(value) or (path and _is_password(str(path[-1]), value)):
            detail = "looks like a credential: put it into a Secret of the cluster and name that here"
            yield Finding(path, Fault.FORBIDDEN, detail, RULE)
    elif isinstance(value, dict):
        if value.get("kind") == "Secret":
            detail = "a Secret must not be in Git: make it in the cluster, or let a secrets operator make it"
            yield Finding((*path, "kind"), Fault.FORBIDDEN, detail, RULE)
        for key, item in value.items():
            if _is_credential(key):
                yield Finding((*path, "…"), Fault.FORBIDDEN, "a key looks like a credential: remove it", RULE)
            yield from _check(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _check(item, (*path, index))


@lru_cache(maxsize=65536)
def _is_credential(text: str) -> bool:
    if len(text) < 12:
        return False
    if _CREDENTIAL.search(text):
        return True
    return "\n" in text and any(_looks_random(match[1]) for match in _LINE.finditer(text))


@lru_cache(maxsize=65536)
def _is_password(key: str, text: str) -> bool:
    if not text or not _SUSPICIOUS.search(key) or _HARMLESS.fullmatch(text):
        return False
    return bool(re.search(r"pass(?:wd|word|phrase)s?$|pwd$", key, re.I)) or _looks_random(text)


def _looks_random(text: str) -> bool:
    """Whether a text has as much surprise in it as a generated token: names of objects have less."""
    if len(text) < 16 or any(character.isspace() for character in text) or _HARMLESS.fullmatch(text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    mixed = any(character.isdigit() for character in text) and any(character.isalpha() for character in text)
    return entropy >= 3.0 and (mixed or len(text) >= 32)
