"""Where the objects of `caphv generate` go: printed, into files, or applied; what exists is not replaced unasked."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api.object import Obj
from commands.options.clusters import CommandError, InputError
from commands.output.echo import echo

if TYPE_CHECKING:
    from packager.apply import Applier, ApplyFailure
    from packager.definitions.build import Built

_REFUSED = 1


def identity_objects(found: Built, identity: str) -> list[Obj]:
    """Return the identity Secret with a kubeconfig; none without one."""
    from reconciler.harvester.identityaccount import identity_secret

    if not identity or found.definition is None:
        return []
    return [identity_secret(found.definition.identity_secret, found.definition.key.namespace, identity)]


def printed(wanted: Obj, found: Built, secret: list[Obj], output: str) -> str:
    """Return all objects, or the definition, as a text."""
    from packager.rendering import yaml

    if output == "definition":
        return yaml.dump(wanted)
    shared = [obj for group in found.shared.values() for obj in group]
    objects = [*shared[:1], *secret, *shared[1:], *found.objects]
    if output == "json":
        import json

        return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n"
    return yaml.dump_all(objects)


def write_files(folder: Path, wanted: Obj, found: Built, output: str, *, overwrite: bool) -> None:
    """Write files for a repository. Raises `InputError` if one exists with other content, unless it may be replaced."""
    from packager.definitions.files import files_of
    from packager.rendering import yaml

    name = f"{wanted['metadata']['name']}.yaml"
    files = {name: yaml.dump(wanted).encode()} if output == "definition" else files_of(found)
    try:
        different = [path for path in files if not overwrite and _is_different(folder / path, files[path])]
        if different:
            raise InputError(
                f"{folder}: {', '.join(different)} exist with other content; nothing was written. Compare them, then "
                "add --overwrite"
            )
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            click.echo(f"wrote {target}", err=True)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None


def _is_different(file: Path, content: bytes) -> bool:
    return file.exists() and file.read_bytes() != content


def apply_objects(
    found: Built, secret: list[Obj], build: Callable[[Sequence[Obj]], Built], options: dict[str, Any]
) -> None:
    """Apply the objects, and say what was applied. Ends the command with status 1 when one is refused.

    :param found: what is to be applied
    :param secret: the identity Secret, or none
    :param build: builds the objects again, with those that exist in place of others
    :param options: `kubeconfig`, `context` and `replace_identity`
    """
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from packager.apply import Applier, describe

    async def run() -> tuple[list[Obj], list[ApplyFailure]]:
        client = ApiClient(await own_configuration(options["kubeconfig"], options["context"]), name="management")
        try:
            applier = Applier(client)
            identity = secret if options["replace_identity"] else await _keep_identity(applier, secret)
            return await _applied(applier, found, identity, build)
        finally:
            await client.close()

    try:
        objects, refused = asyncio.run(run())
    except (KubeconfigError, ApiError, Unreachable) as error:
        raise InputError(f"the management cluster cannot be reached: {error}") from None
    rejected = [one.obj for one in refused]
    for obj in objects:
        if obj not in rejected:
            echo(f"applied {describe(obj)}")
    for one in refused:
        echo(f"error: {one}", err=True)
    if refused:
        sys.exit(_REFUSED)


async def _keep_identity(applier: Applier, secret: list[Obj]) -> list[Obj]:
    """Return the identity Secret to apply: none if it exists. Raises `CommandError` if it has another kubeconfig."""
    for obj in secret:
        existing = await applier.read(obj)
        if existing is None:
            continue
        kubeconfig = base64.b64encode(obj["stringData"]["kubeconfig"].encode()).decode()
        if (existing.get("data") or {}).get("kubeconfig") == kubeconfig:
            return []
        name = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        raise CommandError(
            f"Secret {name} exists with another kubeconfig, and nothing was applied. To keep it, pass this file as "
            "--check-kubeconfig instead of --harvester-kubeconfig. To replace it for all clusters that use it, add "
            "--replace-identity"
        )
    return secret


async def _applied(
    applier: Applier, found: Built, secret: list[Obj], build: Callable[[Sequence[Obj]], Built]
) -> tuple[list[Obj], list[ApplyFailure]]:
    there = [obj for planned in found.objects if (obj := await applier.read(planned)) is not None]
    # Nodes of a running cluster keep the files that they started with: other ones would replace the control plane.
    found = build(there) if there else found
    if not found.ok:
        raise CommandError(*(str(one) for one in found.findings if not one.advice))
    missing = await applier.missing(found.shared.values())
    objects = [*missing[:1], *secret, *missing[1:], *found.objects]
    return objects, await applier.apply(objects)
