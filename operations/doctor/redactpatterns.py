"""Find credentials in text without structure: logs, Events, messages, commands.

The text comes from tenants and servers, so every pattern must take linear time. No match begins
inside of a run of its own characters (tests/unit/project/test_linear_time.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

REMOVED = "(removed)"

# Names of keys in fields, variables, arguments and texts.
KEYS = (
    r"(?:token|pass(?:word|wd|phrase)(?:[-_]?hash)?|(?<![a-z])p(?:ass|wd|sk)|pgpass(?:word)?"
    r"|basic[-_]?auth|(?:client|signing|webhook|shared|app|auth|consumer|_|-)[-_]?secret|cookie"
    r"|secretbox|(?:api|access|private|certificate|encryption|secret|client|shared|account"
    r"|signing|master|host)[-_]?key(?:[-_]?data)?)"
)
_USER_DATA = r"(?:user-?data(?:[-_]?base64)?|cloud[-_]?init|cloud[-_]?config)"
# Fields and variables of these names hold a secret. Only the second pattern has `secret`, because
# lines below a field of that name may only refer to a Secret.
SECRET_BLOCK = re.compile(rf"(?i)(?:{KEYS}|credentials?|{_USER_DATA})$")
SECRET_NAME = re.compile(rf"(?i)(?:{KEYS}|credentials?|secret|{_USER_DATA})$")
ARGUMENT = re.compile(rf"(?i)(?:--[\w-]{{0,64}}{KEYS}|-u|--user|-p)")

# A comma of a value without quotes, after which no other field follows.
_COMMA = r",(?![\s\"'\\}]|[\w.-]{1,64}[=:]|$)"
# A character of such a value. In JSON and YAML a brace ends it, in a command it does not.
_UNQUOTED = rf"(?:[^\s&\"',\\}}]|{_COMMA})"
_UNQUOTED_ARGUMENT = rf"(?:[^\s&\"',\\]|{_COMMA})"

# The first group of each pattern stays in the text.
_PATTERNS = tuple(
    map(
        re.compile,
        (
            # A JSON Web Token.
            r"()(?<![\w-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]*",
            r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
            r"()\b(?:gh[pousr]_[A-Za-z0-9]{30,}+|github_pat_\w{30,}+)",
            r"()(?<![\w-])(?:glpat-[\w-]{20,}+|xox[abprs]-[A-Za-z0-9-]{10,}+)",
            r"()(?<![\w-])(?:kubeconfig-[a-z0-9-]++|token-[a-z0-9]{5}):[a-z0-9]{40,}+",  # Rancher's
            r"()\bK10[0-9a-f]{64}::\S+",  # of RKE2 and K3s, to join
            r"()(?<![\w.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]|\.\w)",  # of kubeadm, to join
            # Keys of WireGuard and of the encryption of Secrets are 32 bytes in base64.
            r"()(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{43}=(?![A-Za-z0-9+/=])",
            # A hashed password.
            r"()\$(?:1|2[abxy]?|5|6|y|7|scrypt|argon2[id]{1,2})\$[^\s:\"',]{8,}",
            # In base64, anything that begins like PEM, except a certificate.
            r"()LS0tLS1CRUdJTi(?!BDRVJUSUZJQ0FUR)[A-Za-z0-9+/=]{16,}+",
            # A password with a slash makes a URL invalid, but users write it. A port is not a
            # password, nor is the user of SSH.
            # Without an escape, a password may contain the sign that ends it.
            (
                r"(://)[^\s/:@\"']{0,256}+:(?!\d{1,5}/)[^\s@\"']{1,512}+"
                r"(?:@[^\s@/\"']{1,512}+(?=@))*(?=@)"
            ),
            r"(://)(?!git@)[^\s/:@\"']{1,512}+(?=@)",
            r"(?i)((?:bearer|basic) )[A-Za-z0-9._~+/=:-]{8,}",
            (
                r"(?i)([?&;](?:sig|signature|code|x-(?:amz|goog)-(?:signature|security-token"
                r"|credential))=)[^&\s\"']+"
            ),
            r"(\bsshpass\s{1,4}-p\s{0,4})(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"']+)",
            # A user with a password, of curl and others.
            r"((?<!\S)(?:-u|--user)[ =]{1,4}[\"']?[^\s:\"']{1,128}:)[^\s\"']+",
            # In quotes, of YAML, JSON, or JSON in a string of JSON, up to their end.
            rf"(?i)((?:{KEYS}|(?<![a-z])auth)\\{{0,8}}[\"']?\s{{0,8}}[:=]\s{{0,8}}(\\{{0,8}}[\"']))"
            r"(?:(?!\2)(?:\\.|[^\\\n]))+",
            r"(?i)((?:set-)?cookie2?\\{0,4}[\"']?\s{0,4}:\s{0,4})(?!\(removed\)|\\*[\"'])[^\n\"']+",
            (
                rf"(?i)((?:{KEYS}|(?<![a-z])secret)\\{{0,8}}[\"']? ?=[ \t]{{0,8}})"
                rf"{_UNQUOTED}++"
            ),
            (
                rf"(?i)((?:{KEYS}|(?<![a-z])secret)\\{{0,8}}[\"']? ?:[ \t]{{0,8}})"
                rf"{_UNQUOTED}{{4,}}+"
            ),
            rf"(?i)((?<![\w-])--[\w-]{{0,64}}{KEYS}[ =])(?!-){_UNQUOTED_ARGUMENT}{{4,}}+",
            # An argument and its value as two items, of JSON and of YAML.
            rf"(?i)((?<![\w-])--[\w-]{{0,64}}{KEYS}\\{{0,8}}[\"']\s{{0,8}},\s{{0,8}}"
            r"(\\{0,8}[\"'])(?!-))"
            r"(?:(?!\2)(?:\\.|[^\\\n]))+",
            rf"(?im)(^[ \t]{{0,64}}-[ \t]{{1,8}}[\"']?--[\w-]{{0,64}}{KEYS}[\"']?[ \t]{{0,8}}\n"
            r"[ \t]{0,64}-[ \t]{1,8})(?![\"']?-)[^\n]+",
        ),
    )
)
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,64}PRIVATE KEY-----")
# Lines of base64, whose line feeds may be escaped.
_BASE64_LINES = re.compile(r"(?:(?:\s|\\n|\\r){0,8}[A-Za-z0-9+/=]{16,}+)*+")
# The first line of a block scalar of YAML. The groups are the indentation and the field's name.
_BLOCK = re.compile(
    r"([ \t]{0,256}(?:-[ \t]{1,8}){0,8})[\"']?([\w.-]{1,128})[\"']?[ \t]*+:["
    r" \t]*+[|>][-+1-9]{0,2}[ \t]*+(?:#.*)?"
)


def replace_credentials(text: str) -> str:
    """Replace everything in a text that looks like a credential by `REMOVED`."""
    redacted = _replace_private_keys(text)
    for pattern in _PATTERNS:
        redacted = pattern.sub(rf"\g<1>{REMOVED}", redacted)
    return redacted


def replace_blocks(text: str, is_secret: Callable[[str], bool]) -> str:
    """Replace block scalars of YAML by `REMOVED`; their value is on the lines below a name.

    :param text: any text, which need not be YAML
    :param is_secret: whether the value below a name is a secret
    """
    lines: list[str] = []
    depth = -1

    for line in text.split("\n"):
        # A block ends at the first line that is not deeper than its name.
        is_inside = not line.strip() or len(line) - len(line.lstrip(" \t")) > depth
        if depth >= 0 and is_inside:
            continue

        depth = -1
        lines.append(line)
        first = _BLOCK.fullmatch(line.rstrip("\r")) if "|" in line or ">" in line else None
        if first and is_secret(first[2]):
            depth = len(first[1])
            lines.append(f"{' ' * depth}  {REMOVED}")

    return "\n".join(lines)


def _replace_private_keys(text: str) -> str:
    """Replace private keys in PEM, also those that were cut off before their end."""
    pieces: list[str] = []
    position = 0
    # The next end marker is kept between rounds, so that the text is searched only once for ends.
    end = _END.search(text)

    while begin := _BEGIN.search(text, position):
        pieces += [text[position : begin.start()], REMOVED]
        while end is not None and end.start() < begin.end():
            end = _END.search(text, end.end())

        another = _BEGIN.search(text, begin.end())
        if end is not None and (another is None or end.start() < another.start()):
            position = end.end()
        else:
            lines = _BASE64_LINES.match(text, begin.end())
            position = lines.end() if lines else begin.end()

    return "".join([*pieces, text[position:]])
