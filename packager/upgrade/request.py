"""The request for an upgrade in waves: `caphv-upgrade.yaml` at the top of the repository.

A user writes the file, by hand or with `caphv bundles upgrade --waves`, so that it is reviewed and
reverted like any other change. The packager follows it while it exists, and removes it in the
commit that ends the upgrade. Packagers that divide the clusters among them have one file each, so
that no packager follows the request for another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.selector import selector
from packager.rendering import yaml
from packager.upgrade.waves import check_waves

FILE = "caphv-upgrade.yaml"
_HEADER = (
    b"# An upgrade of add-ons in waves. Delete this file to stop it: clusters keep the versions"
    b" that they have.\n"
)

_LIMITS = Limits(size=64 * 1024, depth=4, nodes=1000, seconds=1, aliases=False)
_MAX_WAVES = 100
_MAX_SELECTOR_LENGTH = 1000
_MAX_VALUE_LENGTH = 60

_TIME = re.compile(r"([1-9]\d{0,5})([smh])")
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
MAX_GATE_SECONDS = 7 * 24 * 3600.0
"""Seconds. Users would forget about a wave that is awaited for longer."""


@dataclass(frozen=True)
class Request:
    """A request for an upgrade in waves.

    `gate` is the time in seconds that a wave has to become ready. An empty `release` is the newest,
    an empty `selector` selects all clusters.
    """

    waves: tuple[str, ...]
    gate: float
    release: str = ""
    selector: str = ""

    def as_data(self) -> dict[str, Any]:
        """Return the fields as a user writes them."""
        data: dict[str, Any] = {"waves": [*self.waves], "ready": _time(self.gate)}
        if self.release:
            data["release"] = self.release
        if self.selector:
            data["selector"] = self.selector
        return data


def file_of(share: str) -> str:
    """Return the file of a packager with a share of the clusters; empty stands for all clusters."""
    return f"caphv-upgrade-{share}.yaml" if share else FILE


def serialize(request: Request) -> bytes:
    """Return the content of the file."""
    return _HEADER + yaml.dump(request.as_data()).encode()


def parse_file(content: bytes) -> Request:
    """Parse the content of the file.

    Raises `ValueError` with field, value and remedy of all problems.
    """
    try:
        value = load_yaml(content, _LIMITS)
    except TextError as error:
        raise ValueError(f"{error}") from None
    return parse(value)


def parse(value: Any) -> Request:
    """Return the request of parsed YAML. Raises `ValueError` as `parse_file` does."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must have fields {', '.join(_FIELDS)}, not be {_shown(value)}")

    problems = [
        f"{_shown(name)}: unknown field; use {', '.join(_FIELDS)}"
        for name in value
        if name not in _FIELDS
    ]
    # A field without a value may be a mistake, and must not upgrade all clusters.
    problems += [
        f"{name}: has no value; set one, or leave the field out"
        for name in ("release", "selector")
        if name in value and value[name] is None
    ]
    # Report all problems at once, because each attempt costs the user a commit.
    for name, check in _FIELDS.items():
        problems += (f"{name}: {problem}" for problem in check(value.get(name)))
    if problems:
        raise ValueError("; ".join(problems))

    waves = tuple(map(str, value["waves"]))
    return Request(
        waves=waves,
        gate=_seconds(value["ready"]),
        release=value.get("release") or "",
        selector=value.get("selector") or "",
    )


def _check_waves(value: Any) -> Iterator[str]:
    if not isinstance(value, list) or not value:
        yield f"must be a list such as [canary, 10%, rest], not {_shown(value)}"
    elif len(value) > _MAX_WAVES:
        yield f"has {len(value)} waves; use at most {_MAX_WAVES}"
    elif wrong := [wave for wave in value if not _is_text_or_number(wave)]:
        yield (
            f"must have text and numbers, not {', '.join(map(_shown, wrong))}; put quotes around "
            "names"
        )
    else:
        try:
            check_waves([str(wave) for wave in value])
        except ValueError as error:
            yield str(error)


def _is_text_or_number(value: Any) -> bool:
    # In Python, booleans are integers.
    return isinstance(value, str | int) and not isinstance(value, bool)


def _check_ready(value: Any) -> Iterator[str]:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        yield f"must be a time such as 90s, 45m or 2h, not {_shown(value)}"
    elif _seconds(value) > MAX_GATE_SECONDS:
        yield f"must be at most {_time(MAX_GATE_SECONDS)}, not {_shown(value)}"


def _check_release(value: Any) -> Iterator[str]:
    # YAML reads 2026.10 without quotes as the number 2026.1.
    if value is not None and not (isinstance(value, str) and _RELEASE.fullmatch(value)):
        yield f'must be the name of a release in quotes such as "2026.12", not {_shown(value)}'


def _check_selector(value: Any) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, str) or len(value) > _MAX_SELECTOR_LENGTH:
        yield (
            f"must be a label selector of at most {_MAX_SELECTOR_LENGTH} characters, not "
            f"{_shown(value)}"
        )
        return
    try:
        selector(value)
    except ValueError as error:
        yield str(error)


_FIELDS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "waves": _check_waves,
    "ready": _check_ready,
    "release": _check_release,
    "selector": _check_selector,
}


def _seconds(time: str) -> float:
    return float(int(time[:-1]) * _SECONDS[time[-1]])


def _time(seconds: float) -> str:
    for unit, size in sorted(_SECONDS.items(), key=lambda item: -item[1]):
        if seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
