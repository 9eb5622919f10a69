"""Have Harvester import the images that a cluster declares and Harvester lacks.

Images belong to no cluster: their names follow from the spec alone, so that all clusters of a
Harvester share them, and the provider neither changes nor deletes one. Machines wait for their
images themselves, so this phase blocks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from caphv.api import names, resources
from caphv.api.bootimage import ImageImport, import_problems, imports
from caphv.api.counting import name_some
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from caphv.api.plaintext import plain
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerFault,
    TooManyRequests,
    Unreachable,
    kind_of,
)
from reconciler import triggers
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.identityaccount import command_for
from reconciler.machine.images import import_failure, resolve_image

_CONDITION = ConditionType.IMAGES_READY
_SHOWN = 3
_LONGEST_REASON = 512
# Seconds until a refused import is tried again, because no watch reports a new right.
_REFUSED_SECONDS = 60.0
_RETRY_SECONDS = 5.0


async def ensure_images(scope: ClusterScope) -> None:
    """Import missing images, and set the condition; remove it if the cluster declares none."""
    if not scope.obj["spec"].get("images"):
        scope.draft.drop(_CONDITION)
        return

    # The subscription outlives this reconcile, because a deleted image is imported again.
    scope.subscribe(triggers.images(scope.require_session().fingerprint))
    failures, pending = list(import_problems(scope.obj["spec"])), []
    for image in imports(scope.obj["spec"]).values():
        failure, wait = await _ensure_image(scope, image)
        failures += [f"{image}: {failure}"] if failure else []
        pending += [f"{image}: {wait}"] if wait else []
    _report(scope, failures, pending)


def image_object(image: ImageImport) -> Obj:
    """Return the VirtualMachineImage to create."""
    return {
        "apiVersion": resources.IMAGES.api_version,
        "kind": resources.IMAGES.kind,
        "metadata": {
            "name": image.name,
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


async def _ensure_image(scope: ClusterScope, image: ImageImport) -> tuple[str, str]:
    """Create an image if Harvester lacks it. Return why it cannot be used, or what it waits for."""
    session = scope.require_session()
    existing = resolve_image(str(image), session.images.store, image.namespace)
    if existing:
        failure = import_failure(existing, image)
        return failure, "" if failure else existing.pending

    try:
        created = await session.client.create(resources.IMAGES, image_object(image))
    except (Conflict, Forbidden, Invalid, NotFound) as error:
        if error.status == HTTPStatus.CONFLICT:
            scope.requeue_within(_RETRY_SECONDS)
            # Another cluster has just had it imported: the API server refuses a second object, or
            # Harvester's webhook a second display name.
            return "", "waiting for Harvester to report the image"
        scope.requeue_within(_REFUSED_SECONDS)
        return _refusal(scope, image, error), ""
    except (ServerFault, TooManyRequests, Unreachable) as error:
        # The phases that follow do not depend on images.
        scope.requeue_within(_RETRY_SECONDS)
        return "", f"the request for it failed ({kind_of(error)}), and is repeated"
    session.images.observe(created)
    scope.event("ImageImportStarted", f"Harvester imports VirtualMachineImage {image}")
    return "", "Harvester is importing the image"


def _refusal(scope: ClusterScope, image: ImageImport, error: ApiError) -> str:
    """Return why Harvester did not create an image, and the remedy."""
    reason = plain(error.message, _LONGEST_REASON)
    if isinstance(error, NotFound):
        return f"create namespace {image.namespace} on Harvester, or name another: {reason}"
    if isinstance(error, Forbidden):
        return (
            f"the account may not import images into namespace {image.namespace}: {reason}"
            f"{command_for(scope.target_namespace, images=image.namespace)}; or import the image "
            "by hand, with its checksum"
        )
    return f"Harvester refuses the import: {reason}"


def _report(scope: ClusterScope, failures: Sequence[str], pending: Sequence[str]) -> None:
    """Set the condition, with an Event for a new failure."""
    if not failures and not pending:
        scope.draft.set_true(_CONDITION)
        return

    reason = Reason.IMAGE_IMPORT_FAILED if failures else Reason.IMAGES_IMPORTING
    message = name_some([*failures, *pending], _SHOWN, "; ")
    if failures and not scope.draft.has_message(_CONDITION, message):
        scope.warning_event(reason, message)
    scope.draft.set_false(_CONDITION, reason, message)
