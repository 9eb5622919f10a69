"""The file that holds an upgrade in waves: `caphv-upgrade.status.yaml`, next to its request.

The commit of each wave writes it, with the clusters of all waves and their previous versions. So a
restarted packager, or another replica, can continue the upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from caphv.api.object import Key
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.versions import Versions, parse_versions
from packager.rendering import yaml
from packager.upgrade import request as upgrade_request
from packager.upgrade.rollout import Rollout, State

_LIMITS = Limits(size=4 * 1024 * 1024, nodes=200_000, seconds=10, aliases=False)


def status_file_of(file: str) -> str:
    """Return the name of the file that holds an upgrade; `file` has its request."""
    return file.removesuffix(".yaml") + ".status.yaml"


def serialize(rollout: Rollout) -> bytes:
    """Return the content of the file for an upgrade."""
    return yaml.dump(as_data(rollout)).encode()


def as_data(rollout: Rollout) -> dict[str, Any]:
    """Return an upgrade as plain data."""
    since = datetime.fromtimestamp(int(rollout.since), UTC)
    left_out = [
        {"cluster": str(key), "messages": [*reasons], "release": rollout.kept_releases.get(key, "")}
        for key, reasons in sorted(rollout.left_out.items())
    ]

    return {
        "state": rollout.state.value,
        "release": rollout.release,
        "request": rollout.request.as_data(),
        "waves": [
            {"name": name, "clusters": [str(key) for key in clusters]}
            for name, clusters in rollout.waves
        ],
        "wave": rollout.wave,
        "since": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "before": _grouped_versions(rollout.before),
        "problems": [
            {"cluster": str(key), "messages": [*problems]}
            for key, problems in sorted(rollout.problems.items())
        ],
        "leftOut": left_out,
    }


def _grouped_versions(before: Mapping[Key, Versions]) -> list[dict[str, Any]]:
    """Return a row for each set of versions, with all clusters that have it."""
    # Versions hold dictionaries, so they cannot be keys of a dictionary.
    groups: list[tuple[Versions, list[str]]] = []
    for key, versions in sorted(before.items()):
        for group_versions, clusters in groups:
            if group_versions == versions:
                clusters.append(str(key))
                break
        else:
            groups.append((versions, [str(key)]))
    return [{"versions": versions.as_data(), "clusters": clusters} for versions, clusters in groups]


def parse(content: bytes | None) -> Rollout | None:
    """Parse the content of the file; None if there is no file. Raises `ValueError` if damaged."""
    if content is None:
        return None
    try:
        return _parse_rollout(load_yaml(content, _LIMITS))
    except TextError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from None


def _parse_rollout(value: Any) -> Rollout:
    """Return the upgrade. Raises any error of a value that does not have the expected shape."""
    waves = tuple(
        (str(row["name"]), tuple(_parse_key(key) for key in row["clusters"]))
        for row in value["waves"]
    )
    number = int(value["wave"])
    if not 0 <= number <= len(waves):
        raise ValueError(f"wave: there is no wave {number}")

    return Rollout(
        release=str(value["release"]),
        request=upgrade_request.parse(value["request"]),
        waves=waves,
        state=State(value["state"]),
        wave=number,
        since=datetime.fromisoformat(str(value["since"])).timestamp(),
        before={
            _parse_key(name): parse_versions(row["versions"])
            for row in value["before"]
            for name in row["clusters"]
        },
        problems=_parse_messages(value["problems"]),
        left_out=_parse_messages(value["leftOut"]),
        kept_releases={
            _parse_key(row["cluster"]): str(row["release"])
            for row in value["leftOut"]
            if row.get("release")
        },
    )


def _parse_messages(rows: Any) -> dict[Key, tuple[str, ...]]:
    return {_parse_key(row["cluster"]): tuple(map(str, row["messages"])) for row in rows}


def _parse_key(text: Any) -> Key:
    namespace, name = str(text).split("/")
    return Key(namespace, name)
