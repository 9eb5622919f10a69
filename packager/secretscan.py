"""Keeps secrets out of Git by refusing Secrets and texts that look like a credential.

A commit cannot be taken back, so a doubtful text is refused. Findings show the place of a text, and
never the text itself.
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

# The text comes from tenants and authors of commits, so the time must be linear in its length. No
# pattern may begin inside a run of its own characters, or repeat without a bound before a part that
# may be absent. Otherwise 64 KB of one letter take seconds, in which the interpreter does nothing
# else (tests/unit/project/test_linear_time.py).
_CREDENTIAL = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY"
    # A JSON Web Token.
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]"
    # Keys of AWS, tokens of GitHub, GitLab and Slack.
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\b(?:gh[pousr]_[A-Za-z0-9]{30}|github_pat_[A-Za-z0-9_]{30}"
    r"|glpat-[A-Za-z0-9_-]{20}|xox[abprs]-[A-Za-z0-9-]{10})"
    # Tokens of Rancher.
    r"|(?<![A-Za-z0-9_-])(?:kubeconfig-[a-z0-9-]++|token-[a-z0-9]{5}):[a-z0-9]{40}"
    # Tokens with which nodes join RKE2 and K3s.
    r"|\bK10[0-9a-f]{64}::"
    # A password in a URL, and the key in a kubeconfig.
    r"|(?<=[a-zA-Z0-9+.-])://[^/\s:@]{0,1024}:[^/\s@]{1,1024}@"
    r"|\bclient-key-data\b"
)
# Names of fields whose value is a credential, unless it only names the place of one.
_NAME = (
    r"(?:pass(?:wd|word|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|credentials?|auth)"
)
_SUSPICIOUS = re.compile(rf"(?:^|[-_.a-z0-9]){_NAME}s?$", re.I)
_ASSIGNMENT = re.compile(rf"{_NAME}[\"']?[ \t]*+[:=][ \t]*+[\"']?([^\s\"'#]{{6,}})", re.I)
_KEY_OF_LINE = re.compile(r"[ \t-]*+[\"']?[A-Za-z0-9_.-]*")
_PASSWORD = re.compile(r"(?:pass(?:wd|word|phrase)s?|pwd)$", re.I)
# Switches, numbers, paths, and references to variables of a shell.
_HARMLESS = re.compile(
    r"(?:true|false|null|none|default|enabled|disabled|[0-9.]+"
    r"|[./][A-Za-z0-9_./-]*|\$\{?[A-Za-z_]+\}?)",
    re.I,
)


# Scanning a text of this length takes some milliseconds. No value of an add-on should be longer.
# Files of that size belong in a chart or a ConfigMap of the cluster.
_MAX_LENGTH = 64 * 1024
# Most texts are short and repeat in each cluster. A few long texts must not fill the memory.
_MAX_CACHED_LENGTH = 256


def check(value: Any, path: FieldPath = ()) -> list[Finding]:
    """Return a finding for each Secret, and for each field that looks like a credential."""
    return list(_check(value, path))


def _check(value: Any, path: FieldPath) -> Iterator[Finding]:
    """Yield a finding for each Secret and credential in a value, which is at a path."""
    if isinstance(value, str):
        if len(value) > _MAX_LENGTH:
            detail = (
                f"has {len(value)} characters and cannot be checked for credentials: use at most "
                f"{_MAX_LENGTH}"
            )
            yield Finding(path, Fault.TOO_LONG, detail, RULE)
        elif _is_credential(value) or (path and _is_password(str(path[-1]), value)):
            detail = (
                "looks like a credential: put it into a Secret of the cluster and name that here"
            )
            yield Finding(path, Fault.FORBIDDEN, detail, RULE)

    elif isinstance(value, dict):
        if value.get("kind") == "Secret":
            detail = (
                "a Secret must not be in Git: make it in the cluster, or let a secrets operator "
                "make it"
            )
            yield Finding((*path, "kind"), Fault.FORBIDDEN, detail, RULE)

        for key, item in value.items():
            if len(str(key)) > _MAX_LENGTH or _is_credential(str(key)):
                # The key itself must not be shown either.
                detail = "a key looks like a credential: remove it"
                yield Finding((*path, "…"), Fault.FORBIDDEN, detail, RULE)
            else:
                yield from _check(item, (*path, key))

    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _check(item, (*path, index))


def _is_credential(text: str) -> bool:
    if len(text) < 12:
        return False
    return _scan_short(text) if len(text) <= _MAX_CACHED_LENGTH else _scan(text)


@lru_cache(maxsize=16384)
def _scan_short(text: str) -> bool:
    return _scan(text)


def _scan(text: str) -> bool:
    if _CREDENTIAL.search(text):
        return True
    return "\n" in text and any(map(_assigns_secret, text.split("\n")))


def _assigns_secret(line: str) -> bool:
    """Whether a line of YAML, INI or arguments assigns a random value to a name like `password`."""
    match = _ASSIGNMENT.search(line)
    # Most lines with such a word name a Secret, or the place of a token.
    if match is None or not _looks_random(match[1]):
        return False
    return _KEY_OF_LINE.fullmatch(line, 0, match.start()) is not None


def _is_password(key: str, text: str) -> bool:
    if not text or not _SUSPICIOUS.search(key) or _HARMLESS.fullmatch(text):
        return False
    return bool(_PASSWORD.search(key)) or _looks_random(text)


def _looks_random(text: str) -> bool:
    """Whether a text has the entropy of a generated token; names of objects have less."""
    if len(text) < 16 or _HARMLESS.fullmatch(text):
        return False
    if any(character.isspace() for character in text):
        return False

    # Compute the Shannon entropy in bits per character, which repeated letters lower.
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    has_digits = any(character.isdigit() for character in text)
    has_letters = any(character.isalpha() for character in text)
    return entropy >= 3.0 and ((has_digits and has_letters) or len(text) >= 32)
