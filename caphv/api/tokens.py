"""Read the claims of a ServiceAccount's token: its account, its lifetime, and its Secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api.object import Key

_SUBJECT = "system:serviceaccount:"
# What Kubernetes accepts as the names of a namespace and of a ServiceAccount. A hostile server may
# claim anything.
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class ServiceAccountToken:
    """The account of a token.

    `secret` is empty if no Secret holds the token; `seconds` is 0 if the token does not expire.
    """

    account: Key
    secret: str = ""
    seconds: int = 0


def token_of(claims: Mapping[str, Any]) -> ServiceAccountToken | None:
    """Return the account in a token's claims, None for another token. Claims prove nothing."""
    subject = str(claims.get("sub") or "")
    namespace, _, name = subject.removeprefix(_SUBJECT).partition(":")
    if not subject.startswith(_SUBJECT):
        return None
    if not _NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
        return None

    # A token of a Secret names it in a legacy claim, or in the claim of bound tokens.
    bound = claims.get("kubernetes.io")
    holder = (bound.get("secret") if isinstance(bound, Mapping) else None) or {}
    secret = claims.get("kubernetes.io/serviceaccount/secret.name") or (
        holder.get("name") if isinstance(holder, Mapping) else ""
    )
    start = claims.get("iat")
    end = claims.get("exp")
    seconds = max(0, end - start) if isinstance(start, int) and isinstance(end, int) else 0
    return ServiceAccountToken(Key(namespace, name), str(secret or ""), seconds)
