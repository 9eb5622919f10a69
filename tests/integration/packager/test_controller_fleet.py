"""What Fleet's objects say gets into the condition."""

from __future__ import annotations

from pathlib import Path

import pytest

from caphv.api.object import Obj
from packager.rendering.bundles import bundle_name
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.environment import (
    CLASSES,
    CLUSTERS,
    CONTROL_PLANES,
    FLEET_CLUSTERS,
    GIT_REPOS,
    Case,
    install,
    opened,
)
from tests.support.packager.repositories import Origin
from tests.support.resources import FLEET_BUNDLES

pytestmark = pytest.mark.integration

FLEET = (FLEET_CLUSTERS, FLEET_BUNDLES, GIT_REPOS)


async def test_fleet_comes_later_and_says_how_far_it_is(
    empty_api_server: ApiServer, tmp_path: Path, origin: Origin
) -> None:
    await install(empty_api_server, CLUSTERS, CLASSES, CONTROL_PLANES)
    async with opened(empty_api_server, tmp_path, origin) as case:
        await case.running()
        await case.cluster("one")
        await case.until_condition("one", "True", part="is not visible here")
        await install(empty_api_server, *FLEET)
        path = f"clusters/{case.namespace}/one/*"
        await case.until_condition(
            "one", "False", "AddonBundlesNotApplied", f"no GitRepo in namespace {case.namespace}"
        )
        await case.create(GIT_REPOS, "fleet-0", {"repo": case.origin.url, "paths": [path]})
        await case.until_condition("one", "False", "AddonBundlesNotApplied", "Fleet has not read it yet")
        await apply_bundles(case, ready=0, message="no route to host")
        await case.until_condition("one", "False", "AddonBundlesNotApplied", "no route to host")
        await apply_bundles(case, ready=1)
        await case.until_condition("one", "True", part="applied by Fleet")
        # Fleet has written the bundle again, and its status is still the previous one.
        await apply_bundles(case, ready=0, processed=False)
        await case.until_condition("one", "False", "AddonBundlesNotApplied", "Fleet has not processed it yet")
        await apply_bundles(case, ready=1)
        await case.until_condition("one", "True", part="applied by Fleet")
        # A newer commit that Fleet has not read.
        await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}})
        await case.until_condition("one", "False", "AddonBundlesNotApplied", "Fleet is still at commit")
        await apply_bundles(case, ready=1)
        await case.until_condition("one", "True", part=case.origin.head())
        # Both worlds at once.
        await case.create(FLEET_CLUSTERS, "one", {})
        owner = {f"cluster-api.cattle.io/capi-cluster-owner{end}": name for end, name in owners(case)}
        await case.create(FLEET_CLUSTERS, "c-m-one", {}, labels=owner)
        await case.until_condition("one", "False", "AddonBundlesInvalid", "one of Rancher")
        await case.client.delete(FLEET_CLUSTERS, "c-m-one", case.namespace)
        await case.until_condition("one", "True")


def owners(case: Case) -> list[tuple[str, str]]:
    return [("", "one"), ("-ns", case.namespace)]


async def apply_bundles(case: Case, *, ready: int, message: str = "", processed: bool = True) -> None:
    """Play Fleet: it has read the newest commit, and written the status unless not `processed`."""
    files = case.mine("one")
    for bundle in {path.split("/")[0] for path in files if path.endswith("/fleet.yaml")}:
        name = bundle_name(case.key("one"), bundle)
        rows = [{"name": "c", "bundleState": "ErrApplied", "message": message}] if message else []
        summary: Obj = {"desiredReady": 1, "ready": ready, "nonReadyResources": rows}
        labels = {"caphv.io/bundle": bundle, "fleet.cattle.io/commit": case.origin.head()}
        obj = {
            "apiVersion": FLEET_BUNDLES.api_version,
            "kind": FLEET_BUNDLES.kind,
            "metadata": {"name": name, "namespace": case.namespace, "labels": labels},
        }
        obj["spec"] = {"paused": not processed}
        generation = (await case.client.apply(FLEET_BUNDLES, obj, manager="fleet"))["metadata"]["generation"]
        if processed:
            status = {"observedGeneration": generation, "summary": summary}
            await case.client.patch(FLEET_BUNDLES, name, case.namespace, {"status": status}, subresource="status")
