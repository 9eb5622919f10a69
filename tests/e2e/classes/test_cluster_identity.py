"""A class variable names shared credentials; a change to a Secret of the cluster's own replaces no machine."""

from __future__ import annotations

import contextlib

import pytest

from caphv.api.names import GROUP
from caphv.api.object import NAMESPACES, SECRETS, Obj, at, uid_of
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.runtime.errors import AlreadyExists
from sandbox import manifests
from sandbox.cluster import ClusterSpec, identity
from sandbox.environment import Sandbox
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

NAME, PROVIDER = "shared", "caphv-system"


async def share(scenario: Scenario) -> None:
    """Create the credentials as an administrator does."""
    with contextlib.suppress(AlreadyExists):
        await scenario.management.create(NAMESPACES, {"metadata": {"name": PROVIDER}})
    await manifests.apply(scenario.management, identity(scenario.spec, scenario._identity))
    own = await scenario.management.get(SECRETS, "harvester-identity", NAME)
    secret = {"metadata": {"name": NAME, "namespace": PROVIDER}, "data": own["data"]}
    await scenario.management.create(SECRETS, secret)
    spec = {"secretRef": {"name": NAME, "namespace": PROVIDER}, "allowedNamespaces": {"list": [NAME]}}
    head = {"apiVersion": f"{GROUP}/v1beta1", "kind": HARVESTER_CLUSTER_IDENTITIES.kind}
    await scenario.management.create(HARVESTER_CLUSTER_IDENTITIES, {**head, "metadata": {"name": NAME}, "spec": spec})


def infrastructure(scenario: Scenario) -> Obj:
    (found,) = scenario.view.harvester_clusters.store
    return found


async def test_a_class_variable_names_shared_credentials(box: Sandbox) -> None:
    spec = ClusterSpec(
        name=NAME,
        namespace=NAME,
        target_namespace=f"{NAME}-vms",
        control_planes=1,
        workers=1,
        machines=("machines-large",),
        unhealthy_seconds=3600,
        variables={"clusterIdentityName": NAME},
    )
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching():
        await share(scenario)
        await scenario.create()
        await scenario.bring_up()
        fields = infrastructure(scenario)["spec"]
        assert (fields["identityRef"], "identitySecret" in fields) == ({"name": NAME}, False)
        vms = {uid_of(vm) for vm in scenario.view.vms.store}

        (cluster,) = scenario.view.clusters.store
        rows = [row for row in at(cluster, "spec", "topology", "variables") if row["name"] != "clusterIdentityName"]
        patch = [{"op": "replace", "path": "/spec/topology/variables", "value": rows}]
        await scenario.management.patch(scenario.view.clusters.resource, NAME, NAME, patch, patch_type="json")

        def has_own() -> bool:
            fields = infrastructure(scenario)["spec"]
            return "identityRef" not in fields and at(fields, "identitySecret", "namespace") == NAME

        await until(has_own, "the Secret of the namespace is named", seconds=60)
        assert {uid_of(vm) for vm in scenario.view.vms.store} == vms
        await scenario.management.delete(HARVESTER_CLUSTER_IDENTITIES, NAME)
        await scenario.management.delete(SECRETS, NAME, PROVIDER)
        await scenario.delete()
