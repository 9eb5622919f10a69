"""`caphv bundles` with a user's templates, a mirror of charts, a terminal, and hostile input."""

import json
import shutil
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from caphv import data
from caphv.api.object import Obj
from commands.main import cli
from tests.support.packager.commands import call, manifest, write

pytestmark = pytest.mark.unit

SHIPPED = data.folder("fleet-bundles")
DASHBOARD = """name: {{ bundle_name("dashboard") }}
defaultNamespace: dashboard
helm: {releaseName: dashboard, chart: dashboard, version: 1.0.0, disablePreProcess: true}
overrideTargets: {{ targets }}
"""


def templates(folder: Path, **files: str) -> Path:
    """A folder of templates; `__` in a name stands for the slash, and the ending is added."""
    for name, content in files.items():
        file = folder / f"{name.replace('__', '/')}.yaml.j2"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


def rendered(*arguments: object) -> dict[str, Obj]:
    """Files of cluster `a` by path below its folder, and each bundle's fleet.yaml parsed."""
    result = call("render", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    (cluster,) = json.loads(result.stdout)["items"]
    return {
        path.removeprefix("clusters/team/a/"): yaml.safe_load(content) for path, content in cluster["files"].items()
    }


# Templates


def test_a_folder_over_the_shipped_templates_replaces_files_and_adds_bundles(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    own = templates(tmp_path / "own", ccm__values="replicasCount: 7\n", dashboard__fleet=DASHBOARD)
    before, now = rendered(clusters), rendered(clusters, "--templates", own)
    assert now["ccm/fleet.yaml"]["helm"]["values"] == {"replicasCount": 7}
    assert now["dashboard/fleet.yaml"]["overrideTargets"] == [{"clusterName": "a"}]
    changed = {path for path in now if now[path] != before.get(path)}
    assert changed == {"ccm/fleet.yaml", "dashboard/fleet.yaml", "caphv.yaml"}


def test_a_bundle_is_left_out_by_an_empty_template(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    own = templates(tmp_path / "own", csi__fleet="{# another's #}")
    assert {path.split("/")[0] for path in rendered(clusters, "--templates", own)} == {"caphv.yaml", "ccm", "cni"}


def test_a_copy_of_the_shipped_folder_changes_nothing_until_it_is_edited(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    own, fleet = tmp_path / "own", tmp_path / "fleet"
    shutil.copytree(SHIPPED, own)
    call("render", clusters, "--to", fleet)
    assert call("verify", clusters, "--folder", fleet, "--templates", own).exit_code == 0
    file = own / "csi" / "fleet.yaml.j2"
    file.write_text(file.read_text().replace("  force: true\n  values", "  releaseName: ours\n  force: true\n  values"))
    shown = call("diff", clusters, "--folder", fleet, "--templates", own)
    assert shown.exit_code == 1
    assert "+  releaseName: ours" in shown.stdout


def test_a_fault_of_a_template_is_reported_once_by_file_and_line(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", *map(manifest, "abc"))
    own = templates(tmp_path / "own", ccm__values="a: 1\nb: {{ nothing }}\n")
    result = call("render", clusters, "--templates", own)
    (line,) = result.stderr.splitlines()
    assert "templates[ccm/values.yaml.j2]" in line
    assert "line 2: 'nothing' is undefined (3 clusters)" in line
    assert (result.exit_code, result.stdout) == (1, "")


@pytest.mark.parametrize("command", ["render", "diff", "push"])
def test_a_folder_without_templates_is_no_silent_success(command: str, tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    arguments = [] if command == "render" else ["--folder", tmp_path / "fleet"]
    for folder, message in ((tmp_path / "clusters", "holds no templates"), (SHIPPED.parent, "would not be read")):
        result = call(command, clusters, "--templates", folder, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert "<bundle>/<name>.yaml.j2" in result.stderr


# A mirror of charts


def test_charts_come_from_a_registry(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    mirror = "oci://registry.example.com:5000/charts"
    helm = rendered(clusters, "--chart-repo", mirror)["ccm/fleet.yaml"]["helm"]
    assert (helm["repo"], "chart" in helm) == (f"{mirror}/harvester-cloud-provider", False)
    fleet = tmp_path / "fleet"
    assert call("push", clusters, "--folder", fleet, "--chart-repo", mirror).exit_code == 0
    assert call("verify", clusters, "--folder", fleet, "--chart-repo", mirror).exit_code == 0
    assert call("verify", clusters, "--folder", fleet).exit_code == 1


def test_charts_come_from_a_mirror(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    helm = rendered(clusters, "--chart-repo", "https://charts.example.com/mirror")["csi/fleet.yaml"]["helm"]
    assert (helm["chart"], helm["repo"]) == ("harvester-csi-driver", "https://charts.example.com/mirror")


@pytest.mark.parametrize("url", ["http://x", "oci://user:hidden@x/y", "--upload-pack=x", "oci://x/../y"])
def test_odd_mirrors_are_refused(url: str, tmp_path: Path) -> None:
    result = call("render", write(tmp_path / "clusters", manifest("a")), f"--chart-repo={url}")
    assert result.exit_code == 2
    assert "use https://<host>/<path> or oci://<host>/<path>" in result.stderr
    assert "hidden" not in result.stderr


# A terminal


def on_terminal(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bundles", *map(str, arguments)], color=True)


def test_differences_are_coloured_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    fleet, clusters = tmp_path / "fleet", tmp_path / "clusters"
    call("render", write(clusters, manifest("a", {"cni": {"mtu": 1450}})), "--to", fleet)
    write(clusters, manifest("a", {"cni": {"mtu": 1400}}))
    command = ("diff", clusters, "--folder", fleet)
    lines = on_terminal(*command).stdout.splitlines()
    for text, colour in (("-        mtu: 1450", "red"), ("+        mtu: 1400", "green"), ("@@ -13,4 +13,4 @@", "cyan")):
        assert click.style(text, fg=colour) in lines
    assert click.style("--- a/clusters/team/a/cni/helmchartconfig.yaml", bold=True) in lines
    plain = call(*command).stdout
    assert "\x1b" not in plain
    assert [click.unstyle(line) for line in lines] == plain.splitlines()
    assert click.style("differs", fg="red") in on_terminal(*command, "-o", "text").stdout
    assert "\x1b" not in on_terminal(*command, "-o", "json").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert on_terminal(*command).stdout == plain


def test_a_hostile_value_sends_nothing_to_the_terminal(tmp_path: Path) -> None:
    fleet, clusters = tmp_path / "fleet", tmp_path / "clusters"
    call("render", write(clusters, manifest("a")), "--to", fleet)
    file = fleet / "clusters/team/a/ccm/fleet.yaml"
    file.write_text(file.read_text().replace("replicasCount: 1", "replicasCount: \x1b]0;owned\x07\x1b[2J"))
    shown = on_terminal("diff", clusters, "--folder", fleet).stdout
    assert "owned" in shown
    assert "\x07" not in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown


# Hostile input


@pytest.mark.parametrize("name", ["true", "17", "null", '""', "[a]"])
def test_a_cluster_without_a_name_is_not_passed_over(name: str) -> None:
    text = f"apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata:\n  name: {name}\nspec: {{topology: {{}}}}\n"
    result = call("render", "-", stdin=text)
    assert result.exit_code == 2
    assert "<stdin>:4: metadata.name must be text" in result.stderr


@pytest.mark.parametrize("name", ["../x", "..", ".git", "-x", "a/b", "${X}", "{{ x }}", "--upload-pack=x"])
def test_a_hostile_name_is_reported_and_writes_nothing(name: str, tmp_path: Path) -> None:
    obj = manifest("a")
    obj["metadata"]["name"] = name
    result = call("render", "-", "--to", tmp_path / "fleet", stdin=yaml.safe_dump(obj))
    assert result.exit_code == 1
    assert "metadata.name: Invalid value" in result.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_two_clusters_of_one_name_are_each_reported_where_they_stand(tmp_path: Path) -> None:
    for file in ("one.yaml", "two.yaml"):
        (tmp_path / file).write_text(yaml.safe_dump(manifest("a")))
    result = call("render", tmp_path)
    assert result.exit_code == 1
    assert all(f"{file}:" in result.stderr for file in ("one.yaml", "two.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x]\nb: [*a" + ", *a" * 200_000 + "]\n", "aliases stand for more than"),
        ("metadata: {}\nmetadata: {}\n", "key metadata is already in this mapping, at line 1"),
        ("a: [\n", "<stdin>:2"),
        ("a: \x00\n", "<stdin>:1"),
    ],
)
def test_a_stream_that_cannot_be_read_is_reported_by_line(text: str, message: str) -> None:
    result = call("render", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_marks_line_ends_and_empty_documents_do_no_harm(tmp_path: Path) -> None:
    plain = yaml.safe_dump(manifest("a"))
    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"\xef\xbb\xbf---\r\n" + plain.replace("\n", "\r\n").encode() + b"---\r\n---\r\n# nothing\r\n")
    assert call("render", odd).stdout == call("render", "-", stdin=plain).stdout != ""


def test_a_cache_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    clusters = write(tmp_path / "clusters", manifest("a"))
    result = call("push", clusters, "--repo", f"file://{tmp_path}/x", "--git-cache", tmp_path / "file" / "cache")
    assert result.exit_code == 2
    assert f"{tmp_path}/file/cache: Not a directory" in result.stderr


def test_a_dry_run_of_an_upgrade_is_json_where_json_is_asked_for(tmp_path: Path) -> None:
    fleet, clusters = tmp_path / "fleet", write(tmp_path / "clusters", manifest("a"))
    call("render", clusters, "--to", fleet)
    result = call("upgrade", clusters, "--folder", fleet, "--all", "--dry-run", "-o", "json")
    assert json.loads(result.stdout) == {"items": []}


@pytest.mark.parametrize("command", [("diff",), ("verify",), ("upgrade", "--all")])
def test_a_folder_that_is_not_there_is_a_typing_error(command: tuple[str, ...], tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    result = call(command[0], clusters, *command[1:], "--folder", tmp_path / "typo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path}/typo: no such folder" in result.stderr


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    (tmp_path / "file").write_text("")
    result = call("render", clusters, "--to", tmp_path / "file" / "fleet")
    assert result.exit_code == 2
    assert "cannot be written: Not a directory" in result.stderr
