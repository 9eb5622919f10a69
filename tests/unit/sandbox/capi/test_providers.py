"""Which real providers a sandbox runs: those of kubeadm, of the release of the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.capi import core, providers
from sandbox.capi.core import CORE_VARIABLE
from sandbox.capi.manager import Manager, Ports, usual_options
from sandbox.processes.clusterapi import CLUSTER_API_CORE, IMPATIENT_CORE, KUBEADM, kubeadm_of
from sandbox.processes.gobuild import BuildError
from sandbox.state import SandboxSettings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("program", "suffix", "release"),
    [
        (CLUSTER_API_CORE.name, "", "1.13."),
        (IMPATIENT_CORE.name, "-impatient", "1.13."),
        ("cluster-api-core-1.12", "-1.12", "1.12."),
        ("cluster-api-core-1.14", "-1.14", "1.14."),
    ],
)
def test_programs_are_of_the_release_of_the_core(
    monkeypatch: pytest.MonkeyPatch, program: str, suffix: str, release: str
) -> None:
    monkeypatch.setenv(CORE_VARIABLE, program)
    names = providers.programs(SandboxSettings(kubeadm=True))
    assert names == [f"kubeadm-bootstrap{suffix}", f"kubeadm-control-plane{suffix}"]
    assert all(KUBEADM[name].version.startswith(release) for name in names)


def test_a_core_of_the_older_contract_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORE_VARIABLE, "cluster-api-core-1.10")
    assert providers.programs(SandboxSettings(kubeadm=True)) == []
    assert providers.managers(SandboxSettings(kubeadm=True)) == []


@pytest.mark.parametrize("name", ["1.14", "cluster-api-core-1.9", "helm"])
def test_an_unknown_core_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(CORE_VARIABLE, name)
    with pytest.raises(BuildError, match=rf"CAPHV_SANDBOX_CORE={name}: must be one of cluster-api-core, .*-1\.14"):
        core.program()
    monkeypatch.setenv(CORE_VARIABLE, "")
    assert core.program() == "cluster-api-core"


@pytest.mark.parametrize(
    "settings", [SandboxSettings(), SandboxSettings(kubeadm=True, own_providers="rke2,kubeadm")], ids=["none", "own"]
)
def test_unwanted_ones_are_not_built(settings: SandboxSettings) -> None:
    assert providers.programs(settings) == []
    assert providers.real_distributions(settings) == []


def test_both_are_packages_of_the_module_of_the_core_and_listen_on_loopback() -> None:
    for recipe in kubeadm_of(CLUSTER_API_CORE):
        assert recipe.package.startswith(f"{CLUSTER_API_CORE.module}/")
        assert recipe.patches == CLUSTER_API_CORE.patches
    for recipe in kubeadm_of(IMPATIENT_CORE):
        assert set(CLUSTER_API_CORE.patches) < set(recipe.patches)


def test_a_manager_is_started_with_its_own_kubeconfig_and_ports() -> None:
    manager = Manager("a", "a-system", Path("/bin/a"), [], usual_options)
    command = manager.command(Path("/box"), Ports(1, 2, Path("/box/a")))
    assert command[:2] == [Path("/bin/a"), "--kubeconfig=/box/a.kubeconfig"]
    assert {"--webhook-port=1", "--webhook-cert-dir=/box/a", "--health-addr=127.0.0.1:2"} < set(command)
