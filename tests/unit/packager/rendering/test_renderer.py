"""Rendering: pinned, refused where it would hurt, never a secret, and no value leaves its place."""

import string
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from packager import secretscan
from packager.addons.versions import validate_repository
from packager.rendering import yaml as yamltext
from packager.rendering.bundles import bundle_name
from packager.rendering.gitrepo import GitRepoOptions, git_repo_options, git_repos, group_of
from packager.rendering.nodefiles import node_files
from packager.rendering.options import RenderOptions
from packager.rendering.renderer import Renderer
from packager.tree import path_of
from tests.support.packager.examples import OPTIONS, cluster, rendered
from tests.support.packager.rendering import files, rules

pytestmark = pytest.mark.unit

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Those of `k3s agent --help` that a file may set. The servers' are many more.
K3S_AGENT_FLAGS = {
    *("debug", "v", "vmodule", "token", "token-file", "server", "data-dir", "node-name", "with-node-id", "node-label"),
    *("node-taint", "node-ip", "node-external-ip", "image-credential-provider-bin-dir", "selinux", "lb-server-port"),
    *("image-credential-provider-config", "protect-kernel-defaults", "container-runtime-endpoint", "pause-image"),
    *("snapshotter", "private-registry", "resolv-conf", "flannel-iface", "flannel-conf", "flannel-cni-conf"),
    *("kubelet-arg", "kube-proxy-arg", "rootless", "prefer-bundled-bin", "vpn-auth", "vpn-auth-file"),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | TEXT.map(lambda text: text + "\n"),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=15,
)


@given(JSON)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert yaml.load(yamltext.dump(value), Loader=LOADER) == value


@pytest.mark.parametrize("value", [{1: "x"}, object(), "\ud800", float("nan")])
def test_what_yaml_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        yamltext.dump({"a": value} if not isinstance(value, dict) else value)


@cache
def without_values() -> Any:
    return yaml.load(files(cluster("a"))["clusters/clusters/a/ccm/fleet.yaml"], Loader=LOADER)


@given(TEXT)
@hypothesis_settings(max_examples=50)
def test_a_hostile_value_is_that_value_and_nothing_else(text: str) -> None:
    if secretscan.check({"x": text}):
        return
    tree = files(cluster("a", {"ccm": {"values": {"x": text}}, "cni": {"values": {"x": text}}}))
    fleet = yaml.load(tree["clusters/clusters/a/ccm/fleet.yaml"], Loader=LOADER)
    assert fleet["helm"]["values"].pop("x") == text
    assert fleet == without_values()
    config = yaml.load(tree["clusters/clusters/a/cni/helmchartconfig.yaml"], Loader=LOADER)
    assert yaml.load(config["spec"]["valuesContent"], Loader=LOADER)["x"] == text


@given(TEXT | st.text(string.ascii_lowercase + "./-_ \n"), TEXT | st.text("abc./-"))
def test_a_hostile_name_does_not_leave_its_folder(name: str, namespace: str) -> None:
    result = Renderer().render_one(cluster(name, namespace=namespace), {})
    if result.tree:
        folder = f"clusters/{namespace or 'default'}/{name}/"
        assert all(path.startswith(folder) for path in result.tree)
        assert all(
            part not in ("", ".", "..", ".git") and part[0] not in ".-"
            for path in result.tree
            for part in path.split("/")
        )
    else:
        assert result.findings


