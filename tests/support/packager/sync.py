"""Calls of `caphv packager sync` in tests, and what they leave in a repository."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import Obj
from commands.errors import InputError
from commands.main import cli
from packager.definitions.apply import ApplyFailure, describe
from tests.support.packager.repositories import Origin, git

STATUS = "caphv-status.yaml"


def put(folder: Path, *objs: Obj) -> None:
    for obj in objs:
        (folder / f"{obj['metadata']['name']}.yaml").write_text(yaml.safe_dump(obj, sort_keys=False))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["packager", *map(str, arguments)], prog_name="caphv")


def sync(source: Path, origin: Origin, *more: object) -> Result:
    return call("sync", source, "--repo", origin.url, *more)


def done(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def status(origin: Origin) -> Obj:
    found: Obj = yaml.safe_load(origin.files()[STATUS])
    return found


def changed(origin: Origin) -> list[str]:
    """Files that the last commit changed."""
    return git(origin.folder, "diff", "--name-only", "main~1", "main").splitlines()


class Management:
    """Stands in for the management cluster: refuses some objects, and counts how often objects are applied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reachable = True
        self.leaves = False
        """Whether it is unreachable once it was asked whether it can delete a Cluster."""
        self.refused: set[str] = set()
        self.deleted: list[str] = []
        self.applied = 0
        monkeypatch.setattr("commands.packager.management.on_cluster", self.call)

    def call(self, _flags: Obj, work: Callable[[Management], Awaitable[list[ApplyFailure]]]) -> list[ApplyFailure]:
        if not self.reachable:
            raise InputError("the management cluster cannot be reached: no route")
        return asyncio.run(work(self))  # type: ignore[arg-type]

    async def missing(self, _groups: Iterable[Sequence[Obj]]) -> list[Obj]:
        return []

    async def apply(self, objects: Iterable[Obj], namespace: str = "") -> list[ApplyFailure]:
        self.applied += bool(namespace)
        return [ApplyFailure(obj, "forbidden") for obj in objects if self._name(obj) in self.refused]

    async def delete(self, objects: Iterable[Obj], namespace: str = "") -> list[ApplyFailure]:
        given = [*objects]
        self.deleted += [describe(obj) for obj in given if self._name(obj) not in self.refused]
        return [ApplyFailure(obj, "forbidden") for obj in given if self._name(obj) in self.refused]

    async def delete_cluster(self, name: str, *, dry_run: bool = False) -> list[ApplyFailure]:
        namespace, _, plain = name.partition("/")
        if name in self.refused:
            return [ApplyFailure({"kind": "Cluster", "metadata": {"name": plain, "namespace": namespace}}, "forbidden")]
        self.reachable = self.reachable and not (dry_run and self.leaves)
        self.deleted += [] if dry_run else [name]
        return []

    def _name(self, obj: Obj) -> str:
        return f"{obj['metadata'].get('namespace')}/{obj['metadata']['name']}"
