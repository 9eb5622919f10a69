"""The side of the packager that blocks, with real repositories: bundles, and definitions that are followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.git.remote import Remote
from packager.incluster import follower
from packager.incluster.holder import Place
from packager.incluster.publisher import Options, Publisher, Work
from tests.integration.packager.support import Origin

pytestmark = pytest.mark.integration

NOTHING = Work((), frozenset(), "a test")
DEFINITION = """\
apiVersion: caphv.io/v1alpha1
kind: ClusterDefinition
metadata: {name: one, namespace: team}
spec:
  kubernetesVersion: v1.34.2
  identitySecret: {name: harvester-identity}
  targetNamespace: team-a
  controlPlane: {replicas: 3, cpu: 4, memory: 8Gi}
  machines: {image: default/sles, diskSize: 80Gi, sshKeyPair: default/admin, networks: [default/production]}
  addresses: {ipPoolRefs: [machines], gateway: 172.16.0.1, subnetMask: 255.255.0.0, dnsServers: [172.16.0.1]}
  loadBalancer: {ipamType: pool, ipPoolRef: load-balancers}
"""


def test_definitions_are_followed_and_a_source_that_is_away_stops_nothing(
    origin: Origin, cache: Path, tmp_path: Path
) -> None:
    source = Origin.make(tmp_path / "origin" / "source.git")
    source.push({"one.yaml": DEFINITION, "bad.yaml": DEFINITION.replace("one", "bad").replace("replicas: 3", "x: 3")})
    followed = follower.Options(Place(Remote(source.url), cache / "source"), lambda _: [], max_prune=5)
    publisher = Publisher(Options(Place(Remote(origin.url), cache), source=followed))
    try:
        first = publisher.publish(NOTHING)
        assert first.followed is not None
        assert ([str(key) for key in first.followed.made.bad], first.source_error) == (["team/bad"], None)
        assert f"Source: {source.url}@{source.head()}" in origin.message()
        tree, count = origin.tree(), origin.count()
        assert any(path.startswith("manifests/team/one/") for path in origin.files())
        # Nothing new: it is not even read.
        assert (publisher.publish(NOTHING).followed, origin.count()) == (None, count)
        # What somebody else wrote is set right.
        path = next(path for path in origin.files() if path.startswith("manifests/team/one/"))
        origin.push({path: "spoiled"})
        publisher.publish(NOTHING)
        assert origin.tree() == tree
        source.folder.rename(source.folder.with_name("away"))
        assert "check the address" in str(publisher.publish(NOTHING).source_error)
    finally:
        publisher.close()
