"""Ask Harvester what an account may do, and say how to grant it a right that it lacks."""

from __future__ import annotations

import logging

from caphv.api import remedies
from caphv.api.object import SELF_SUBJECT_ACCESS_REVIEWS, at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from reconciler.harvester.sharedcache import Collection

log = logging.getLogger(__name__)


async def may(client: ApiClient, verb: str, collection: Collection) -> bool:
    """Return whether the account of a client may use a verb on a collection.

    Asks with a SelfSubjectAccessReview. Returns False if the review fails.
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


def command_for(
    target: str, *, pools: bool = False, images: str = "", backups: bool = False
) -> str:
    """Return the end of a message about a refused request: the command that grants the right.

    :param images: namespace into which images may be imported, empty for none
    :param backups: whether the right to back up VMs is missing
    """
    # The command names the target namespace, so that a new account never gets rights in all
    # namespaces.
    flags = " --create-ip-pools" if pools else ""
    flags += f" --import-images {images}" if images else ""
    flags += " --back-up-vms" if backups else ""
    command = remedies.GRANT_RIGHTS(target=target, more=flags)
    return (
        f"; an administrator of Harvester can grant it: {command}, with --name and --namespace of "
        "the account"
    )
