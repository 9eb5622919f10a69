"""Deletions that meet a conflict: the object is another one, or was modified, or its reader lacks a right."""

from typing import Any

import pytest

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound
from caphv.runtime.kubeconfig import Kubeconfig

pytestmark = pytest.mark.unit


def client(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any] | ApiError) -> ApiClient:
    """A client whose deletions conflict, and whose reads answer this."""

    async def request(_self: ApiClient, method: str, *_where: object, **_options: object) -> Any:
        if method == "DELETE":
            raise Conflict(409, "Conflict", "the object has been modified")
        if isinstance(found, ApiError):
            raise found
        return found

    monkeypatch.setattr(ApiClient, "request", request)
    return Kubeconfig(server="https://harvester.example.com").client(name="test", untrusted=False)


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ({"metadata": {"uid": "other"}}, NotFound),
        ({"metadata": {"uid": "own"}}, Conflict),
        (Forbidden(403, "Forbidden", "cannot get persistentvolumeclaims"), Conflict),
    ],
    ids=["recreated", "modified", "account without the right to get"],
)
async def test_conflict_of_a_deletion_is_distinguished_from_recreation(
    monkeypatch: pytest.MonkeyPatch, found: Any, error: type[ApiError]
) -> None:
    with pytest.raises(error) as caught:
        await client(monkeypatch, found).delete(PERSISTENT_VOLUME_CLAIMS, "disk", "vms", uid="own")
    assert type(caught.value) is error
