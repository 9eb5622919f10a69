"""Collects what a support request needs: the model, the doctor's checks, objects, Events and logs, without Secrets."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import aiohttp
import orjson
import yaml

from caphv.api.object import EVENTS, PODS, Key, Obj, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.transport import Connection, describe
from overview.harvester import Harvesters
from overview.model import as_json
from overview.objects import HarvesterObjects, ManagementObjects
from overview.reader import Step, list_all
from overview.redact import redacted, redacted_text

_LOG_BYTES = 5 * 1024 * 1024
_LOG_SECONDS = 30.0
_LISTS = ("clusters", "machines", "machine_deployments", "control_planes", "harvester_clusters", "harvester_machines")
_HARVESTER_LISTS = ("hosts", "pools", "vms", "instances", "claims", "load_balancers", "services")
# The C emitter is an optional part of PyYAML.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def files_of_management(objects: ManagementObjects, keys: Iterable[Key]) -> Iterator[tuple[str, str]]:
    """Yield a file for each object of these clusters, redacted."""
    wanted = set(keys)
    namespaces = {key.namespace for key in wanted}
    for name in _LISTS:
        for obj in getattr(objects, name):
            labels = obj["metadata"].get("labels") or {}
            owner = Key(key_of(obj).namespace, labels.get("cluster.x-k8s.io/cluster-name", key_of(obj).name))
            if owner in wanted or (name in ("harvester_clusters", "control_planes") and owner.namespace in namespaces):
                yield f"management/{obj['kind'].lower()}/{key_of(obj).namespace}/{key_of(obj).name}.yaml", _dump(obj)


def files_of_harvester(number: int, objects: HarvesterObjects) -> Iterator[tuple[str, str]]:
    """Yield a file for each kind that was read on a Harvester, redacted."""
    for name in _HARVESTER_LISTS:
        if objs := getattr(objects, name):
            yield f"harvester-{number}/{name}.yaml", _dump(objs)
    hidden = "".join(f"{each}\n" for each in objects.unseen)
    yield f"harvester-{number}/server.txt", redacted_text(f"{objects.server}\n{objects.version}\n{hidden}")


def files_of_harvesters(harvesters: Harvesters) -> Iterator[tuple[str, str]]:
    """Yield the files of all Harvesters."""
    for number, objects in enumerate(sorted(harvesters.all(), key=lambda each: each.server), start=1):
        yield from files_of_harvester(number, objects)


def json_file(value: object) -> str:
    """Return data of the model as JSON, redacted."""
    return orjson.dumps(redacted(as_json(value)), option=orjson.OPT_INDENT_2).decode() + "\n"


async def events(client: ApiClient, namespaces: Iterable[str]) -> str:
    """Return the Events of namespaces, oldest first, one a line; what cannot be read is a line, too."""
    lines = []
    for namespace in sorted(set(namespaces)):
        try:
            found = await list_all(client, EVENTS, namespace)
        except (ApiError, Unreachable) as error:
            lines.append(f"{namespace}: {error}")
            continue
        for event in sorted(found, key=_time):
            about = event.get("involvedObject") or {}
            what = f"{namespace} {about.get('kind')}/{about.get('name')}"
            lines.append(f"{_time(event)} {event.get('type')} {event.get('reason')} {what}: {event.get('message')}")
    return redacted_text("\n".join(lines) + "\n")


async def logs(client: ApiClient, connection: Connection, namespace: str, step: Step) -> dict[str, str]:
    """Return the logs of the Pods in the provider's namespace, by file; of each, why it cannot be read."""
    try:
        pods = await list_all(client, PODS, namespace)
    except (ApiError, Unreachable) as error:
        return {"logs/README.txt": redacted_text(f"Pods of namespace {namespace}: {error}\n")}
    found = {}
    timeout = aiohttp.ClientTimeout(total=_LOG_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for pod in pods:
            for container in (pod.get("spec") or {}).get("containers") or ():
                name = pod["metadata"]["name"]
                step(f"reading the log of {name}")
                path = PODS.path(namespace, name, "log")
                found[f"logs/{name}/{container['name']}.log"] = await _log(
                    session, connection, path, str(container["name"])
                )
    return found or {"logs/README.txt": f"no Pods in namespace {namespace}\n"}


def archive(files: Mapping[str, str], root: str) -> bytes:
    """Return a compressed archive of files below one folder."""
    buffer = io.BytesIO()
    now = int(datetime.now(UTC).timestamp())
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in sorted(files.items()):
            content = text.encode()
            info = tarfile.TarInfo(f"{root}/{name}")
            info.size, info.mtime, info.mode = len(content), now, 0o600
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def _log(session: aiohttp.ClientSession, connection: Connection, path: str, container: str) -> str:
    """Read a log. The API client reads JSON only."""
    query = {"container": container, "limitBytes": str(_LOG_BYTES), "tailLines": "20000", "timestamps": "true"}
    try:
        headers = {"Authorization": authorization} if (authorization := await connection.authorization()) else {}
        async with session.get(
            connection.server + path,
            params=query,
            headers=headers,
            ssl=connection.tls,
            proxy=connection.proxy,
            server_hostname=connection.server_name,
            allow_redirects=False,
        ) as answer:
            text = await answer.text(errors="replace")
            return redacted_text(text if answer.status == 200 else f"cannot be read: HTTP {answer.status}: {text}\n")
    except (aiohttp.ClientError, OSError) as error:
        return redacted_text(f"cannot be read: {describe(error)}\n")


def _dump(value: Obj | list[Obj]) -> str:
    return yaml.dump(redacted(value), Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120)


def _time(event: Obj) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next((str(each) for each in times if each), "")
