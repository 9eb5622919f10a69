"""AdmissionReview v1: from the bytes of a request to the bytes of an answer, without any I/O.

Whatever arrives is either answered as a review or refused with `BadReview`: every client in the cluster can
reach this, and what API servers send may be wrong, too, when a user has changed a webhook configuration.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj
from caphv.runtime.text import Limits, TextError, load_json
from caphv.validation.finding import Fault, Finding
from webhooks.admission import KINDS, Review, defaults, validate

Webhook = Literal["validate", "mutate"]
# etcd takes objects of 1.5 MiB, and an update brings two; an API server sends no more.
MAX_BODY = 3 * 1024 * 1024
# Twice what a spec may have, and room for metadata.
_LIMITS = Limits(size=MAX_BODY, depth=128, nodes=15_000)
WEBHOOKS: tuple[Webhook, ...] = ("validate", "mutate")
API_VERSION = "admission.k8s.io/v1"

# The API server joins warnings into HTTP headers: it cuts each at 256 bytes and all of them at 4096.
_WARNING_LENGTH = 250
_WARNINGS = 15
# Everything is reported at once, but no one reads more, and events and logs of others carry the message.
_CAUSES = 100
_CAUSE_LENGTH = 1000
_REASONS = {
    Fault.REQUIRED: "FieldValueRequired",
    Fault.INVALID: "FieldValueInvalid",
    Fault.UNSUPPORTED: "FieldValueNotSupported",
    Fault.DUPLICATE: "FieldValueDuplicate",
    Fault.FORBIDDEN: "FieldValueForbidden",
    Fault.TOO_LONG: "FieldValueTooLong",
    Fault.TOO_MANY: "FieldValueTooMany",
    Fault.WRONG_TYPE: "FieldValueTypeInvalid",
    Fault.UNKNOWN: "FieldValueForbidden",
}


class BadReview(Exception):
    """The body is not an AdmissionReview to answer; the message says what is missing. It holds no content."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a path stands for."""

    webhook: Webhook
    version: str
    kind: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer, and what may be logged of it: the broken rules and `<namespace>/<name>`, no other content."""

    body: bytes
    operation: str
    allowed: bool
    name: str
    rules: tuple[str, ...] = ()


def path_of(webhook: Webhook, version: str, kind: str) -> str:
    """Path of a webhook, as the Go provider has them."""
    return f"/{webhook}-{GROUP.replace('.', '-')}-{version}-{kind.lower()}"


TARGETS = {
    path_of(webhook, version, kind): Target(webhook, version, kind)
    for webhook in WEBHOOKS
    for version in VERSIONS
    for kind in KINDS
}


def answer(target: Target, body: bytes | bytearray, *, enforced: Collection[str] = ()) -> Answer:
    """Answer a review; warnings of rules named in `enforced` are errors. Raises `BadReview`."""
    request = _request(body)
    # Not needed any more, and as large as what was made of it.
    del body
    uid, operation = _text(request, "uid"), _text(request, "operation")
    name = "/".join(part for part in (request.get("namespace"), request.get("name")) if isinstance(part, str) and part)
    kind = request.get("kind")
    if kind != {"group": GROUP, "version": target.version, "kind": target.kind}:
        message = (
            f"this path is for {target.kind} in {GROUP}/{target.version} only: correct the webhook configuration, "
            "or delete it, and the provider recreates it"
        )
        return Answer(_refused(uid, 400, "BadRequest", message), operation, False, name)
    # Deletions are never blocked, and subresources are written by controllers, not by people.
    if operation not in ("CREATE", "UPDATE") or request.get("subResource"):
        return Answer(_response(uid, True), operation, True, name)
    review = Review(
        operation=operation,
        kind=target.kind,
        version=target.version,
        object=_object(request, "object"),
        old=_object(request, "oldObject") if operation == "UPDATE" else None,
        dry_run=request.get("dryRun") is True,
        enforced=enforced,
    )
    if target.webhook == "mutate":
        return Answer(_patched(uid, defaults(review)), operation, True, name)
    return _validated(uid, review, name)


def _request(body: bytes | bytearray) -> Obj:
    try:
        found = load_json(body, _LIMITS)
    except TextError as error:
        raise BadReview(f"the body {error}") from None
    if not isinstance(found, dict) or found.get("kind") != "AdmissionReview":
        raise BadReview("the body is not an AdmissionReview")
    if found.get("apiVersion") != API_VERSION:
        raise BadReview(f"only apiVersion {API_VERSION} is known; set admissionReviewVersions to [v1]")
    request = found.get("request")
    if not isinstance(request, dict):
        raise BadReview("request: Required value: an object")
    return request


def _text(request: Obj, field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str) or not value:
        raise BadReview(f"request.{field}: Required value: a string")
    return value


def _object(request: Obj, field: str) -> Obj:
    value = request.get(field)
    if not isinstance(value, dict):
        raise BadReview(f"request.{field}: Required value: an object")
    return value


def _validated(uid: str, review: Review, name: str) -> Answer:
    verdict = validate(review)
    warnings = _warnings(verdict.warnings)
    if not verdict.errors:
        return Answer(_response(uid, True, warnings=warnings), review.operation, True, name)
    causes = [_cause(finding) for finding in verdict.errors[:_CAUSES]]
    reported = [f"{cause['field']}: {cause['message']}" for cause in causes]
    if len(verdict.errors) > _CAUSES:
        reported.append(f"and {len(verdict.errors) - _CAUSES} more")
    listed = reported[0] if len(reported) == 1 else f"[{', '.join(reported)}]"
    plain_name = name.rpartition("/")[2]
    message = f'{review.kind}.{GROUP} "{plain_name}" is invalid: {listed}'
    details = {"name": plain_name, "group": GROUP, "kind": review.kind, "causes": causes}
    body = _refused(uid, 422, "Invalid", message, details=details, warnings=warnings)
    rules = tuple(sorted({finding.rule for finding in verdict.errors}))
    return Answer(body, review.operation, False, name, rules)


def _cause(finding: Finding) -> Obj:
    # kubectl writes field and message with a colon between them.
    field = finding.field
    message = str(finding).removeprefix(f"{field}: ")
    return {"reason": _REASONS[finding.fault], "message": _cut(message, _CAUSE_LENGTH), "field": _cut(field, 250)}


def _warnings(findings: Sequence[Finding]) -> list[str]:
    reported = [
        _cut(_printable(f"{finding.field}: {finding.detail}"), _WARNING_LENGTH) for finding in findings[:_WARNINGS]
    ]
    if len(findings) > _WARNINGS:
        reported.append(f"and {len(findings) - _WARNINGS} more: `caphv validate` shows all")
    return reported


def _printable(text: str) -> str:
    # The API server drops a warning with a control character in it.
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def _cut(text: str, length: int) -> str:
    if len(text.encode()) <= length:
        return text
    return text.encode()[: length - 3].decode(errors="ignore") + "…"


def _patched(uid: str, operations: Sequence[Obj]) -> bytes:
    if not operations:
        return _response(uid, True)
    return _response(uid, True, patchType="JSONPatch", patch=base64.b64encode(orjson.dumps(operations)).decode())


def _refused(
    uid: str, code: int, reason: str, message: str, *, details: Obj | None = None, warnings: Sequence[str] = ()
) -> bytes:
    return _response(uid, False, status=failure(code, reason, message, details), warnings=warnings)


def failure(code: int, reason: str, message: str, details: Obj | None = None) -> Obj:
    """Return a Status of the API machinery: clients of an API server show its message."""
    status: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": message, "reason": reason, "code": code}
    return status | ({"details": details} if details else {})


def _response(uid: str, allowed: bool, **fields: Any) -> bytes:
    given = {name: value for name, value in fields.items() if value}
    response = {"uid": uid, "allowed": allowed, **given}
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
