"""What several tests need: reading CRDs and making objects from their schemas."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient

# Tried in order for a string with a pattern; the first that matches is taken.
_PATTERN_CANDIDATES = ("Example", "example", "40Gi", "1", "172.17.1.10", "a.example.com", "2026-11-21T09:00:00Z")
_PATTERN_CANDIDATES += ("https://images.example.com/example.qcow2", "https://example.com:6443", "a" * 128)
# Where fields have to fit each other, by their name.
_BY_NAME = {
    "address": "172.17.1.10",
    "bootOrder": 1,
    "cloudConfigCredentialsSecretKey": "example",
    "dnsServers": ["172.17.1.1"],
    "gateway": "172.17.1.1",
    "host": "example.com",
    "memory": "4Gi",
    "nodeResource": "nvidia.com/gpu",
    "operator": "In",
    "providerID": "harvester://example",
    "rangeEnd": "172.17.1.90",
    "rangeStart": "172.17.1.20",
    "resourceName": "nvidia.com/GA102GL_A10",
    "subnet": "172.17.1.0/24",
    "subnetMask": "255.255.255.0",
}
_FORMATS = {
    "date-time": "2026-11-21T09:00:00Z",
    "date": "2026-11-21",
    "byte": "ZXhhbXBsZQ==",
    "duration": "1h",
    "uuid": "0c4f1a52-5f0e-4f0a-9d3c-2f6d1c1f7a10",
    "ipv4": "172.17.1.10",
    "cidr": "172.17.1.0/24",
    "uri": "https://example.com",
}


def object_schema(crd: Obj, version: str) -> Obj:
    """The OpenAPI schema of one version of a CRD."""
    for candidate in crd["spec"]["versions"]:
        if candidate["name"] == version:
            schema: Obj = candidate["schema"]["openAPIV3Schema"]
            return schema
    raise KeyError(f"{crd['metadata']['name']} has no version {version}")


def fields(schema: Obj, path: str = "") -> Iterator[tuple[str, Obj]]:
    """All nodes of an OpenAPI schema with their paths, like `.spec.volumes[].volumeType` and `.spec.labels{}`."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from fields(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from fields(schema["additionalProperties"], f"{path}{{}}")


def example_object(crd: Obj, version: str, name: str, namespace: str) -> Obj:
    """An object of this CRD and version with every field set, status included, that its schema accepts."""
    populated: Obj = example_value(object_schema(crd, version))
    return populated | {
        "apiVersion": f"{crd['spec']['group']}/{version}",
        "kind": crd["spec"]["names"]["kind"],
        "metadata": {"name": name, "namespace": namespace},
    }


def example_value(schema: Obj) -> Any:
    """A value with every field set; lists and maps get one entry, enums their first value."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("x-kubernetes-int-or-string"):
        return "40Gi"
    match schema.get("type"):
        case "object":
            return _example_mapping(schema)
        case "array":
            count = max(1, schema.get("minItems", 1))
            return [example_value(schema["items"])] * min(count, schema.get("maxItems", count))
        case "boolean":
            return True
        case "integer" | "number":
            return min(max(1, schema.get("minimum", 1)), schema.get("maximum", 1))
        case "string":
            return _example_string(schema)
    return {}


def _example_mapping(schema: Obj) -> Obj:
    children = schema.get("properties", {}).items()
    mapping = {name: _BY_NAME[name] if name in _BY_NAME else example_value(child) for name, child in children}
    if isinstance(schema.get("additionalProperties"), dict):
        mapping["example"] = example_value(schema["additionalProperties"])
    return mapping


def _example_string(schema: Obj) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    if "pattern" not in schema:
        return "example".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]
    for candidate in _PATTERN_CANDIDATES:
        if re.search(schema["pattern"], candidate):
            return candidate
    raise ValueError(f"no example for pattern {schema['pattern']}: add one to tests/support/openapi.py")


# An API server takes a moment to serve a changed CRD, and says nowhere when it does.
SERVED = 3.0


CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)


@asynccontextmanager
async def without_rules(client: ApiClient, names: Sequence[str]) -> AsyncIterator[None]:
    """CRDs of ours have no rules inside the block; afterwards they are there again."""
    crds = [await client.get(CRDS, name) for name in names]
    for crd in crds:
        await client.patch(CRDS, crd["metadata"]["name"], "", {"spec": no_rules(crd["spec"])})
    await asyncio.sleep(SERVED)
    yield
    for crd in crds:
        await client.patch(CRDS, crd["metadata"]["name"], "", {"spec": crd["spec"]})
    await asyncio.sleep(SERVED)


def no_rules(value: Any) -> Any:
    """A copy without the validation rules of any schema in it."""
    if isinstance(value, dict):
        return {name: no_rules(child) for name, child in value.items() if name != "x-kubernetes-validations"}
    return [no_rules(child) for child in value] if isinstance(value, list) else value
