"""Collect data for a support request, without secrets: model, checks, objects, Events, logs."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import aiohttp
import orjson
import yaml

from caphv.api.names import CLUSTER_NAME_LABEL
from caphv.api.object import EVENTS, PODS, Key, Obj, key_of, labels_of, list_at
from caphv.runtime.client import ApiClient
from caphv.runtime.connection import Connection
from caphv.runtime.errors import RequestError
from caphv.runtime.networkerrors import describe
from operations.doctor.redact import redact, redact_text
from operations.read.harvester import Harvesters
from operations.read.management import Step, list_all
from operations.read.objects import HarvesterObjects, ManagementObjects
from operations.status.model import as_json

# A support request cannot carry more of a log.
_LOG_BYTES = 5 * 1024 * 1024
_LOG_SECONDS = 30.0
_LISTS = (
    "clusters",
    "machines",
    "machine_deployments",
    "control_planes",
    "harvester_clusters",
    "harvester_machines",
)
_HARVESTER_LISTS = ("hosts", "pools", "vms", "instances", "claims", "load_balancers", "services")
# The C emitter is an optional part of PyYAML.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def files_of_management(
    objects: ManagementObjects, keys: Iterable[Key]
) -> Iterator[tuple[str, str]]:
    """Yield a file for each object of these clusters, redacted."""
    clusters = set(keys)
    namespaces = {key.namespace for key in clusters}
    for name in _LISTS:
        # Objects of these kinds may have another name than their cluster, and no label yet.
        may_differ = name in ("harvester_clusters", "control_planes")
        for obj in getattr(objects, name):
            key = key_of(obj)
            cluster = Key(key.namespace, labels_of(obj).get(CLUSTER_NAME_LABEL, key.name))
            if cluster in clusters or (may_differ and key.namespace in namespaces):
                path = f"management/{obj['kind'].lower()}/{key.namespace}/{key.name}.yaml"
                yield path, _dump(obj)


def files_of_harvester(number: int, objects: HarvesterObjects) -> Iterator[tuple[str, str]]:
    """Yield a file for each kind that was read on a Harvester, redacted."""
    for name in _HARVESTER_LISTS:
        if objs := getattr(objects, name):
            yield f"harvester-{number}/{name}.yaml", _dump(objs)

    # Address, version and error texts may hold credentials as well.
    hidden = "".join(f"{item}\n" for item in objects.unseen)
    text = f"{objects.server}\n{objects.version}\n{hidden}"
    yield f"harvester-{number}/server.txt", redact_text(text)


def files_of_harvesters(harvesters: Harvesters) -> Iterator[tuple[str, str]]:
    """Yield the files of all Harvesters."""
    ordered = sorted(harvesters.all(), key=lambda harvester: harvester.server)
    for number, objects in enumerate(ordered, start=1):
        yield from files_of_harvester(number, objects)


def json_file(value: object) -> str:
    """Return data of the model as JSON, redacted."""
    return orjson.dumps(redact(as_json(value)), option=orjson.OPT_INDENT_2).decode() + "\n"


async def read_events(client: ApiClient, namespaces: Iterable[str]) -> str:
    """Return Events and read errors of namespaces, one per line, oldest Event first."""
    lines = []
    for namespace in sorted(set(namespaces)):
        try:
            objs = await list_all(client, EVENTS, namespace)
        except RequestError as error:
            lines.append(f"{namespace}: {error}")
            continue

        for event in sorted(objs, key=_last_seen):
            about = event.get("involvedObject") or {}
            subject = f"{namespace} {about.get('kind')}/{about.get('name')}"
            lines.append(
                f"{_last_seen(event)} {event.get('type')} {event.get('reason')} {subject}: "
                f"{event.get('message')}"
            )
    return redact_text("\n".join(lines) + "\n")


async def read_logs(
    client: ApiClient, connection: Connection, namespace: str, step: Step
) -> dict[str, str]:
    """Return the logs of the Pods in the provider's namespace, by file, or why one is unreadable.

    :param client: client of the management cluster
    :param connection: connection to the same server, for requests whose answer is not JSON
    :param namespace: the namespace of the provider
    :param step: called with a text before each log
    """
    try:
        pods = await list_all(client, PODS, namespace)
    except RequestError as error:
        return {"logs/README.txt": redact_text(f"Pods of namespace {namespace}: {error}\n")}

    files = {}
    timeout = aiohttp.ClientTimeout(total=_LOG_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for pod in pods:
            name = pod["metadata"]["name"]
            path = PODS.path(namespace, name, "log")
            for container in list_at(pod, "spec", "containers"):
                step(f"reading the log of {name}")
                log = await _read_log(session, connection, path, str(container["name"]))
                files[f"logs/{name}/{container['name']}.log"] = log
    return files or {"logs/README.txt": f"no Pods in namespace {namespace}\n"}


def archive(files: Mapping[str, str], root: str) -> bytes:
    """Return a compressed archive of files below one folder."""
    buffer = io.BytesIO()
    time = int(datetime.now(UTC).timestamp())
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in sorted(files.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size = len(content)
            info.mtime = time
            info.mode = 0o600
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def _read_log(
    session: aiohttp.ClientSession, connection: Connection, path: str, container: str
) -> str:
    """Read the end of a log, redacted.

    :param session: the session for the request
    :param connection: connection to the management cluster
    :param path: the path of a Pod's log
    :param container: the name of a container in the Pod
    """
    # With a limit of bytes, the server leaves out the newest lines. With its timestamps, lines of
    # YAML and keys would not be recognized as such.
    query = {"container": container, "tailLines": "20000"}

    # The API client reads JSON only, so that this request repeats its handling of a connection.
    try:
        authorization = await connection.authorization()
        headers = {"Authorization": authorization} if authorization else {}
        async with session.get(
            connection.server + path,
            params=query,
            headers=headers,
            ssl=connection.tls,
            proxy=connection.proxy,
            server_hostname=connection.server_name,
            allow_redirects=False,
        ) as answer:
            text = (await _read_end(answer.content)).decode(errors="replace")
            if answer.status != 200:
                text = f"cannot be read: HTTP {answer.status}: {text}\n"
            return redact_text(text)
    except (aiohttp.ClientError, OSError) as error:
        return redact_text(f"cannot be read: {describe(error)}\n")


async def _read_end(stream: aiohttp.StreamReader) -> bytes:
    """Return the end of an answer. If its begin is left out, it begins with a line."""
    length = 0
    kept = bytearray()
    async for chunk in stream.iter_any():
        length += len(chunk)
        kept += chunk
        # Twice the size, so that bytes are moved rarely.
        if len(kept) > 2 * _LOG_BYTES:
            del kept[:-_LOG_BYTES]

    end = bytes(kept[-_LOG_BYTES:])
    return end.partition(b"\n")[2] if length > _LOG_BYTES else end


def _dump(value: Obj | list[Obj]) -> str:
    """Return objects as YAML, redacted."""
    return yaml.dump(redact(value), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)


def _last_seen(event: Obj) -> str:
    """Return the time at which an Event was last seen."""
    created = event["metadata"].get("creationTimestamp")
    return str(event.get("lastTimestamp") or event.get("eventTime") or created or "")