@pytest.mark.parametrize("segment", ["", ".", "..", ".git", "-x", "a/b", "a\\b", "a\n", "a..b", "ä", "a" * 300])
def test_segments_that_are_not_names(segment: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a path"):
        path_of("clusters", segment)


def test_bundle_names_are_unique_and_short() -> None:
    keys = [Key("a-b", "c"), Key("a", "b-c"), Key("a", "x" * 63), Key("a", "x" * 62 + "y"), Key("a", "b.c")]
    found = {bundle_name(key, bundle) for key in keys for bundle in ("cni", "storage-classes")}
    assert len(found) == 10
    assert all(len(name) <= 53 for name in found)


# Pins and live networks


def test_one_bad_cluster_leaves_the_others_alone() -> None:
    good, bad, twice, again = (
        cluster("a"),
        cluster("b", {"cni": {"mtu": 1}}),
        cluster("c"),
        cluster("c", {"singleNode": True}),
    )
    results = Renderer().render([good, bad, twice, again], {})
    assert [result.ok for result in results] == [True, False, False, False]
    assert {finding.rule for finding in results[2].findings} == {"cluster-twice"}


def test_only_the_changed_cluster_is_rendered_again() -> None:
    renderer = Renderer()
    first = renderer.render([cluster("a"), cluster("b")], {})
    second = renderer.render([cluster("a"), cluster("b", {"cni": {"mtu": 1400}})], {})
    assert second[0] is first[0]
    assert second[1].hash != first[1].hash
    assert {path for path in second[1].tree if second[1].tree[path] != first[1].tree[path]} == {
        "clusters/clusters/b/cni/helmchartconfig.yaml",
        "clusters/clusters/b/caphv.yaml",
    }
    renderer.forget([Key("clusters", "b")])
    assert renderer.render_one(cluster("a"), {}) is not first[0]


# Secrets

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "values",
    [
        {"extra": JWT},
        {"extra": "-----BEGIN RSA PRIVATE KEY-----\nMII\n"},
        {"extra": "-----BEGIN PRIVATE KEY-----"},
        {"password": "hunter2"},
        {"adminPasswords": "hunter2"},
        {"apiKey": "Zm9vYmFyYmF6cXV4MTIzNDU2"},
        {"env": [{"token": "8f3b1c7d9e2a4f6b8c0d"}]},
        {"url": "https://user:pa55@example.com/"},
        {"config": "kind: Config\nusers:\n- user: {client-key-data: AAAA}\n"},
        {"script": "export X=1\ntoken: 8f3b1c7d9e2a4f6b8c0d\n"},
        {"objects": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}]},
        {JWT: 1},
    ],
)
@pytest.mark.parametrize("bundle", ["cni", "ccm", "csi"])
def test_secrets_never_get_into_git(values: Obj, bundle: str) -> None:
    result = Renderer().render_one(cluster("a", {bundle: {"values": values}}), {})
    assert {finding.rule for finding in result.findings} == {"no-secrets-in-git"}
    assert not result.tree
    reported = " ".join(map(str, result.findings))
    assert "hunter2" not in reported
    assert JWT not in reported


@pytest.mark.parametrize(
    "values",
    [
        {"secretName": "harvester-cloud-config-of-cluster-1"},
        {"existingSecret": "my-secret-name"},
        {"secretKey": "cloud-config"},
        {"tokenReview": True},
        {"automountServiceAccountToken": "false"},
        {"password": ""},
        {"token": "/var/run/secrets/token"},
        {"image": "example.com/a@sha256:0f3b1c7d9e2a4f6b8c0d0f3b1c7d9e2a4f6b8c0d"},
    ],
)
def test_what_only_names_a_secret_is_fine(values: Obj) -> None:
    assert files(cluster("a", {"ccm": {"values": values}}))


# Templates of users


