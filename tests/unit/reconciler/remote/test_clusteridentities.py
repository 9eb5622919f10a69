"""Caches of HarvesterClusterIdentities: what is known when, and who hears of it; without CRD, without rights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from caphv.api.identities import Refused
from caphv.api.object import NAMESPACES, Key, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.runtime.errors import Forbidden, NotFound, Unreachable
from reconciler.remote.clusteridentities import ClusterIdentities, NotRead
from tests.support.memoryserver import MemoryServer
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

PROVIDER = "caphv-system"
SECRET = Key(PROVIDER, "shared-harvester")
IDENTITY = HARVESTER_CLUSTER_IDENTITIES.kind
FORBIDDEN = Forbidden(403, "Forbidden", "may not list")
# Longer than the longest wait between two attempts.
SOON = 6.0


class Watching:
    """The caches at work on a management cluster, and what they reported: `identity <name>`, `namespace <name>`."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.identities = ClusterIdentities(cast(Any, server), PROVIDER)
        self.identities.connect(
            lambda name: self._reported.append(f"identity {name}"),
            lambda name: self._reported.append(f"namespace {name}"),
        )
        self._reported: list[str] = []

    def reports(self) -> list[str]:
        """What was reported since the last question."""
        reported, self._reported = self._reported, []
        return reported

    def answer(self, namespace: str = "team", name: str = "shared") -> Key | Refused | NotRead:
        try:
            return self.identities.resolve(name, namespace)
        except NotRead as error:
            return error

    def share(self, allowed: Obj, name: str = "shared") -> None:
        reference = {"name": SECRET.name, "namespace": SECRET.namespace}
        self.server.put(
            {
                "apiVersion": HARVESTER_CLUSTER_IDENTITIES.api_version,
                "kind": IDENTITY,
                "metadata": {"name": name},
                "spec": {"secretRef": reference, "allowedNamespaces": allowed},
            }
        )

    def label(self, name: str = "team", **labels: str) -> None:
        metadata = {"name": name, "labels": labels}
        self.server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    async def refuse(self, error: Exception, resource: Resource = HARVESTER_CLUSTER_IDENTITIES) -> None:
        """Have the server end the watches of a kind, and refuse it from now on."""
        for verb in ("list", "watch"):
            self.server.errors[f"{verb} {resource.kind}"] = cast(Any, error)
        self.server.end_watches(resource)
        await asyncio.sleep(SOON)

    async def permit(self) -> None:
        self.server.errors.clear()
        await asyncio.sleep(SOON)


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[Watching]:
    it = Watching(MemoryServer())
    try:
        yield it
    finally:
        await it.identities.close()


async def filled(it: Watching) -> None:
    """Have the caches read what there is."""
    it.answer()
    await settle(100)
    it.answer()
    await settle(100)
    it.reports()


async def test_the_first_question_starts_the_caches_and_is_answered_when_they_are_filled() -> None:
    async with watching() as it:
        it.share({"selector": {"matchLabels": {"team": "a"}}})
        it.label(team="a")
        first = it.answer()
        assert isinstance(first, NotRead)
        assert (str(first), first.is_lasting) == ("", False)
        await settle(100)
        assert "identity " in it.reports()
        assert isinstance(it.answer(), NotRead), "labels have not been read"
        await settle(100)
        assert "namespace " in it.reports()
        assert it.answer() == SECRET


async def test_an_empty_cache_reports_itself() -> None:
    async with watching() as it:
        it.server.serve(HARVESTER_CLUSTER_IDENTITIES.api_version, IDENTITY)
        it.answer()
        await settle(100)
        assert it.reports() == ["identity "]
        assert isinstance(it.answer(), Refused)


async def test_changes_are_reported_that_may_change_an_answer() -> None:
    async with watching() as it:
        it.share({"list": ["a"], "selector": {"matchLabels": {"team": "a"}}})
        it.label(team="a")
        await filled(it)
        it.share({"list": ["b"]})
        await settle(100)
        assert it.reports() == ["identity shared"]
        it.share({"list": ["b"]})
        it.label(team="a")
        await settle(100)
        assert it.reports() == [], "neither spec nor labels have changed"
        it.label(team="b")
        await settle(100)
        assert it.reports() == ["namespace team"]
        await it.server.delete(NAMESPACES, "team")
        await it.server.delete(HARVESTER_CLUSTER_IDENTITIES, "shared")
        await settle(100)
        assert sorted(it.reports()) == ["identity shared", "namespace team"]
        assert isinstance(it.answer(), Refused)


async def test_clusters_get_credentials_without_a_restart_once_the_crd_is_installed() -> None:
    async with watching() as it:
        it.answer()
        await asyncio.sleep(60)
        missing = it.answer()
        assert isinstance(missing, NotRead)
        assert (missing.is_lasting, type(missing.error)) == (True, NotFound)
        assert it.reports() == ["identity "], "each failure alike is not reported"
        it.share({"list": ["team"]})
        await asyncio.sleep(SOON)
        assert "identity " in it.reports()
        assert it.answer() == SECRET


@pytest.mark.parametrize("error", [FORBIDDEN, NotFound(404, "NotFound", "")])
async def test_no_answer_is_given_from_what_cannot_be_watched_any_more(error: Exception) -> None:
    """A permission that was withdrawn meanwhile would not be noticed."""
    async with watching() as it:
        it.share({"list": ["team"]})
        await filled(it)
        assert it.answer() == SECRET
        await it.refuse(error)
        refused = it.answer()
        assert isinstance(refused, NotRead)
        assert (refused.is_lasting, refused.error) == (True, error)
        assert it.reports() == ["identity "]

        # An outage says nothing about the right that is missing.
        await it.refuse(Unreachable("no answer"))
        refused = it.answer()
        assert isinstance(refused, NotRead)
        assert refused.is_lasting
        await it.permit()
        assert it.reports() == ["identity "]
        assert it.answer() == SECRET


async def test_labels_that_cannot_be_watched_any_more_allow_nothing() -> None:
    async with watching() as it:
        it.share({"list": ["named"], "selector": {"matchLabels": {"team": "a"}}})
        it.label(team="a")
        await filled(it)
        assert it.answer() == SECRET
        await it.refuse(FORBIDDEN, NAMESPACES)
        assert isinstance(it.answer(), NotRead)
        assert it.answer("named") == SECRET
        assert it.reports() == ["namespace "]
        await it.permit()
        assert it.reports() == ["namespace "]
        assert it.answer() == SECRET


async def test_an_outage_of_the_management_cluster_changes_no_answer() -> None:
    async with watching() as it:
        it.share({"list": ["team"]})
        await filled(it)
        await it.refuse(Unreachable("no answer"))
        assert it.answer() == SECRET
        assert it.reports() == []


async def test_identities_are_known_by_their_secret() -> None:
    async with watching() as it:
        assert list(it.identities.with_secret(SECRET)) == []
        it.share({"list": ["team"]})
        it.share({"list": ["team"]}, "second")
        await filled(it)
        assert sorted(it.identities.with_secret(SECRET)) == ["second", "shared"]
        assert list(it.identities.with_secret(Key("team", SECRET.name))) == []
