"""Reads the release of Fleet in the management cluster, for which the packager needs a right."""

from __future__ import annotations

import logging
from dataclasses import replace

from caphv.api.object import DEPLOYMENTS, Key
from caphv.api.supported import release_of, support
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound
from packager.rendering.options import RenderOptions

log = logging.getLogger(__name__)
CONTROLLER = Key("cattle-fleet-system", "fleet-controller")


async def add_fleet_release(client: ApiClient, options: RenderOptions) -> RenderOptions:
    """Add the release of Fleet that runs to options that name none.

    Without Fleet or the right to read its Deployment, the options stay as they are. That stands for
    the oldest supported release. Raises `Unreachable`.
    """
    if options.fleet_version:
        return options

    fleet = support().components["fleet"]
    try:
        deployment = await client.get(DEPLOYMENTS, CONTROLLER.name, CONTROLLER.namespace)
        release = release_of("fleet", deployment)
    except NotFound:
        log.info(
            "Deployment %s does not exist: bundles are for Fleet %s and later",
            CONTROLLER,
            fleet.oldest,
        )
        return options
    except ApiError as error:
        log.warning(
            "Deployment %s cannot be read: bundles are for Fleet %s and later; set "
            "CAPHV_FLEET_VERSION, or grant get on this Deployment: %s",
            CONTROLLER,
            fleet.oldest,
            error,
        )
        return options

    if problem := fleet.problem(release):
        log.warning(
            "%s: run a supported release of Fleet, %s to %s", problem, fleet.oldest, fleet.newest
        )
    return replace(options, fleet_version=release)
