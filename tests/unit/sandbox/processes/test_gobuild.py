"""The go.mod that programs of a sandbox are built with."""

import dataclasses

import pytest

from sandbox.processes import binaries, gobuild

pytestmark = pytest.mark.unit

UPSTREAM = """\
module k8s.io/kubernetes

require k8s.io/api v0.0.0

replace k8s.io/single => ./staging/src/k8s.io/single

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
	example.com/other => example.com/fork v1.2.3
)
"""


def test_staging_libraries_are_replaced_by_published_ones() -> None:
    text = gobuild.go_mod(binaries.KUBE_APISERVER, UPSTREAM)
    replaces = [line for line in text.splitlines() if line.startswith("replace")]
    assert replaces == [f"replace k8s.io/{name} => k8s.io/{name} v0.36.3" for name in ("single", "api", "client-go")]
    assert "require k8s.io/kubernetes v1.36.3" in text


def test_other_modules_keep_their_own_requirements() -> None:
    text = gobuild.go_mod(binaries.ETCD, UPSTREAM)
    assert "replace" not in text
    assert "tool go.etcd.io/etcd/server/v3\n" in text


def test_patched_program_is_built_where_it_may_import_internal_packages() -> None:
    recipe = binaries.CLUSTER_API_CORE
    assert recipe.patches
    assert gobuild.go_mod(recipe).startswith("module sigs.k8s.io/cluster-api/")
    assert recipe.target == "."
    assert dataclasses.replace(recipe, patches=()).target == "sigs.k8s.io/cluster-api"


@pytest.mark.parametrize("recipe", [binaries.CLUSTER_API_CORE, binaries.IMPATIENT_CORE], ids=lambda recipe: recipe.name)
def test_every_core_keeps_its_webhook_server_on_loopback(recipe: gobuild.Recipe) -> None:
    old, new = recipe.patches[0]
    assert "Host" not in old
    assert 'Host: "127.0.0.1"' in new


def test_own_go_settings_win_over_inherited_ones() -> None:
    environment = gobuild._environment({"GOFLAGS": "-mod=vendor", "CGO_ENABLED": "1", "GOPROXY": "https://mirror"})
    assert environment["GOFLAGS"] == "-mod=mod"
    assert environment["CGO_ENABLED"] == "0"
    assert environment["GOPROXY"] == "https://mirror"


def test_progress_is_thinned_out_but_each_step_is_told() -> None:
    told: list[tuple[str, int]] = []
    report = binaries.plain_report(lambda name, step, done, total: told.append((step, done)), every=1000)
    for done in range(100):
        report("etcd", "loading modules", done, 0)
    for done in range(1, 100):
        report("etcd", "compiling", done, 99)
    assert told == [("loading modules", 0), ("compiling", 1)]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CAPHV_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/caphv"),
    ],
)
def test_cache_folder(environ: dict[str, str], expected: str) -> None:
    assert str(binaries.cache_folder(environ)) == expected
