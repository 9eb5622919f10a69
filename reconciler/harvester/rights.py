"""Ask Harvester what an account may do, with a SelfSubjectAccessReview."""

from __future__ import annotations

import logging

from caphv.api.object import SELF_SUBJECT_ACCESS_REVIEWS, at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from reconciler.harvester.sharedcache import Collection

log = logging.getLogger(__name__)


async def may(client: ApiClient, verb: str, collection: Collection) -> bool:
    """Return whether the account of a client may use a verb on a collection.

    Returns False if the review fails.
    """
    attributes = {
        "group": collection.resource.group,
        "resource": collection.resource.plural,
        "verb": verb,
        "namespace": collection.namespace,
    }
    body = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {"resourceAttributes": attributes},
    }

    try:
        review = await client.request(
            "POST",
            SELF_SUBJECT_ACCESS_REVIEWS.path(),
            resource=SELF_SUBJECT_ACCESS_REVIEWS,
            body=body,
        )
    except RequestError as error:
        log.debug(
            "cannot review whether %s on %s may be used: %s",
            f"{verb} {collection.resource}",
            client.server,
            error,
        )
        return False

    return bool(at(review, "status", "allowed"))
