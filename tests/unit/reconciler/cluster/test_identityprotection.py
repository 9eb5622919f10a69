"""Which identity Secrets have to stay: for whom, and how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.names import identity_finalizer
from caphv.api.object import Key, Obj
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from reconciler.cluster.identityprotection import (
    MISSING_RIGHT,
    RETRY_SECONDS,
    IdentityProtection,
    is_needed,
    secrets_with_finalizer,
)

pytestmark = pytest.mark.unit

DELETED = {"deletionTimestamp": "2026-11-22T06:00:00Z"}
HELD = {"finalizers": [names.CLUSTER_FINALIZER]}


def secret(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": "identity", **metadata}}


def cluster(namespace: str = "team-a", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "one", **metadata}}


CLUSTERS = st.lists(
    st.builds(
        lambda namespace, deleted, held: cluster(namespace, **(DELETED if deleted else {}), **(HELD if held else {})),
        st.sampled_from(["team-a", "team-b"]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
)


@given(CLUSTERS, st.booleans())
def test_credentials_stay_for_each_cluster_that_is_being_deleted(clusters: list[Any], terminating: bool) -> None:
    clusters.append(cluster(**DELETED, **HELD))
    assert is_needed(secret(**DELETED), clusters, terminating=terminating)


@given(CLUSTERS)
def test_deletion_of_a_secret_alone_waits_for_no_cluster_that_lives(clusters: list[Any]) -> None:
    living = [each for each in clusters if "deletionTimestamp" not in each["metadata"]]
    assert not is_needed(secret(**DELETED), living, terminating=False)


def test_deleted_namespace_waits_for_its_own_clusters_only() -> None:
    assert is_needed(secret(**DELETED), [cluster()], terminating=True)
    assert not is_needed(secret(**DELETED), [cluster("team-b")], terminating=True)


def test_cluster_that_other_finalizers_keep_needs_no_credentials() -> None:
    assert not is_needed(secret(), [cluster(**DELETED, finalizers=["example.com/keep"])], terminating=False)


def test_secret_in_use_is_needed_and_one_without_clusters_is_not() -> None:
    assert is_needed(secret(), [cluster("team-b")], terminating=False)
    assert not is_needed(secret(), [], terminating=True)


FINALIZER = identity_finalizer()


class Protected:
    """An identity Secret with the finalizer, the clusters that refer to it, and a server that may refuse patches."""

    def __init__(self, *clusters: Obj, **metadata: Any) -> None:
        self.secret: Obj | None = secret(**{"finalizers": [FINALIZER], **metadata})
        self.clusters = clusters
        self.namespace: Obj | ApiError = {"metadata": {"name": "team-a"}}
        self.error: ApiError | None = None
        self.attempts = 0
        index = SimpleNamespace(by_index=lambda _name, key: self.clusters if key == "team-a/identity" else ())
        context: Any = SimpleNamespace(
            caches=SimpleNamespace(
                secrets=SimpleNamespace(get=lambda *_: self.secret), harvester_clusters=SimpleNamespace(store=index)
            ),
            identity_finalizer=FINALIZER,
            client=SimpleNamespace(get=self._namespace),
            ensure_finalizer=self._ensure,
            remove_finalizer=self._remove,
        )
        self.protection = IdentityProtection(context)

    async def reconcile(self) -> list[str]:
        """Reconcile; return the finalizers that the Secret has then."""
        await self.protection.reconcile(Key("team-a", "identity"))
        return list((self.secret or {"metadata": {}})["metadata"].get("finalizers") or ())

    async def ensure(self) -> bool:
        return await self.protection.ensure(Key("team-a", "identity"))

    async def _namespace(self, *_: object) -> Obj:
        if isinstance(self.namespace, ApiError):
            raise self.namespace
        return self.namespace

    async def _ensure(self, *_: object) -> None:
        self.attempts += 1
        if self.error:
            raise self.error
        assert self.secret is not None
        self.secret["metadata"]["finalizers"] = [FINALIZER]

    async def _remove(self, _caches: object, obj: Obj, finalizer: str) -> None:
        if self.error:
            raise self.error
        obj["metadata"]["finalizers"] = [name for name in obj["metadata"]["finalizers"] if name != finalizer]


def user_of_the_secret(namespace: str = "team-a", **metadata: Any) -> Obj:
    reference = {"namespace": "team-a", "name": "identity"}
    return cluster(namespace, **metadata) | {"spec": {"identitySecret": reference}}


async def test_finalizer_stays_for_a_cluster_that_uses_the_secret() -> None:
    assert await Protected(user_of_the_secret()).reconcile() == [FINALIZER]


async def test_finalizer_of_a_secret_without_clusters_is_removed() -> None:
    assert await Protected().reconcile() == []
    assert await Protected(finalizers=["example.com/keep"]).reconcile() == ["example.com/keep"]
    gone = Protected()
    gone.error = NotFound(404, "NotFound", "deleted meanwhile")
    await gone.reconcile()


async def test_cluster_of_another_namespace_that_may_not_use_the_secret_keeps_no_finalizer() -> None:
    """Anybody could otherwise keep Secrets of others from being deleted, by a reference to them."""
    assert await Protected(user_of_the_secret("team-b")).reconcile() == []
    shared = Protected(user_of_the_secret("team-b"), annotations={names.ALLOWED_NAMESPACES_ANNOTATION: "team-b"})
    assert await shared.reconcile() == [FINALIZER]


@pytest.mark.parametrize(
    ("namespace", "left"),
    [
        ({"metadata": {"name": "team-a", **DELETED}}, [FINALIZER]),
        ({"metadata": {"name": "team-a"}}, []),
        (NotFound(404, "NotFound", ""), []),
        (Forbidden(403, "Forbidden", ""), []),
    ],
    ids=["being deleted", "stays", "deleted", "may not be read"],
)
async def test_deleted_secret_waits_for_living_clusters_of_a_namespace_that_is_deleted(
    namespace: Obj | ApiError, left: list[str]
) -> None:
    protected = Protected(user_of_the_secret(**HELD), **DELETED)
    protected.namespace = namespace
    assert await protected.reconcile() == left


async def test_missing_right_is_reported_once_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("reconciler.cluster.identityprotection.time.monotonic", lambda: clock[0])
    protected = Protected(finalizers=[])
    protected.error = Forbidden(403, "Forbidden", "cannot patch secrets")
    assert [await protected.ensure() for _ in range(3)] == [False] * 3
    assert protected.attempts == 1
    clock[0] += RETRY_SECONDS
    assert not await protected.ensure()
    assert protected.attempts == 2
    assert caplog.text.count(MISSING_RIGHT) == 1
    clock[0] += RETRY_SECONDS
    protected.error = None
    assert await protected.ensure()
    assert await protected.reconcile() == []
    # The right was given and taken again, which is news.
    protected.error = Forbidden(403, "Forbidden", "cannot patch secrets")
    assert not await protected.ensure()
    assert caplog.text.count(MISSING_RIGHT) == 2


@pytest.mark.parametrize("metadata", [{"finalizers": [FINALIZER]}, {"finalizers": [], **DELETED}])
async def test_secret_that_has_the_finalizer_or_is_deleted_is_not_patched(metadata: Obj) -> None:
    protected = Protected(**metadata)
    assert await protected.ensure()
    assert protected.attempts == 0


async def test_secret_that_is_deleted_meanwhile_needs_no_finalizer() -> None:
    protected = Protected(finalizers=[])
    protected.error = NotFound(404, "NotFound", "")
    assert await protected.ensure()
    protected.secret = None
    assert await protected.ensure()
    assert protected.attempts == 1


def test_deployments_with_a_watch_filter_have_finalizers_of_their_own() -> None:
    assert identity_finalizer() != identity_finalizer("blue") != identity_finalizer("green")


async def test_protected_secrets_are_read_page_by_page() -> None:
    class Paged:
        def __init__(self) -> None:
            self.asked: list[str] = []

        async def list(self, _resource: object, _namespace: str, *, continue_token: str, **_: object) -> Obj:
            self.asked.append(continue_token)
            finalizers = [] if continue_token == "2" else [identity_finalizer()]
            item = {"metadata": {"name": f"page-{continue_token or 1}", "finalizers": finalizers}}
            following = {"": {"continue": "2"}, "2": {"continue": "3"}, "3": {}}[continue_token]
            return {"metadata": following, "items": [item]}

    client = Paged()
    found = await secrets_with_finalizer(cast("Any", client))
    assert [secret["metadata"]["name"] for secret in found] == ["page-1", "page-3"]
    assert client.asked == ["", "2", "3"]