def user_templates(folder: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


FLEET = """name: {{ bundle_name("extra") }}
defaultNamespace: default
helm: {releaseName: extra, disablePreProcess: true}
overrideTargets: {{ targets }}
"""


def test_users_replace_and_add_templates(tmp_path: Path) -> None:
    config_map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: {{ cluster.name }}}\n"
    folder = user_templates(
        tmp_path,
        {"extra/fleet.yaml.j2": FLEET, "extra/x.yaml.j2": config_map, "ccm/values.yaml.j2": "replicasCount: 7\n"},
    )
    tree = files(cluster("a"), templates=folder)
    assert b"  a: a\n" in tree["clusters/clusters/a/extra/x.yaml"]
    assert b"replicasCount: 7\n" in tree["clusters/clusters/a/ccm/fleet.yaml"]
    assert tree["clusters/clusters/a/csi/fleet.yaml"] == files(cluster("a"))["clusters/clusters/a/csi/fleet.yaml"]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("a: {{ nothing }}", "bundles-template"),
        ("a: {{ settings.nothing }}", "bundles-template"),
        ("a: {{ settings.cni.__class__ }}", "bundles-template"),
        ("a: {{ ''.__class__.__mro__ }}", "bundles-template"),
        ("{% for x in range(10000000) %}{% endfor %}", "bundles-template"),
        ("a: {% if %}", "bundles-template"),
        ("a: [", "bundles-template"),
        ("a: {{ bundle_name }}", "bundles-template"),
        ("a: {{ 1 / 0 }}", "bundles-template"),
        ("{{ 1 }}: a", "bundles-template"),
        ("- 1", "bundle-manifest"),
        ("kind: Secret\napiVersion: v1\nmetadata: {name: x}", "no-secrets-in-git"),
        ("kind: List\napiVersion: v1\nmetadata: {name: x}\nitems: [{kind: Secret}]", "no-secrets-in-git"),
        ("kind: X\nmetadata: {name: x}", "bundle-manifest"),
    ],
)
def test_faulty_templates_are_findings(tmp_path: Path, content: str, rule: str) -> None:
    folder = user_templates(tmp_path, {"extra/fleet.yaml.j2": FLEET, "extra/x.yaml.j2": content})
    assert rules(cluster("a"), templates=folder) == {rule}


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ('{{ bundle_name("extra") }}', "always-the-same", "bundle-name"),
        ("{{ targets }}", "[{clusterName: other}]", "bundle-target"),
        ("disablePreProcess: true", "disablePreProcess: false", "schema-const"),
        ("releaseName: extra", "releaseNam: extra", "schema-additionalProperties"),
        ("overrideTargets: {{ targets }}", "", "schema-required"),
    ],
)
def test_a_bundle_is_for_its_cluster_only(tmp_path: Path, old: str, new: str, rule: str) -> None:
    folder = user_templates(tmp_path, {"extra/fleet.yaml.j2": FLEET.replace(old, new)})
    assert rule in rules(cluster("a"), templates=folder)


def test_templates_are_taken_from_a_mounted_config_map(tmp_path: Path) -> None:
    """The kubelet writes a folder of its own and links to it, so that all files change at once."""
    user_templates(tmp_path / "..2026_11_21", {"ccm/values.yaml.j2": "replicasCount: 7\n"})
    (tmp_path / "..data").symlink_to("..2026_11_21")
    (tmp_path / "ccm").symlink_to("..data/ccm")
    assert b"replicasCount: 7\n" in files(cluster("a"), templates=tmp_path)["clusters/clusters/a/ccm/fleet.yaml"]


def test_links_that_leave_the_folder_are_no_templates(tmp_path: Path) -> None:
    outside = tmp_path / "outside.j2"
    outside.write_text("a: 1")
    folder = user_templates(tmp_path / "t", {"extra/fleet.yaml.j2": FLEET})
    (folder / "extra" / "x.yaml.j2").symlink_to(outside)
    assert rules(cluster("a"), templates=folder) == {"bundles-template"}


@pytest.mark.parametrize("name", ["-rf/x.yaml.j2", "extra/a..b.yaml.j2"])
def test_names_that_leave_their_folder_are_no_templates(name: str, tmp_path: Path) -> None:
    folder = user_templates(tmp_path, {"extra/fleet.yaml.j2": FLEET, name: "a: 1"})
    assert rules(cluster("a"), templates=folder) == {"bundles-template"}


@pytest.mark.parametrize(
    "name", ["v1/extra/x.yaml.j2", "x.yaml.j2", "extra/x.j2", "extra/readme.txt", ".git/a/x.yaml.j2"]
)
def test_templates_that_no_one_would_read_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a template is <bundle>/<name>\.yaml\.j2"):
        Renderer(RenderOptions(templates=user_templates(tmp_path, {name: "a: 1"})))


