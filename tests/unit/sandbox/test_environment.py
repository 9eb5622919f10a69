"""State, claims and manifests of a sandbox, without its processes."""

import asyncio
import base64
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from sandbox import restart
from sandbox.capi import core, manager
from sandbox.capi.manager import Manager, read_config, usual_options
from sandbox.environment import Sandbox, SandboxError, default_folder
from sandbox.processes import children, network
from sandbox.processes.children import Process
from sandbox.state import ProcessRecord, SandboxSettings, State

pytestmark = pytest.mark.unit


def test_state_survives_the_file(tmp_path: Path) -> None:
    state = State(
        SandboxSettings(boot_seconds=7.5),
        "127.10.0.0/16",
        "now",
        ready=True,
        servers={"a": "b"},
        processes={"c": ProcessRecord(1, ["c"], {"A": "b"})},
    )
    state.save(tmp_path)
    assert State.load(tmp_path) == state
    assert (tmp_path / "sandbox.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"settings": {"unknown": 1}}', '{"settings": 3}'])
def test_half_a_state_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "sandbox.json").write_text(content)
    assert State.load(tmp_path) is None


def test_status_without_a_sandbox(tmp_path: Path) -> None:
    assert Sandbox(tmp_path / "nothing").status()["status"] == "absent"


def test_sandbox_of_another_release_is_kept_without_a_request(tmp_path: Path) -> None:
    (tmp_path / "sandbox.json").write_text('{"settings": {"unknown": 1}, "processes": {}}')
    (tmp_path / "etcd").mkdir()
    with pytest.raises(SandboxError, match=r"sandbox\.json comes from another release(.|\n)*--fresh"):
        asyncio.run(Sandbox(tmp_path).up())
    assert (tmp_path / "etcd").exists()
    assert asyncio.run(Sandbox(tmp_path).down())
    assert not tmp_path.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"name": "my-project"}', '{"settings": {}}'])
def test_folder_of_another_program_with_such_a_file_is_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "sandbox.json").write_text(content)
    box = Sandbox(tmp_path)
    for remove in (box.up, box.down, lambda: box.up(fresh=True)):
        with pytest.raises(SandboxError, match="is not the folder of a sandbox"):
            asyncio.run(remove())
    assert (tmp_path / "sandbox.json").read_text() == content


