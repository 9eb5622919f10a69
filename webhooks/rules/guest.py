"""Rules about the cloud-config in a machine's `guestConfig`, without which no VM is created.

It may contain secrets, so no finding quotes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import yaml

from caphv.runtime.text import TextError, compose_yaml
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from webhooks.rules.model import MACHINES, Subject
from webhooks.rules.values import KI

RULES = Rules()

_MAX_LENGTH = 128 * KI
_LISTS = ("packages", "runcmd", "ssh_authorized_keys", "groups", "users", "write_files", "bootcmd")
_TEMPLATE = re.compile(r"##\s*template:\s*jinja\s*", re.IGNORECASE)
# Beginnings by which cloud-init and Ignition tell formats apart. The last byte begins a gzip file.
_FOREIGN = re.compile(
    r"#!|#include|#cloud-boothook|#cloud-config-\w+|#part-handler"
    r"|content-type:|mime-version:|variant:|\x1f",
    re.IGNORECASE,
)
_SECRET_WORDS = (
    "password",
    "passwd",
    "plain_text_passwd",
    "hashed_passwd",
    "token",
    "private_key",
    "ssh_keys",
)


@RULES.rule(
    "user-data-length",
    MACHINES,
    "`guestConfig.userData` must have at most 128Ki characters: it shares a Secret of 1Mi with the "
    "bootstrap data.",
    "guestConfig.userData",
    example='guestConfig: {userData: "…"}',
)
def _user_data_length(subject: Subject) -> Iterator[Finding]:
    data = subject.spec.at("guestConfig", "userData")
    if len(data.text) > _MAX_LENGTH:
        yield Finding(
            data.path,
            Fault.TOO_LONG,
            f"must have at most {_MAX_LENGTH} characters: put files into the image",
        )


@RULES.rule(
    "user-data-format",
    MACHINES,
    "`guestConfig.userData` must be cloud-config, with or without its header: a YAML mapping, not "
    "a script or a Jinja template.",
    "guestConfig.userData",
    example='guestConfig: {userData: "#!/bin/sh"}',
)
def _user_data_format(subject: Subject) -> Iterator[Finding]:
    data = subject.spec.at("guestConfig", "userData")
    if 0 < len(data.text) <= _MAX_LENGTH and (fault := _fault(data.text)):
        yield Finding(
            data.path, Fault.INVALID, f"{fault}: write plain cloud-config, a YAML mapping"
        )


@RULES.rule(
    "user-data-secret",
    MACHINES,
    "`guestConfig.userData` must not contain secrets: everyone who may read the object can "
    "read it.",
    "guestConfig.userData",
    example='guestConfig: {userData: "password: swordfish"}',
    advice=True,
)
def _user_data_secret(subject: Subject) -> Iterator[Finding]:
    data = subject.spec.at("guestConfig", "userData")
    if len(data.text) <= _MAX_LENGTH and any(f"{word}:" in data.text for word in _SECRET_WORDS):
        detail = (
            "seems to hold a secret, and everyone who may read this object can read it: put it "
            "into the bootstrap data"
        )
        yield Finding(data.path, Fault.INVALID, detail)


@lru_cache(maxsize=64)
def _fault(text: str) -> str:
    """Return why a text is not cloud-config, empty if it is.

    The result is cached, because all machines of a template have the same text.
    """
    body = text.removeprefix("\ufeff").lstrip()
    if _TEMPLATE.fullmatch(body.partition("\n")[0]):
        return "is a Jinja template"
    if _FOREIGN.match(body):
        return "is no cloud-config but of another format"

    try:
        root = compose_yaml(body)
    except TextError as error:
        return str(error)

    if root is None or (isinstance(root, yaml.ScalarNode) and root.value in ("", "null", "~")):
        return ""
    if not isinstance(root, yaml.MappingNode):
        return "is not a mapping of cloud-config keys"
    return _key_fault(root)


def _key_fault(root: yaml.MappingNode) -> str:
    """Return the fault of a key or its value, empty if there is none."""
    names: set[str] = set()
    for key, value in root.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
            return "has a key that is not a key of cloud-config"
        # PyYAML, with which cloud-init reads the text, would silently use the last one.
        if name in names:
            return f"has key {name} twice"
        names.add(name)

        is_null = isinstance(value, yaml.ScalarNode) and value.tag == "tag:yaml.org,2002:null"
        if name in _LISTS and not (isinstance(value, yaml.SequenceNode) or is_null):
            return f"has key {name} that is not a list"
    return ""