def test_a_chart_that_is_not_in_the_table_is_reported(tmp_path: Path) -> None:
    chart = 'name: {{ chart("mine", "1.0.0").name }}\n'
    folder = user_templates(tmp_path, {"extra/fleet.yaml.j2": chart})
    (finding,) = Renderer(RenderOptions(templates=folder)).render_one(cluster("a"), {}).findings
    assert "there is no chart 'mine' in the table of versions" in finding.detail


# Mirrors, GitRepos, first boot


@pytest.mark.parametrize("url", ["http://a", "https://u:p@a", "oci://a/../b", "--upload-pack=x", "https://a b", ""])
def test_odd_chart_repositories_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not a chart repository"):
        validate_repository(url)


@pytest.mark.parametrize(
    "options",
    [
        {"repo": "https://u:p@example.com/x.git"},
        {"repo": "https://token@example.com/x.git"},
        {"repo": "--upload-pack=x"},
        {"repo": "ext::sh -c x"},
        {"repo": "https://a/x", "folder": "../x"},
        {"repo": "https://a/x", "groups": -1},
        {"repo": "https://a/x", "name": "-a"},
        {"repo": "https://a/x", "ca_bundle": "-----BEGIN PRIVATE KEY-----"},
    ],
)
def test_odd_options_of_gitrepos_are_refused(options: Obj) -> None:
    with pytest.raises(ValueError, match=r"repo|path|name|ca_bundle"):
        GitRepoOptions(**options)


def flags(repo: str, inner: str = "", client_secret: str = "") -> Any:
    return SimpleNamespace(
        repo=repo, branch="main", inner=inner, client_secret=client_secret, helm_secret="", helm_repo_regex=""
    )


@pytest.mark.parametrize(
    ("repo", "shown"),
    [
        ("https://org@dev.azure.com/org/project/_git/fleet", "https://dev.azure.com/org/project/_git/fleet"),
        ("git@ssh.dev.azure.com:v3/org/My%20Project/fleet", "git@ssh.dev.azure.com:v3/org/My%20Project/fleet"),
        ("git@git.example.com:group/a+b.git", "git@git.example.com:group/a+b.git"),
    ],
)
def test_fleet_reads_what_the_packager_pushes_to(repo: str, shown: str) -> None:
    options = git_repo_options(flags(repo, "_fleet"))
    assert options
    assert (options.repo, options.folder) == (shown, "_fleet")


@pytest.mark.parametrize("repo", ["", "/srv/fleet.git"])
def test_fleet_reads_nothing_of_this_machine(repo: str) -> None:
    assert git_repo_options(flags(repo)) is None
    with pytest.raises(ValueError, match="repo must be a URL of Git"):
        git_repo_options(flags(repo, client_secret="git"))


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("git.example.com:fleet.git", r"git\.example\.com:fleet\.git: repo must be a URL of Git: .* or user@host:path"),
        ("git@git.example.com:a(b).git", r"a\(b\)\.git: repo must be a URL of Git"),
        ("https://u:canary@git.example.com/x.git", "must not hold a password"),
    ],
)
def test_a_repository_that_fleet_cannot_read_is_refused(repo: str, message: str) -> None:
    """Bundles would be committed, and no GitRepo would make Fleet read them."""
    with pytest.raises(ValueError, match=message) as refused:
        git_repo_options(flags(repo))
    assert "canary" not in str(refused.value)


def test_gitrepos_share_clusters_by_workspace_and_group() -> None:
    imported = {"cluster-api.cattle.io/rancher-auto-import": "true"}
    facts = [cluster(f"c{i}") for i in range(40)]
    facts += [cluster("r", labels=imported), cluster("g", {"fleet": {"group": "special"}})]
    settings = [result.settings for result in Renderer().render(facts, {}) if result.settings]
    options = GitRepoOptions("https://git.example.com/x", groups=4)
    found = git_repos(settings, options)
    names = {(repo["metadata"]["namespace"], repo["metadata"]["name"]) for repo in found}
    assert {("clusters", f"caphv-{n}") for n in range(4)} | {("clusters", "caphv-special")} <= names
    assert ("fleet-default", f"caphv-{group_of(settings[40], 4)}") in names
    paths = [path for repo in found for path in repo["spec"]["paths"]]
    assert sorted(paths) == sorted(f"clusters/clusters/{s.cluster.name}/*" for s in settings)
    assert git_repos(reversed(settings), options) == found


