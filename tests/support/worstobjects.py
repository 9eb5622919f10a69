"""Objects that are slow to read or large, as an attacker with a Harvester or a workload cluster would write them."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from caphv.api import names
from caphv.api.object import Obj


def texts(size: int) -> Iterable[str]:
    """Yield texts of a size in JSON that are slow to read as an address, a name or a condition."""
    for pump in ("a", "1", ":", "1:", "10.0.0.1/", "a/", "\x1b[", "\x1b]0;", "é", "\n", " ", "a=b,"):
        yield pump * (size // len(orjson.dumps(pump)[1:-1]))


def worst_objects(size: int) -> Iterable[Obj]:
    """Yield objects whose fields that we read are as long, as many, or as deep as the API server takes."""
    for text in texts(size // 12):
        yield {
            "metadata": {
                "labels": {names.GUEST_CLUSTER_LABEL: text, names.MACHINE_TYPE_LABEL: text},
                "annotations": {"caphv.io/x": text},
            },
            "spec": {
                "providerID": text,
                "template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": text}}]}},
            },
            "status": {
                "address": text,
                "nodeInfo": {"systemUUID": text},
                "phase": text,
                "conditions": [{"type": "Ready", "status": "False", "reason": text, "message": text}],
                "interfaces": [{"name": "a", "ipAddress": text, "ipAddresses": [text]}],
            },
        }
    count = size // 40
    marks = {f"caphv.io/{number}": "a" for number in range(count)}
    yield {"metadata": {"labels": marks}}
    yield {"metadata": {"annotations": marks}}
    yield {"spec": {"taints": [{"key": "a", "effect": "b"}] * count}}
    yield {"status": {"interfaces": [{"ipAddress": "10.0.0.1", "name": "a"}] * count}}
    yield {"status": {"interfaces": [{"ipAddresses": [f"10.0.{n >> 8 & 255}.{n & 255}" for n in range(size // 16)]}]}}
    yield {"status": {"conditions": [{"type": "Ready", "status": "False"}] * count}}
    yield {"spec": {"template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "a"}}] * (size // 50)}}}}
    yield {"spec": {"anything": [[]] * (size // 3)}}
    yield {"spec": {"anything": [{}] * (size // 3)}}
    yield {"spec": {"anything": {f"{number}": 1 for number in range(size // 10)}}}