def test_sandbox_that_is_partly_removed_is_not_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    State(SandboxSettings(), ready=True, processes={"page": ProcessRecord(1)}).save(tmp_path)
    (tmp_path / "etcd").mkdir()

    def interrupt(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(Sandbox(tmp_path).down())
    state = State.load(tmp_path)
    assert state
    assert (state.ready, Sandbox(tmp_path).status()["status"], Sandbox(tmp_path).missing()) == (False, "broken", [])


def test_status_knows_when_the_recorded_processes_no_longer_exist(tmp_path: Path) -> None:
    # pid 1 runs for sure, but carries no mark of this sandbox.
    State(SandboxSettings(), ready=True, processes={"etcd": ProcessRecord(1)}).save(tmp_path)
    found = Sandbox(tmp_path).status()
    assert found["status"] == "broken"
    assert found["processes"] == [{"name": "etcd", "pid": 1, "running": False}]


@pytest.mark.parametrize("parent", ["/var", "/mnt/disk-1"])
def test_processes_of_guests_are_not_confused_with_those_of_the_sandbox(parent: str) -> None:
    folder = Path(parent) / "box"

    def is_of_guest(*words: str) -> bool:
        return restart._is_of_guest(cast("Any", SimpleNamespace(cmdline=lambda: list(words))), folder)

    assert is_of_guest("kube-apiserver", "--etcd-prefix=/workload-0a1b-2c3d")
    assert is_of_guest("etcd", "--name=demo-cp", f"--data-dir={folder}/disk-0a1b/etcd/data")
    assert not is_of_guest("etcd", "--name=sandbox", f"--data-dir={folder}/etcd")
    assert not is_of_guest("kube-apiserver", "--etcd-prefix=/management", f"--cert-dir={folder}/management")


async def test_the_socket_of_a_killed_etcd_does_not_pass_for_that_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcd:0").touch()
    exited = Process("etcd", 2**22 + 1, tmp_path / "etcd.log")
    monkeypatch.setattr(children, "find", lambda _folder: [])
    monkeypatch.setattr(children, "start", lambda *_, **__: exited)
    with network.claim() as (claimed, _):
        state = State(SandboxSettings(), network=str(claimed), processes={"etcd": ProcessRecord(1)})
    with pytest.raises(children.ProcessError, match="etcd exited during start-up"):
        await restart.restart(tmp_path, state, "etcd")


def test_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder("two") == Path("/state/caphv/sandbox/two")


def test_claims_do_not_overlap_and_end_with_their_holder() -> None:
    with network.claim() as (first, _):
        with network.claim() as (second, _):
            assert not first.overlaps(second)
        with network.claim() as (third, _):
            assert third == second


def test_claim_outlives_the_block_while_the_socket_is_open_elsewhere() -> None:
    with network.claim() as (first, holder):
        inherited = holder.dup()
    with inherited, network.claim() as (second, _):
        assert first != second


def test_no_network_is_claimed_where_guests_could_not_listen() -> None:
    with children.socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(network.NoNetworkError, match=f"port {port} of all addresses"), network.claim([port]):
            pass
    with network.claim([port]) as (first, _), network.claim([port]) as (second, _):
        assert first != second


def test_free_ports_are_different_and_free() -> None:
    ports = children.free_ports(50)
    assert len(set(ports)) == 50
    with children.socket.socket() as probe:
        probe.bind(("127.0.0.1", ports[0]))


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux only")
def test_a_port_that_another_process_has_chosen_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    (taken,) = children.free_ports(1)
    monkeypatch.setattr(children, "PORTS", range(taken, taken + 1))
    # The process that has chosen it may bind it some seconds later.
    with pytest.raises(children.ProcessError, match="no 1 free ports"):
        children.free_ports(1)


def test_stored_version_is_the_only_one_where_older_ones_are_not_wanted() -> None:
    versions = [
        {"name": "v1beta1", "served": True, "storage": False},
        {"name": "v1beta2", "served": True, "storage": True},
    ]
    crd = {"kind": "CustomResourceDefinition", "spec": {"versions": versions}}
    assert [version["name"] for version in manager.stored_version_only(crd)["spec"]["versions"]] == ["v1beta2"]
    assert manager.stored_version_only({"kind": "Namespace"}) == {"kind": "Namespace"}


def test_core_objects_are_labelled_and_point_to_urls(tmp_path: Path) -> None:
    crd = {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusters.cluster.x-k8s.io"},
        "spec": {"group": "g"},
    }
    webhook = {"name": "w", "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/validate"}}}
    webhooks = {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "c"}, "webhooks": [webhook]}
    (tmp_path / "crd" / "bases").mkdir(parents=True)
    (tmp_path / "webhook").mkdir()
    (tmp_path / "crd" / "bases" / "clusters.yaml").write_text(yaml.safe_dump(crd))
    (tmp_path / "webhook" / "manifests.yaml").write_text(yaml.safe_dump(webhooks))

    of_core = Manager(
        "core", core.NAMESPACE, Path("core"), read_config(tmp_path), usual_options, prefix="capi-", labels=core.LABELS
    )
    made = {obj["kind"]: obj for obj in manager.objects(of_core, "https://127.0.0.1:9", b"CA")}

    bundle = base64.b64encode(b"CA").decode()
    labels = made["CustomResourceDefinition"]["metadata"]["labels"]
    assert labels["cluster.x-k8s.io/v1beta2"] == "v1beta2"
    conversion = made["CustomResourceDefinition"]["spec"]["conversion"]["webhook"]["clientConfig"]
    assert conversion == {"url": "https://127.0.0.1:9/convert", "caBundle": bundle}
    client = made["ValidatingWebhookConfiguration"]["webhooks"][0]["clientConfig"]
    assert client == {"url": "https://127.0.0.1:9/validate", "caBundle": bundle}
    assert made["Namespace"]["metadata"]["name"] == "capi-system"