def test_each_namespace_has_a_gitrepo_because_one_bad_chart_stops_a_whole_one() -> None:
    imported = {"cluster-api.cattle.io/rancher-auto-import": "true"}
    facts = [cluster("a", labels=imported, namespace=name) for name in ("team-a", "team-b")]
    settings = [result.settings for result in Renderer().render(facts, {}) if result.settings]
    options = GitRepoOptions("https://git.example.com/x")
    paths = {repo["metadata"]["name"]: repo["spec"]["paths"] for repo in git_repos(settings, options)}
    assert paths == {"caphv-team-a": ["clusters/team-a/*/*"], "caphv-team-b": ["clusters/team-b/*/*"]}
    (one,) = git_repos(settings, replace(options, groups=1))
    assert len(one["spec"]["paths"]) == 2


@pytest.mark.parametrize("addon", ["ccm", "csi"])
def test_a_version_that_the_chart_repository_lacks_stays_with_its_cluster(addon: str) -> None:
    def fault(distribution: str, mirror: str = "", version: str = "9.9.9") -> list[str]:
        facts = cluster("a", {"distribution": distribution, addon: {"version": version}})
        findings = Renderer(RenderOptions(chart_repository=mirror)).render_one(facts, {}).findings
        return [finding.rule for finding in findings if not finding.advice]

    assert fault("kubeadm") == ["bundles-chart-version"]
    assert fault("kubeadm", version="0.2.14" if addon == "ccm" else "0.1.30") == []
    assert fault("kubeadm", "https://charts.example.com") == []
    assert fault("k3s") == [], "a Helm controller pulls the chart for its own cluster"


def test_first_boot_is_what_the_bundle_says() -> None:
    result = Renderer().render_one(cluster("a", {"cni": {"mtu": 1400}}), {})
    boot = node_files(result)
    assert boot.server_config["cni"] == "calico"
    manifest = next(content for path, content in boot.server_files.items() if "/server/manifests/" in path)
    assert manifest == result.tree["clusters/clusters/a/cni/helmchartconfig.yaml"]
    with pytest.raises(ValueError, match="was not rendered"):
        node_files(Renderer().render_one(cluster("a", {"cni": {"mtu": 1}}), {}))


def test_agents_of_k3s_get_only_flags_that_they_have() -> None:
    """`k3s agent` does not start with a flag that only `k3s server` has."""
    results = [result for result in rendered() if result.settings and result.settings.distribution == "k3s"]
    configs = [
        yaml.safe_load(content)
        for result in results
        for path, content in node_files(result).agent_files.items()
        if path.startswith("/etc/rancher/k3s/config.yaml")
    ]
    assert len(configs) == len(results) > 1
    for config in configs:
        assert config.keys() <= K3S_AGENT_FLAGS


def test_git_repo_holds_what_the_options_say() -> None:
    (settings,) = [result.settings for result in Renderer().render([cluster("a")], {}) if result.settings]
    (repo,) = git_repos([settings], OPTIONS)
    assert repo["spec"]["clientSecretName"] == "git-access"
    assert repo["spec"]["caBundle"] == "UEVN"
    # A new cluster of the namespace needs no other GitRepo.
    assert repo["spec"]["paths"] == ["add-ons/clusters/clusters/*/*"]
    grouped = cluster("b", {"fleet": {"group": "production"}})
    settings_of_both = [one.settings for one in Renderer().render([cluster("a"), grouped], {}) if one.settings]
    paths = {repo["metadata"]["name"]: repo["spec"]["paths"] for repo in git_repos(settings_of_both, OPTIONS)}
    assert paths == {
        "caphv-clusters": ["add-ons/clusters/clusters/a/*"],
        "caphv-production": ["add-ons/clusters/clusters/b/*"],
    }
