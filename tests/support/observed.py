"""Records of real programs below `tests/observed`, to be replayed against the simulators that model them."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import CHECKOUT

FOLDER = CHECKOUT / "tests" / "observed"


@dataclasses.dataclass(frozen=True)
class Record:
    """What one release of a real program did with one input."""

    project: str
    tag: str
    name: str
    input: Any
    outcome: Any

    def __str__(self) -> str:
        return f"{self.tag}-{self.name}"


def records(path: str) -> list[Record]:
    """Return the records of a file below `tests/observed`.

    :param path: for example `harvester/admission.yaml`
    :raises ValueError: if the file is incomplete or names a record twice
    """
    return _parse(FOLDER / path)


def _parse(file: Path) -> list[Record]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))

    absent = {"project", "tag", "files", "setup", "records"} - content.keys()
    if absent:
        raise ValueError(f"{file} lacks {', '.join(sorted(absent))}")

    names = [record["name"] for record in content["records"]]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{file} must have records with distinct names")

    return [
        Record(content["project"], str(content["tag"]), record["name"], record["input"], record["outcome"])
        for record in content["records"]
    ]
