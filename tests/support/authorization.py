"""Rights as an API server sees them: it hears of roles and bindings by watches, on a busy machine 0.1 s later."""

from __future__ import annotations

from caphv.api.object import SUBJECT_ACCESS_REVIEWS, Obj
from caphv.runtime.client import ApiClient
from tests.support.waiting import until


async def until_allowed(client: ApiClient, user: str, rule: Obj, namespace: str = "") -> None:
    """Wait until a user may do what a rule of a role allows."""
    attributes = {
        "group": rule["apiGroups"][0],
        "resource": rule["resources"][0],
        "verb": rule["verbs"][0],
        "namespace": namespace,
    }
    request = {"user": user, "resourceAttributes": attributes}
    await until(lambda: allows(client, request), f"{user} has the right {rule}")


async def allows(client: ApiClient, request: Obj) -> bool:
    """Whether the API server allows what the spec of a SubjectAccessReview names."""
    kind = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": SUBJECT_ACCESS_REVIEWS.kind}
    body = {**kind, "spec": request}
    answer = await client.request("POST", SUBJECT_ACCESS_REVIEWS.path(), body=body)
    return bool(answer["status"]["allowed"])
