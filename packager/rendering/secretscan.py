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

# Text of a tenant or of a commit's author: no pattern may begin where a run of its own characters has begun already,
# and none repeats without a bound before something that may be absent. Otherwise 64 KB of one letter take seconds, in
# which the interpreter does nothing else (tests/unit/project/test_linear_time.py).
_CREDENTIAL = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]"  # a JSON Web Token
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(?:gh[pousr]_[A-Za-z0-9]{30}|github_pat_[A-Za-z0-9_]{30}|glpat-[A-Za-z0-9_-]{20}|xox[abprs]-[A-Za-z0-9-]{10})"
    r"|(?<![A-Za-z0-9_-])(?:kubeconfig-[a-z0-9-]++|token-[a-z0-9]{5}):[a-z0-9]{40}"  # Rancher's
    r"|\bK10[0-9a-f]{64}::"  # of RKE2 and K3s, to join
    r"|(?<=[a-zA-Z0-9+.-])://[^/\s:@]{0,1024}:[^/\s@]{1,1024}@"  # a password in a URL
    r"|\bclient-key-data\b"
)
# Names of fields whose value is a credential, unless they only say where one is.
_NAME = r"(?:pass(?:wd|word|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?|auth)"
_SUSPICIOUS = re.compile(rf"(?:^|[-_.a-z0-9]){_NAME}s?$", re.I)
_ASSIGNMENT = re.compile(rf"{_NAME}[\"']?[ \t]*+[:=][ \t]*+[\"']?([^\s\"'#]{{6,}})", re.I)
_KEY_OF_LINE = re.compile(r"[ \t-]*+[\"']?[A-Za-z0-9_.-]*")
_PASSWORD = re.compile(r"(?:pass(?:wd|word|phrase)s?|pwd)$", re.I)
_HARMLESS = re.compile(
    r"(?:true|false|null|none|default|enabled|disabled|[0-9.]+|[./][A-Za-z0-9_./-]*|\$\{?[A-Za-z_]+\}?)", re.I
)


# Scanning a text of this length takes some milliseconds. No value of an add-on is longer: files of that size belong
# into a chart or a ConfigMap of the cluster.
LONGEST = 64 * 1024
# Most texts are short and come again in each cluster; a few long ones must not fill the memory.
_LONGEST_REMEMBERED = 256


def check(value: Any, path: FieldPath = ()) -> list[Finding]:
    """Return a finding for each Secret and each field that looks like a credential in a document or in values."""
    return list(_check(value, path))


def _check(value: Any, path: FieldPath) -> Iterator[Finding]:
    if isinstance(value, str):
        if len(value) > LONGEST:
            detail = f"has {len(value)} characters and cannot be checked for credentials: use at most {LONGEST}"
            yield Finding(path, Fault.TOO_LONG, detail, RULE)
        elif _is_credential(value) or (path and _is_password(str(path[-1]), value)):
            detail = "looks like a credential: put it into a Secret of the cluster and name that here"
            yield Finding(path, Fault.FORBIDDEN, detail, RULE)
    elif isinstance(value, dict):
        if value.get("kind") == "Secret":
            detail = "a Secret must not be in Git: make it in the cluster, or let a secrets operator make it"
            yield Finding((*path, "kind"), Fault.FORBIDDEN, detail, RULE)
        for key, item in value.items():
            if len(str(key)) > LONGEST or _is_credential(str(key)):
                yield Finding((*path, "…"), Fault.FORBIDDEN, "a key looks like a credential: remove it", RULE)
            else:
                yield from _check(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _check(item, (*path, index))


def _is_credential(text: str) -> bool:
    if len(text) < 12:
        return False
    return _scan_short(text) if len(text) <= _LONGEST_REMEMBERED else _scan(text)


@lru_cache(maxsize=16384)
def _scan_short(text: str) -> bool:
    return _scan(text)


def _scan(text: str) -> bool:
    if _CREDENTIAL.search(text):
        return True
    return "\n" in text and any(map(_assigns_secret, text.split("\n")))


def _assigns_secret(line: str) -> bool:
    """Return whether a line gives a random value to a name like `password`, as in YAML, INI or an argument."""
    match = _ASSIGNMENT.search(line)
    if match is None or not _looks_random(match[1]):
        return False
    return _KEY_OF_LINE.fullmatch(line, 0, match.start()) is not None


def _is_password(key: str, text: str) -> bool:
    if not text or not _SUSPICIOUS.search(key) or _HARMLESS.fullmatch(text):
        return False
    return bool(_PASSWORD.search(key)) or _looks_random(text)


def _looks_random(text: str) -> bool:
    """Whether a text has as much surprise in it as a generated token: names of objects have less."""
    if len(text) < 16 or any(character.isspace() for character in text) or _HARMLESS.fullmatch(text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    mixed = any(character.isdigit() for character in text) and any(character.isalpha() for character in text)
    return entropy >= 3.0 and (mixed or len(text) >= 32)
