"""Reviews that no API server sends: objects with anything anywhere in them, and oversized ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import orjson

from caphv.api import crds
from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj
from tests.support.openapi import example_object
from webhooks import handler
from webhooks.admission import KINDS

EXAMPLES = {
    (crd["spec"]["names"]["kind"], version): example_object(crd, version, "one", "default")
    for crd in crds.custom_resource_definitions()
    for version in VERSIONS
    if crd["spec"]["names"]["kind"] in KINDS
}
WORDS = sorted(
    {word for example in EXAMPLES.values() for word in re.findall(rb'"([A-Za-z]+)":', orjson.dumps(example))}
)
VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    6443,
    2**63,
    1.5,
    -1e300,
    "",
    " ",
    "one",
    "a/b",
    "a/b/c",
    "4Gi",
    "1e400Gi",
    "-1",
    "é\n\0",
]
VALUES += [
    "10.0.0.1",
    "10.0.0.0/8",
    "255.255.0.255",
    "::1",
    "1.2.3",
    "pool",
    "dhcp",
    "TCP",
    "x" * 300,
    [],
    {},
    [[]],
    [{}],
    [None],
]


def anything(random: Random, depth: int = 0) -> Any:
    """Any JSON, often with names and values that mean something somewhere."""
    choice = random.random()
    if depth > 4 or choice < 0.5:
        return random.choice(VALUES)
    if choice < 0.7:
        return [anything(random, depth + 1) for _ in range(random.randrange(4))]
    return {word(random): anything(random, depth + 1) for _ in range(random.randrange(6))}


def word(random: Random) -> str:
    return random.choice(WORDS).decode() if random.random() < 0.9 else random.choice(["", "a/b", "é\n", "x" * 70])


def changed(random: Random, value: Any) -> Any:
    """The value with something else at one place in it."""
    if random.random() < 0.15 or not value or not isinstance(value, dict | list):
        return anything(random)
    if isinstance(value, list):
        place = random.randrange(len(value))
        return [*value[:place], changed(random, value[place]), *value[place + 1 :]]
    name = random.choice(list(value))
    if random.random() < 0.1:
        return {other: value[other] for other in value if other != name}
    return {**value, name: changed(random, value[name])}


def some_object(random: Random, kind: str, version: str) -> Any:
    found: Any = EXAMPLES[kind, version]
    for _ in range(random.randrange(5)):
        found = changed(random, found)
    return found if random.random() < 0.8 else anything(random)


def request(kind: str = "HarvesterMachine", version: str = "v1beta1", **fields: Any) -> Obj:
    """The request of a review."""
    return {
        "uid": "0c4f1a52",
        "kind": {"group": GROUP, "version": version, "kind": kind},
        "operation": "CREATE",
        "namespace": "default",
        "name": "one",
        "object": {"metadata": {"name": "one"}, "spec": {}},
    } | fields


def review(content: Any) -> bytes:
    """A review as it goes over the wire."""
    return orjson.dumps({"apiVersion": handler.API_VERSION, "kind": "AdmissionReview", "request": content})


def fuzzed(random: Random, target: handler.Target) -> Any:
    """A request with anything anywhere in its objects, sometimes in itself, too."""
    content: Any = request(
        target.kind,
        target.version,
        operation=random.choice(["CREATE", "UPDATE", "UPDATE", "DELETE"]),
        object=some_object(random, target.kind, target.version),
        oldObject=some_object(random, target.kind, target.version),
    )
    return changed(random, content) if random.random() < 0.2 else content


def damaged(random: Random, body: bytes) -> bytes:
    """A review that broke on its way."""
    place = random.randrange(len(body))
    return random.choice([body[:place], body[:place] + random.randbytes(3) + body[place:], random.randbytes(place)])


OVERSIZED: dict[str, Callable[[int], Obj]] = {
    "networks": lambda count: {"networks": ["a/b"] * count},
    "empty volumes": lambda count: {"volumes": [{}] * count},
    "nested terms": lambda count: {"nodeAffinity": [[[{}] * 250] * 40] * (count // 10_000)},
    "unknown fields": lambda count: {f"field{n}": n for n in range(count // 4)},
    "a long text": lambda count: {"sshUser": "x" * 4 * count},
    "labels": lambda count: {"workloadAffinity": {"matchLabels": {f"key{n}": 1 for n in range(count // 4)}}},
    "user data": lambda count: {"guestConfig": {"userData": "a: [" * (count + 60_000)}},
}
"""Specs far beyond their bounds, of about five bytes for each of `count`."""
