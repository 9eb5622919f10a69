"""Rights that an audit log shows to be used, compared with those that the shipped roles grant."""

from __future__ import annotations

import json

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


def asked(server: ApiServer, user: str, decision: str) -> set[Permission]:
    """Requests of a user that the rules of an API server answered with `allow` or `forbid`."""
    found: set[Permission] = set()
    for line in server.audit_log.read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef")
        reported = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
        if target and event["user"]["username"] == user and reported == decision:
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            found.add((target.get("apiGroup", ""), resource, event["verb"]))
    return found
