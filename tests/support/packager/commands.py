"""Calls of caphv bundles and the manifests they read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from caphv.api.object import Obj
from commands.main import cli
from tests.support.packager.examples import cluster


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["bundles", *map(str, arguments)], input=stdin, prog_name="caphv")


async def in_thread(*arguments: str) -> Result:
    """As `call`, next to tasks of the test: the command has an event loop of its own."""
    return await asyncio.to_thread(call, *arguments)


def manifest(name: str, addons: Obj | None = None, **labels: str) -> Obj:
    obj = cluster(name, addons, namespace="team", labels=labels).cluster
    obj["spec"] |= {"infrastructureRef": {"kind": "HarvesterCluster", "name": name}}
    return obj


def write(folder: Path, *objs: Obj) -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for obj in objs:
        (folder / f"{obj['metadata']['name']}.yaml").write_text(yaml.safe_dump(obj))
    return folder
