"""Have Harvester import the images that a cluster declares and Harvester lacks.

Images belong to no cluster: their names follow from the spec alone, so that all clusters of a
Harvester share them, and the provider neither changes nor deletes one. Machines wait for their
images themselves, so this phase blocks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple

from caphv.api import names, resources
from caphv.api.bootimage import ImageImport, import_problems, imports
from caphv.api.counting import name_some
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, annotations_of, key_of
from caphv.api.plaintext import plain
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
    RequestError,
    ServerFault,
    TooManyRequests,
    Unreachable,
    kind_of,
)
from reconciler import triggers
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.importrefusals import ImportRefusals, Refusal
from reconciler.harvester.rights import command_for
from reconciler.machine.images import import_failure, redacted, resolve_image

_CONDITION = ConditionType.IMAGES_READY
_SHOWN = 3
_MAX_REASON = 512
# Seconds until a refused import is tried again, because no watch reports a new right, and until one
# is whose refusal may be over soon. Both double with each attempt.
_REFUSED_SECONDS = 60.0
_MAX_REFUSED_SECONDS = 600.0
_RETRY_SECONDS = 5.0
_MAX_RETRY_SECONDS = 300.0
# Attempts after which a refusal that may be over soon counts as a failure: about a minute.
_PATIENCE = 5
_MIN_SECONDS = 1.0
# Other failures, such as invalid credentials, concern the connection.
_REFUSALS = (Conflict, Forbidden, Invalid, NotFound, ServerFault, TooManyRequests, Unreachable)


async def ensure_images(scope: ClusterScope) -> None:
    """Import missing images, and set the condition; remove it if the cluster declares none."""
    if not scope.obj["spec"].get("images"):
        scope.draft.drop(_CONDITION)
        return

    # The subscription outlives this reconcile, because a deleted image is imported again.
    declared = imports(scope.obj["spec"])
    harvester = scope.require_session().fingerprint
    scope.subscribe(*(triggers.image(harvester, namespace, name) for namespace, name in declared))
    _forget_refusals(scope, declared.values())
    failures = list(import_problems(scope.obj["spec"]))
    pending = []
    answers = True
    for image in declared.values():
        state = await _ensure_image(scope, image, answers=answers)
        answers = state.answers
        if state.failure:
            failures.append(f"{image}: {state.failure}")
        if state.wait:
            pending.append(f"{image}: {state.wait}")
    _report(scope, failures, pending)


class _ImageState(NamedTuple):
    """Why an image cannot be used, or what it waits for, and whether Harvester answers."""

    failure: str
    wait: str
    answers: bool


def _forget_refusals(scope: ClusterScope, images: Iterable[ImageImport]) -> None:
    """Forget that imports were refused, if a user asks for an attempt now."""
    requested = annotations_of(scope.obj).get(names.RECONCILE_AT_ANNOTATION, "")
    if scope.memory.images_tried_at != requested:
        scope.memory.images_tried_at = requested
        for image in images:
            scope.require_session().import_refusals.forget(image)


def image_object(image: ImageImport) -> Obj:
    """Return the VirtualMachineImage to create."""
    return {
        "apiVersion": resources.IMAGES.api_version,
        "kind": resources.IMAGES.kind,
        "metadata": {
            "name": image.object_name,
            "namespace": image.namespace,
            "labels": {names.IMPORTED_LABEL: "true"},
        },
        "spec": {
            "displayName": image.name,
            "sourceType": "download",
            "url": image.url,
            "checksum": image.checksum,
            # The other backend, CDI, does not verify the checksum.
            "backend": "backingimage",
        },
    }


async def _ensure_image(scope: ClusterScope, image: ImageImport, *, answers: bool) -> _ImageState:
    """Create an image if Harvester lacks it, and return its state.

    :param answers: whether Harvester answered the request before
    """
    session = scope.require_session()
    existing = resolve_image(str(image), session.images.store, image.namespace)
    if existing:
        failure = import_failure(existing, image)
        return _ImageState(failure, "" if failure else existing.pending, answers)

    refusal = session.import_refusals.of(image)
    if refusal is not None:
        return _state_after_refusal(scope, image, refusal, answers=answers)
    if namesake := _find_namesake(session.images.store, image):
        namespace, name = key_of(namesake)
        scope.subscribe(triggers.image(session.fingerprint, namespace, name))
        return _ImageState(_describe_namesake(namesake), "", answers)
    if not answers:
        # Each further request might take as long as the time-out, and the phases that follow do not
        # depend on images.
        scope.requeue_within(_RETRY_SECONDS)
        return _ImageState("", "waiting for Harvester to answer", answers)

    return await _create_image(scope, image)


async def _create_image(scope: ClusterScope, image: ImageImport) -> _ImageState:
    """Have Harvester import an image, and return the state of the image."""
    session = scope.require_session()
    try:
        created = await session.client.create(resources.IMAGES, image_object(image))
    except _REFUSALS as error:
        refusal = _note(session.import_refusals, image, error)
        answers = not isinstance(error, Unreachable | TooManyRequests)
        return _state_after_refusal(scope, image, refusal, answers=answers)

    session.import_refusals.forget(image)
    session.images.observe(created)
    key = f"{image.namespace}/{image.object_name}"
    scope.event("ImageImportStarted", f"Harvester imports {image} as VirtualMachineImage {key}")
    return _ImageState("", "Harvester is importing the image", answers=True)


def _find_namesake(images: Iterable[Obj], image: ImageImport) -> Obj | None:
    """Return an image of another namespace with the object name that an import would get."""
    namesakes = (
        other
        for other in images
        if other["metadata"]["name"] == image.object_name
        and other["metadata"].get("namespace") != image.namespace
    )
    return next(namesakes, None)


def _describe_namesake(other: Obj) -> str:
    """Return why an image is not imported while another one has its name."""
    return (
        f"VirtualMachineImage {key_of(other)} of another namespace has the name that this image "
        "would get, and could share its StorageClass: delete it on Harvester, or give this image "
        "another name"
    )


def _note(refusals: ImportRefusals, image: ImageImport, error: RequestError) -> Refusal:
    """Note a refusal, with the delay that its kind deserves."""
    if isinstance(error, TooManyRequests):
        return refusals.note(
            image, error, max(error.retry_after, _RETRY_SECONDS), _MAX_RETRY_SECONDS
        )
    if _may_end_soon(error):
        return refusals.note(image, error, _RETRY_SECONDS, _MAX_RETRY_SECONDS)
    # No image of the namespace would fare better.
    by_namespace = isinstance(error, NotFound | NamespaceTerminating) or _lacks_right(error)
    subject = image.namespace if by_namespace else image
    return refusals.note(subject, error, _REFUSED_SECONDS, _MAX_REFUSED_SECONDS)


def _may_end_soon(error: RequestError) -> bool:
    """Return whether an attempt may succeed soon, although no one changes anything."""
    return isinstance(error, ServerFault | TooManyRequests | Unreachable) or _is_conflict(error)


def _is_conflict(error: RequestError) -> bool:
    """Return whether the name is taken.

    Usually another cluster has just had the image imported: the API server refuses a second object,
    or Harvester's webhook a second display name.
    """
    return isinstance(error, ApiError) and error.status == HTTPStatus.CONFLICT


def _lacks_right(error: RequestError) -> bool:
    """Return whether the account may not create images; quotas refuse with 403, too."""
    return isinstance(error, Forbidden) and "cannot create" in error.message


def _state_after_refusal(
    scope: ClusterScope, image: ImageImport, refusal: Refusal, *, answers: bool
) -> _ImageState:
    """Requeue for the next attempt; return why the import fails, or what the attempt waits for."""
    remaining = scope.require_session().import_refusals.remaining(refusal)
    scope.requeue_within(max(remaining, _MIN_SECONDS))
    error = refusal.error
    if isinstance(error, ApiError):
        if not _may_end_soon(error) or refusal.attempts >= _PATIENCE:
            return _ImageState(_describe_failure(scope, image, error), "", answers)
        if _is_conflict(error):
            return _ImageState("", "waiting for Harvester to report the image", answers)
    wait = f"the request for it failed ({kind_of(error)}), and is repeated"
    return _ImageState("", wait, answers)


def _describe_failure(scope: ClusterScope, image: ImageImport, error: ApiError) -> str:
    """Return why Harvester does not import an image, and the remedy."""
    reason = plain(redacted(error.message), _MAX_REASON)
    if isinstance(error, NotFound):
        return f"create namespace {image.namespace} on Harvester, or name another: {reason}"
    if _lacks_right(error):
        return (
            f"the account may not import images into namespace {image.namespace}: {reason}"
            f"{command_for(scope.target_namespace, images=image.namespace)}; or import the image "
            "by hand, with its checksum"
        )
    remedy = ""
    if _is_conflict(error):
        remedy = (
            f". Another image in namespace {image.namespace} has taken the name, perhaps by label "
            "harvesterhci.io/imageDisplayName alone: delete that image, or give this one another "
            "name"
        )
    return f"Harvester refuses the import: {reason}{remedy}"


def _report(scope: ClusterScope, failures: Sequence[str], pending: Sequence[str]) -> None:
    """Set the condition, with an Event for the first failure."""
    if not failures and not pending:
        scope.draft.set_true(_CONDITION)
        return

    reason = Reason.IMAGE_IMPORT_FAILED if failures else Reason.IMAGES_IMPORTING
    message = name_some([*failures, *pending], _SHOWN, "; ")
    # Compare reasons, because the progress of other images also changes the message.
    if failures and not scope.draft.has_reason(_CONDITION, reason):
        scope.warning_event(reason, name_some(failures, _SHOWN, "; "))
    scope.draft.set_false(_CONDITION, reason, message)
