"""Settings of sites without a way to the internet: registry, credentials and values that are not in Git."""

from __future__ import annotations

from typing import Any

import pytest

from packager.definitions.build import build
from packager.rendering.gitrepo import GitRepoOptions, git_repos
from packager.rendering.renderer import Renderer
from tests.support.packager.definitions import definition
from tests.support.packager.examples import K3S, KUBEADM, cluster

pytestmark = pytest.mark.unit

REGISTRY = "registry.example.com:5000"
SECRET = {"secretKeyRef": {"name": "values", "key": "a.yaml"}}
CONFIG_MAP = {"configMapKeyRef": {"name": "values", "key": "a.yaml"}}


def rules(addons: dict[str, Any], spec: Any = None) -> list[str]:
    result = Renderer().render_one(cluster("a", addons, spec=spec or {}), {})
    return [finding.rule for finding in result.findings if not finding.advice]


def test_a_config_map_is_for_charts_by_fleet_only() -> None:
    assert rules({"ccm": {"valuesFrom": [CONFIG_MAP]}}) == []
    assert rules({"ccm": {"valuesFrom": [CONFIG_MAP]}}, KUBEADM) == []
    for addons, spec in (
        ({"cni": {"valuesFrom": [CONFIG_MAP]}}, {}),
        ({"ccm": {"valuesFrom": [CONFIG_MAP]}}, K3S),
        ({"csi": {"valuesFrom": [CONFIG_MAP]}, "cloudProviderName": "harvester"}, {}),
    ):
        assert rules(addons, spec) == ["values-from-config-map"]


def test_a_reference_names_one_object() -> None:
    assert rules({"ccm": {"valuesFrom": [{**SECRET, **CONFIG_MAP}]}}) != []
    assert rules({"ccm": {"valuesFrom": [{}]}}) != []


@pytest.mark.parametrize("registry", ["https://registry.example.com", "user:pass@registry.example.com", "a b", ""])
def test_odd_registries_are_refused(registry: str) -> None:
    assert rules({"imageRegistry": registry}) == ["schema-pattern"]


def test_credentials_for_charts_name_their_repositories() -> None:
    settings = Renderer().render_one(cluster("a"), {}).settings
    assert settings
    regex = "oci://registry[.]example[.]com/.*"
    options = GitRepoOptions("https://git.example.com/x.git", helm_secret_name="charts", helm_repo_regex=regex)
    (found,) = git_repos([settings], options)
    assert (found["spec"]["helmSecretName"], found["spec"]["helmRepoURLRegex"]) == ("charts", regex)
    for secret, wrong in (("charts", ""), ("", regex), ("charts", "(")):
        with pytest.raises(ValueError, match="regular expression"):
            GitRepoOptions("https://git.example.com/x.git", helm_secret_name=secret, helm_repo_regex=wrong)


@pytest.mark.parametrize("individual", [True, False])
@pytest.mark.parametrize(("distribution", "files"), [("rke2", 2), ("k3s", 1)])
def test_nodes_of_a_definition_use_the_registry(distribution: str, files: int, individual: bool) -> None:
    def text(addons: Any) -> str:
        found = definition("a", distribution=distribution, addons=addons, individualObjects=individual)
        return str(build(found, Renderer(), {}).objects)

    # In a file for servers, and in one for workers; agents of K3s get it from their server.
    assert text({"imageRegistry": REGISTRY}).count("system-default-registry: ") == files
    assert "system-default-registry" not in text({})


def test_a_definition_with_credentials_for_charts() -> None:
    fleet = {"repo": "https://git.example.com/x.git", "helmSecretName": "charts", "helmRepoURLRegex": "https://x/.*"}
    objects = build(definition("a", fleet=fleet), Renderer(), {}).objects
    (repo,) = (obj for obj in objects if obj["kind"] == "GitRepo")
    assert (repo["spec"]["helmSecretName"], repo["spec"]["helmRepoURLRegex"]) == ("charts", "https://x/.*")
    del fleet["helmRepoURLRegex"]
    (finding,) = build(definition("a", fleet=fleet), Renderer(), {}).findings
    assert "every chart repository" in finding.detail
