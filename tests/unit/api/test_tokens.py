"""Whose a token is, by its claims."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key
from caphv.api.tokens import ServiceAccountToken, token_of
from reconciler.harvester.rotation import next_name

pytestmark = pytest.mark.unit

SUBJECT = "system:serviceaccount:caphv-system:caphv"
ACCOUNT = Key("caphv-system", "caphv")


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"sub": SUBJECT}, ServiceAccountToken(ACCOUNT)),
        ({"sub": SUBJECT, "iat": 100, "exp": 3700}, ServiceAccountToken(ACCOUNT, "", 3600)),
        (
            {"sub": SUBJECT, "kubernetes.io/serviceaccount/secret.name": "caphv-token"},
            ServiceAccountToken(ACCOUNT, "caphv-token"),
        ),
        ({"sub": SUBJECT, "kubernetes.io": {"secret": {"name": "t"}}}, ServiceAccountToken(ACCOUNT, "t")),
        ({"sub": "admin"}, None),
        ({"sub": "system:serviceaccount:x"}, None),
        ({"sub": "system:serviceaccount::x"}, None),
        ({}, None),
    ],
)
def test_claims_name_the_account(claims: dict[str, Any], expected: ServiceAccountToken | None) -> None:
    assert token_of(claims) == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["secret", "name", "x"]), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from(["iat", "exp", "kubernetes.io", "kubernetes.io/serviceaccount/secret.name"]), _JSON)
)
def test_claims_of_any_form_are_read(claims: dict[str, Any]) -> None:
    found = token_of({"sub": SUBJECT, **claims})
    assert found is not None
    assert found.seconds >= 0


@given(st.from_regex(r"[a-z]{1,5}(-[a-z0-9]{1,4}){0,2}", fullmatch=True))
def test_each_rotation_has_another_name(name: str) -> None:
    names = [name]
    for _ in range(3):
        names.append(next_name(names[-1]))
    assert len(set(names)) == 4


def test_names_are_numbered() -> None:
    assert [next_name(name) for name in ("caphv-token", "caphv-token-2", "caphv-token-99")] == [
        "caphv-token-2",
        "caphv-token-3",
        "caphv-token-100",
    ]
