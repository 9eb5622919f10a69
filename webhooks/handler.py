"""Answer an AdmissionReview v1: turn bytes of a request into bytes of an answer, without I/O.

Every body is either answered as a review or refused with `BadReview`, because every client in the
cluster can send one, and API servers send invalid ones if a user has changed a webhook
configuration.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj, at
from caphv.runtime.text import Limits, TextError, load_json
from caphv.validation.finding import Fault, Finding
from webhooks.admission import KINDS, Review, defaults, validate

Webhook = Literal["validate", "mutate"]
# etcd stores objects of at most 1.5 MiB, and an update has two, so an API server sends no more.
MAX_BODY = 3 * 1024 * 1024
# Two specs at their bounds, and room for metadata.
_LIMITS = Limits(size=MAX_BODY, depth=128, nodes=15_000)
WEBHOOKS: tuple[Webhook, ...] = ("validate", "mutate")
API_VERSION = "admission.k8s.io/v1"

# The API server cuts each warning at 256 bytes, and all of them at 4096, because it sends them in
# HTTP headers.
_MAX_WARNING_LENGTH = 250
_MAX_WARNINGS = 15
# All causes are reported at once, but they are limited, because Events and logs of other programs
# contain the message.
_MAX_CAUSES = 100
_MAX_CAUSE_LENGTH = 1000
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
    """The body is not an AdmissionReview. The message names the missing part and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Webhook, API version and kind of a path."""

    webhook: Webhook
    version: str
    kind: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and facts for the log. Only broken rules and `namespace/name` may be logged."""

    body: bytes
    operation: str
    allowed: bool
    name: str
    rules: tuple[str, ...] = ()


def path_of(webhook: Webhook, version: str, kind: str) -> str:
    """Return the path of a webhook in the form of the Go provider."""
    return f"/{webhook}-{GROUP.replace('.', '-')}-{version}-{kind.lower()}"


TARGETS = {
    path_of(webhook, version, kind): Target(webhook, version, kind)
    for webhook in WEBHOOKS
    for version in VERSIONS
    for kind in KINDS
}


def answer(target: Target, body: bytes | bytearray, *, enforced: Collection[str] = ()) -> Answer:
    """Answer a review. Warnings of rules named in `enforced` are errors. Raises `BadReview`."""
    request = _request(body)
    # Free the body, which is as large as the parsed request.
    del body
    # An API server refuses an answer that does not have the uid of its request.
    uid = _text(request, "uid")
    operation = _text(request, "operation")
    parts = (request.get("namespace"), request.get("name"))
    name = "/".join(part for part in parts if isinstance(part, str) and part)

    expected_kind = {"group": GROUP, "version": target.version, "kind": target.kind}
    # A user's configuration may send other kinds here, or convert versions (`Equivalent`).
    if request.get("kind") != expected_kind:
        message = (
            f"this path is for {target.kind} in {GROUP}/{target.version} only: correct the webhook "
            "configuration, or delete it, and the provider recreates it"
        )
        return Answer(
            body=_refusal(uid, 400, "BadRequest", message),
            operation=operation,
            allowed=False,
            name=name,
        )

    # Deletions are never blocked, and only controllers write subresources.
    if operation not in ("CREATE", "UPDATE") or request.get("subResource"):
        return Answer(body=_response(uid, True), operation=operation, allowed=True, name=name)

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
        return Answer(
            body=_patch_response(uid, defaults(review)),
            operation=operation,
            allowed=True,
            name=name,
        )
    return _validate(uid, review, name)


def _request(body: bytes | bytearray) -> Obj:
    """Return the request in an AdmissionReview. Raises `BadReview`."""
    try:
        admission_review = load_json(body, _LIMITS)
    except TextError as error:
        raise BadReview(f"the body {error}") from None

    kind = at(admission_review, "kind")
    api_version = at(admission_review, "apiVersion")
    if kind != "AdmissionReview":
        raise BadReview("the body is not an AdmissionReview")
    if api_version != API_VERSION:
        raise BadReview(
            f"only apiVersion {API_VERSION} is known; set admissionReviewVersions to [v1]"
        )
    return _object(admission_review, "request", path="request")


def _text(request: Obj, field: str) -> str:
    """Return a text of the request. Raises `BadReview` without it."""
    value = request.get(field)
    if not isinstance(value, str) or not value:
        raise BadReview(f"request.{field}: Required value: a string")
    return value


