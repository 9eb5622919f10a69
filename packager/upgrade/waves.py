"""Waves of an upgrade: their names in a request, and their clusters."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from caphv.api import names
from packager.addons.facts import ClusterFacts, labels_of_cluster

REST = "rest"
_MAX_CLUSTERS = 1_000_000
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Wave:
    """Clusters that one commit upgrades, with the `name` that the user wrote."""

    name: str
    clusters: tuple[ClusterFacts, ...]


def parse(text: str) -> tuple[str, ...]:
    """Parse a list of waves such as `canary,10%,rest`. Raises `ValueError` with all problems."""
    return check_waves([part.strip() for part in text.split(",")])


def check_waves(waves: Sequence[str]) -> tuple[str, ...]:
    """Return the waves if they are valid. Raises `ValueError` with all problems."""
    problems = [
        f"{_format(wave)} is no wave: use a value of label {names.WAVE_LABEL}, a number, a "
        f"percentage such as 10%, or {REST}"
        for wave in waves
        if not _is_valid(wave)
    ]

    # Numbers and percentages may repeat, because each is a wave of its own.
    problems += [
        f"{_format(wave)} is listed twice"
        for wave, count in Counter(waves).items()
        if wave and not _is_share(wave) and count > 1
    ]

    if waves and waves[-1] != REST:
        problems.append(
            f"the last wave must be {REST!r}, so that no cluster is left behind; add it"
        )

    if problems:
        raise ValueError("; ".join(problems))
    return tuple(waves)


def _is_valid(wave: str) -> bool:
    if re.fullmatch(r"[0-9]{1,3}%", wave):
        return 1 <= int(wave[:-1]) <= 100
    if not _LABEL_VALUE.fullmatch(wave):
        return False
    return not wave.isdigit() or 1 <= int(wave) <= _MAX_CLUSTERS


def _is_share(wave: str) -> bool:
    return wave.isdigit() or wave.endswith("%")


def _format(wave: str) -> str:
    # A label's value has at most 63 characters.
    return repr(wave) if len(wave) <= 63 else f"{wave[:63]!r}…"


def split(waves: Sequence[str], clusters: Sequence[ClusterFacts]) -> list[Wave]:
    """Return the waves with their clusters, without empty waves.

    A wave that is the value of a label has all clusters with that label, wherever it is in the
    list. Other waves divide the remaining clusters. A percentage refers to all clusters, and is
    rounded up.
    """
    # Take the labelled clusters out first, because a share may be listed before their wave.
    labelled: dict[str, list[ClusterFacts]] = {
        wave: [] for wave in waves if wave != REST and not _is_share(wave)
    }
    remaining: list[ClusterFacts] = []
    for facts in clusters:
        label = labels_of_cluster(facts).get(names.WAVE_LABEL, "")
        labelled.get(label, remaining).append(facts)

    result = []
    for wave in waves:
        if wave in labelled:
            members = labelled[wave]
        else:
            count = _size(wave, len(clusters), len(remaining))
            members = remaining[:count]
            remaining = remaining[count:]
        if members:
            result.append(Wave(wave, tuple(members)))
    return result


def _size(wave: str, total: int, remaining: int) -> int:
    """Return the number of clusters of a wave without a label."""
    if wave == REST:
        return remaining
    if wave.endswith("%"):
        return math.ceil(total * int(wave[:-1]) / 100)
    return int(wave)
