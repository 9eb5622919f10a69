"""A sandbox whose management cluster is lost, and a new one that is set up in its place. Harvester notices nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from caphv import data
from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import manifests, rights
from sandbox.capi import core, manager
from sandbox.capi import crds as providers
from sandbox.environment import Sandbox
from sandbox.processes import children, pki
from sandbox.state import ProcessRecord, State

_SERVED = ("provider", "core", "page", "simulator", "management")
_PREFIX = "--etcd-prefix=/management"


async def lose(box: Sandbox) -> None:
    """End everything that runs on the management cluster, and the cluster with all its objects."""
    state = _state(box)
    pids = {state.processes[name].pid for name in _SERVED if name in state.processes}
    await children.stop([process for process in children.find(box.folder) if process.pid in pids])


async def install_again(box: Sandbox) -> ApiClient:
    """Start an empty management cluster at the same address, with core, kinds and rights, and without our provider.

    The simulation of Harvester starts again as well, because providers of control planes are a part of it.
    """
    state = _state(box)
    server = state.processes["management"]
    command = [f"{_PREFIX}-again" if word == _PREFIX else word for word in server.command]
    assert command != server.command
    changed = {**state.processes, "management": ProcessRecord(server.pid, command, server.env)}
    dataclasses.replace(state, processes=changed).save(box.folder)
    await box.restart("management")
    client = parse_kubeconfig(box.kubeconfig("management").read_bytes()).client(name="management", untrusted=False)
    older = state.settings.older_versions
    kinds = [obj if older else manager.stored_version_only(obj) for obj in _kinds()]
    await manifests.apply(client, [*kinds, *rights.provider_objects()])
    (port,) = (word.partition("=")[2] for word in state.processes["core"].command if "--webhook-port=" in word)
    authority = pki.CA.create("caphv-sandbox-webhooks")
    url = f"https://127.0.0.1:{port}"
    await manager.install(box.folder, client, core.manager(), url, authority, older_versions=older)
    for name in ("core", "simulator"):
        await box.restart(name)
    return client


def _kinds() -> list[Obj]:
    ours: list[Path] = sorted(data.folder("deploy/crds").glob("*.yaml"))
    return manifests.with_move_label([*manifests.read(ours), *providers.custom_resource_definitions()])


def _state(box: Sandbox) -> State:
    state = State.load(box.folder)
    assert state is not None
    return state
