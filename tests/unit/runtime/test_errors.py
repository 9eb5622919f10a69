"""Paths that stay what they are whatever a name contains, and answers reported apart by type."""

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import DEPLOYMENTS, NAMESPACES, SECRETS, Key
from caphv.runtime import errors
from caphv.runtime.errors import error_from
from caphv.runtime.kubeconfig import Kubeconfig

pytestmark = pytest.mark.unit


def test_paths_of_the_api() -> None:
    assert SECRETS.path() == "/api/v1/secrets"
    assert SECRETS.path("ns", "s") == "/api/v1/namespaces/ns/secrets/s"
    assert NAMESPACES.path("", "ns", "status") == "/api/v1/namespaces/ns/status"
    assert DEPLOYMENTS.path("ns", "d") == "/apis/apps/v1/namespaces/ns/deployments/d"


@given(namespace=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), name=st.text(min_size=1))
def test_a_name_is_one_part_of_the_path_whatever_it_contains(namespace: str, name: str) -> None:
    parts = SECRETS.path(namespace, name).split("/")
    assert [unquote(part) for part in parts] == ["", "api", "v1", "namespaces", namespace, "secrets", name]
    assert not {".", ".."} & set(parts)
    assert all(character not in part for part in parts for character in "?#")


@pytest.mark.parametrize("verb", ["get", "patch", "delete", "replace", "apply"])
async def test_an_empty_name_is_never_taken_for_all_objects(verb: str) -> None:
    client = Kubeconfig(server="https://127.0.0.1:1", token="none").client(name="test")
    calls: dict[str, Any] = {
        "get": lambda: client.get(SECRETS, "", "ns"),
        "patch": lambda: client.patch(SECRETS, "", "ns", {}),
        "delete": lambda: client.delete(SECRETS, "", "ns"),
        "replace": lambda: client.replace(SECRETS, {"metadata": {"name": "", "namespace": "ns"}}),
        "apply": lambda: client.apply(SECRETS, {"metadata": {"name": "", "namespace": "ns"}}, manager="m"),
    }
    with pytest.raises(ValueError, match=r"secrets: the name is empty"):
        await calls[verb]()


def test_key_reads_like_in_kubectl() -> None:
    assert str(Key("ns", "a")) == "ns/a"
    assert str(Key("", "a")) == "a"


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (418, "", errors.ApiError),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerFault),
        (503, "ServiceUnavailable", errors.ServerFault),
    ],
)
def test_each_answer_has_its_type(status: int, reason: str, expected: type[errors.ApiError]) -> None:
    error = error_from(status, {"reason": reason, "message": "because"})
    assert type(error) is expected
    assert (error.status, error.reason, str(error)) == (status, reason, "because")


TERMINATING = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}


@pytest.mark.parametrize(
    ("status", "details", "expected"),
    [
        (403, TERMINATING, errors.NamespaceTerminating),
        (404, TERMINATING, errors.NotFound),
        (403, {"causes": [{"reason": "Other"}, "NamespaceTerminating", None]}, errors.Forbidden),
        (403, {"causes": {"reason": "NamespaceTerminating"}}, errors.Forbidden),
        (403, {"causes": [{"reason": ["NamespaceTerminating"]}]}, errors.Forbidden),
    ],
)
def test_a_namespace_that_ends_is_recognized_by_the_cause(
    status: int, details: Any, expected: type[errors.ApiError]
) -> None:
    body = {"reason": "Forbidden", "message": "unable to create", "details": details}
    assert type(error_from(status, body)) is expected


@pytest.mark.parametrize("status", [409, 500, 503])
@pytest.mark.parametrize("webhook", ["ippools.validator.harvesterhci.io", ""])
def test_denial_of_a_webhook_is_invalid_whatever_status_it_chooses(status: int, webhook: str) -> None:
    message = f'admission webhook "{webhook}" denied the request: Internal error occurred: overlap'
    error = error_from(status, {"reason": "InternalError", "message": message})
    assert type(error) is errors.Invalid
    assert (error.status, str(error)) == (status, message)


def test_a_webhook_that_cannot_be_called_is_a_server_fault() -> None:
    message = 'Internal error occurred: failed calling webhook "ippools": admission webhook "x" denied the request'
    assert type(error_from(500, {"reason": "InternalError", "message": message})) is errors.ServerFault


@pytest.mark.parametrize(("status", "expected"), [(403, errors.Forbidden), (429, errors.TooManyRequests)])
def test_denial_for_lack_of_rights_or_time_stays_so(status: int, expected: type[errors.ApiError]) -> None:
    assert type(error_from(status, {"message": 'admission webhook "x" denied the request: no'})) is expected


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7), (None, 1), ("Wed, 21 Oct 2026", 1), ("9" * 50, 60), ("-1", 1)]
)
def test_wait_that_a_server_asks_for_has_bounds(header: str | None, seconds: float) -> None:
    error = error_from(429, {}, header)
    assert isinstance(error, errors.TooManyRequests)
    assert error.retry_after == seconds


def test_503_with_a_wait_is_a_wait() -> None:
    assert isinstance(error_from(503, {}, "5"), errors.TooManyRequests)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(
    st.integers(300, 599),
    ANYTHING | st.fixed_dictionaries({}, optional={"reason": ANYTHING, "message": ANYTHING, "details": ANYTHING}),
    st.none() | st.text(),
)
def test_whatever_a_server_sends_is_an_api_error(status: int, body: Any, header: str | None) -> None:
    error = error_from(status, body, header)
    assert error.status == status
    assert str(error)
    if isinstance(error, errors.TooManyRequests):
        assert 0 < error.retry_after <= 60
