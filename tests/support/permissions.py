"""Rights that an audit log shows to be used, compared with those that the shipped roles grant."""

from __future__ import annotations

import copy
import json
import re

from caphv.api.object import Obj
from sandbox.processes.apiserver import ApiServer

GROUPS = ["system:serviceaccounts", "system:serviceaccounts:caphv-system", "system:authenticated"]


Permission = tuple[str, str, str]


def granted(roles: list[Obj]) -> set[Permission]:
    """Group, resource and verb of all that the rules of roles allow."""
    rules = [rule for role in roles if role["kind"] in ("ClusterRole", "Role") for rule in role["rules"]]
    rules = [rule for rule in rules if "nonResourceURLs" not in rule]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def in_namespace(roles: list[Obj], namespace: str) -> list[Obj]:
    """Roles and bindings as component `one-namespace` has them; other objects are left out."""
    found = [
        copy.deepcopy(obj)
        for obj in roles
        if obj["kind"].startswith(("ClusterRole", "Role"))
        and not obj["metadata"]["name"].startswith("caphv-token-renewal-")
    ]
    for obj in found:
        if re.fullmatch(r"caphv-(manager|packager)-role(binding)?", obj["metadata"]["name"]):
            obj["kind"] = obj["kind"].removeprefix("Cluster")
            obj["metadata"]["namespace"] = namespace
            if "roleRef" in obj:
                obj["roleRef"]["kind"] = "Role"
    return found


def asked(server: ApiServer, user: str, decision: str) -> set[Permission]:
    """Requests of a user that the rules of an API server answered with `allow` or `forbid`."""
    found: set[Permission] = set()
    for line in server.audit_log.read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef")
        reported = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
        if target and event["user"].get("username") == user and reported == decision:
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            found.add((target.get("apiGroup", ""), resource, event["verb"]))
    return found