def _object(parent: Obj, field: str, *, path: str = "") -> Obj:
    """Return an object in the request. Raises `BadReview` without it.

    :param path: how the error names the field, by default as one of the request
    """
    value = parent.get(field)
    if not isinstance(value, dict):
        raise BadReview(f"{path or 'request.' + field}: Required value: an object")
    return value


def _validate(uid: str, review: Review, name: str) -> Answer:
    """Answer a review of the validating webhook."""
    verdict = validate(review)
    warnings = _warnings(verdict.warnings)
    if not verdict.errors:
        return Answer(
            body=_response(uid, True, warnings=warnings),
            operation=review.operation,
            allowed=True,
            name=name,
        )

    causes = [_cause(finding) for finding in verdict.errors[:_MAX_CAUSES]]
    texts = [f"{cause['field']}: {cause['message']}" for cause in causes]
    if len(verdict.errors) > _MAX_CAUSES:
        texts.append(f"and {len(verdict.errors) - _MAX_CAUSES} more")
    # Use the form of NewInvalid and of aggregated errors in apimachinery, which users know.
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

    plain_name = name.rpartition("/")[2]
    message = f'{review.kind}.{GROUP} "{plain_name}" is invalid: {listed}'
    details = {"name": plain_name, "group": GROUP, "kind": review.kind, "causes": causes}
    body = _refusal(uid, 422, "Invalid", message, details=details, warnings=warnings)
    rules = tuple(sorted({finding.rule for finding in verdict.errors}))
    return Answer(body=body, operation=review.operation, allowed=False, name=name, rules=rules)


def _cause(finding: Finding) -> Obj:
    """Return a finding as a cause in the details of a Status."""
    # kubectl writes field and message with a colon between them.
    field = finding.field
    message = str(finding).removeprefix(f"{field}: ")
    return {
        "reason": _REASONS[finding.fault],
        "message": _cut(message, _MAX_CAUSE_LENGTH),
        "field": _cut(field, 250),
    }


def _warnings(findings: Sequence[Finding]) -> list[str]:
    """Return warnings in a form that the API server passes on to the client."""
    warnings = []
    for finding in findings[:_MAX_WARNINGS]:
        text = _printable(f"{finding.field}: {finding.detail}")
        warnings.append(_cut(text, _MAX_WARNING_LENGTH))

    if len(findings) > _MAX_WARNINGS:
        warnings.append(f"and {len(findings) - _MAX_WARNINGS} more: `caphv validate` shows all")
    return warnings


def _printable(text: str) -> str:
    """Return a text without control characters, because the API server drops such warnings."""
    # Texts can be large, and nearly all are printable as a whole.
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def _cut(text: str, length: int) -> str:
    """Return a text of at most `length` bytes, with an ellipsis at the end of one that was cut."""
    encoded = text.encode()
    if len(encoded) <= length:
        return text
    return encoded[: length - 3].decode(errors="ignore") + "…"


def _patch_response(uid: str, operations: Sequence[Obj]) -> bytes:
    """Return the body of an answer that changes the object by a JSON Patch, if there is one."""
    if not operations:
        return _response(uid, True)
    # An API server requires patch and patchType together.
    patch = base64.b64encode(orjson.dumps(operations)).decode()
    return _response(uid, True, patchType="JSONPatch", patch=patch)


def _refusal(
    uid: str,
    code: int,
    reason: str,
    message: str,
    *,
    details: Obj | None = None,
    warnings: Sequence[str] = (),
) -> bytes:
    """Return the body of an answer that refuses the object.

    :param uid: uid of the review
    :param code: HTTP status for the client of the API server
    :param reason: reason for programs
    :param message: message for people
    :param details: causes by field
    :param warnings: warnings in addition to the message
    """
    status = failure(code, reason, message, details)
    return _response(uid, False, status=status, warnings=warnings)


def failure(code: int, reason: str, message: str, details: Obj | None = None) -> Obj:
    """Return a Status of the API machinery, whose message clients of an API server show.

    :param code: HTTP status
    :param reason: reason for programs
    :param message: message for people
    :param details: causes by field
    """
    status: Obj = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    if details:
        status["details"] = details
    return status


def _response(uid: str, allowed: bool, **fields: Any) -> bytes:
    """Return the body of an answer, without empty `fields` of the response."""
    response = {"uid": uid, "allowed": allowed}
    response |= {name: value for name, value in fields.items() if value}
    review = {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    return orjson.dumps(review)
