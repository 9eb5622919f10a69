"""Print the objects of `caphv generate`, write them into files, or apply them.

Existing files and Secrets are replaced only on request.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from caphv.api.object import Obj, at
from commands.errors import CommandError, InputError
from commands.output.echo import echo

if TYPE_CHECKING:
    from commands.options.management import ManagementOptions
    from packager.definitions.apply import Applier, ApplyFailure
    from packager.definitions.build import Built

_REFUSED = 1


def identity_objects(cluster: Built, identity: str) -> list[Obj]:
    """Return the identity Secret with a kubeconfig.

    The list is empty without a kubeconfig, and with a HarvesterClusterIdentity, whose owner has the
    Secret.
    """
    if not identity or cluster.definition is None or not cluster.definition.identity_secret:
        return []

    from reconciler.harvester.identitysecrets import identity_secret

    return [
        identity_secret(
            cluster.definition.identity_secret, cluster.definition.key.namespace, identity
        )
    ]


def output_text(definition: Obj, cluster: Built, secret: list[Obj], output: str) -> str:
    """Return all objects, or the definition, as a text."""
    from packager.rendering import yaml

    if output == "definition":
        return yaml.dump(definition)
    shared = [obj for group in cluster.shared.values() for obj in group]
    objects = [*shared[:1], *secret, *shared[1:], *cluster.objects]
    if output == "json":
        import json

        return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n"
    return yaml.dump_all(objects)


def write_files(
    folder: Path, definition: Obj, cluster: Built, output: str, *, overwrite: bool
) -> None:
    """Write files for a repository.

    Raises `InputError` if a file exists with other content, unless `overwrite`.

    :param folder: the folder to write to
    :param definition: the definition of the cluster
    :param cluster: the objects of the cluster
    :param output: whether objects are written, or the definition
    :param overwrite: whether files may be replaced
    """
    from packager.definitions.files import files_of
    from packager.rendering import yaml

    name = f"{definition['metadata']['name']}.yaml"
    files = {name: yaml.dump(definition).encode()} if output == "definition" else files_of(cluster)
    try:
        different = [
            path for path in files if not overwrite and _is_different(folder / path, files[path])
        ]
        # All files are compared before the first one is written.
        if different:
            raise InputError(
                f"{folder}: {', '.join(different)} exist with other content; nothing was written. "
                "Compare them, then add --overwrite"
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
    cluster: Built,
    secret: list[Obj],
    build: Callable[[Sequence[Obj]], Built],
    management: ManagementOptions,
    *,
    replace_identity: bool,
) -> None:
    """Apply the objects, and say which were applied.

    Ends the command with status 1 if an object is refused.

    :param cluster: the objects to apply
    :param secret: a list with the identity Secret, or an empty one
    :param build: builds the objects again, considering existing objects
    :param management: the management cluster
    :param replace_identity: whether an existing identity Secret gets this kubeconfig
    """
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from packager.definitions.apply import Applier, describe

    async def apply_all() -> _Applied:
        connection = await own_configuration(management.kubeconfig, management.context)
        client = ApiClient(connection, name="management")
        try:
            applier = Applier(client)
            identity = secret if replace_identity else await _keep_identity(applier, secret)
            return await _apply(applier, cluster, identity, build)
        finally:
            await client.close()

    try:
        applied = asyncio.run(apply_all())
    except (KubeconfigError, RequestError) as error:
        raise InputError(f"the management cluster cannot be reached: {error}") from None

    refused = [failure.obj for failure in applied.failures]
    for obj in applied.objects:
        if obj not in refused:
            echo(f"applied {describe(obj)}")
    for failure in applied.failures:
        echo(f"error: {failure}", err=True)
    if applied.failures:
        sys.exit(_REFUSED)


class _Applied(NamedTuple):
    """The objects of a cluster, and which of them the management cluster refused."""

    objects: list[Obj]
    failures: list[ApplyFailure]


async def _keep_identity(applier: Applier, secret: list[Obj]) -> list[Obj]:
    """Return the identity Secret to apply, which is none if it exists.

    Raises `CommandError` if it has another kubeconfig.
    """
    for obj in secret:
        existing = await applier.read(obj)
        if existing is None:
            continue

        kubeconfig = base64.b64encode(obj["stringData"]["kubeconfig"].encode()).decode()
        if at(existing, "data", "kubeconfig") == kubeconfig:
            return []
        name = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        raise CommandError(
            f"Secret {name} exists with another kubeconfig, and nothing was applied. To keep it, "
            "pass this file as --check-kubeconfig instead of --harvester-kubeconfig. To replace "
            "it for all clusters that use it, add --replace-identity"
        )
    return secret


async def _apply(
    applier: Applier, cluster: Built, secret: list[Obj], build: Callable[[Sequence[Obj]], Built]
) -> _Applied:
    """Apply the objects. Raises `CommandError` if they cannot be built on top of existing ones."""
    existing = [obj for planned in cluster.objects if (obj := await applier.read(planned))]
    # Nodes of a running cluster keep the files that they started with, because other files would
    # replace the control plane.
    built = build(existing) if existing else cluster
    if not built.ok:
        raise CommandError(*(str(finding) for finding in built.findings if not finding.advice))

    # The namespace comes before the Secret in it, and the Secret before objects that refer to it.
    missing = await applier.missing(built.shared.values())
    objects = [*missing[:1], *secret, *missing[1:], *built.objects]
    return _Applied(objects, await applier.apply(objects))
