"""Writes a commit as one stream for `git fast-import`, which reads only changed folders.

Measured on two cores with 6,000 files: fast-import 1.0 s, GitPython's index with its object
database 18 s. For one file in a repository of 1,000 clusters it takes 15 ms. Nothing is checked
out, and an interrupted import leaves no reference.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from packager.git.changeplan import Plan
from packager.git.errors import UnmanagedFiles
from packager.git.paths import check_path, join_path
from packager.git.snapshot import Snapshot

WORK_REF = "refs/caphv/work"
BASE_TRAILER = "Caphv-Base"
_MAX_LINES = 1000
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class Identity:
    """Author and committer. Raises `ValueError` for values that Git cannot store."""

    name: str = "caphv"
    email: str = "caphv@localhost"

    def __post_init__(self) -> None:
        for value in (self.name, self.email):
            if not value.strip() or re.search(r"[<>\x00-\x1f\x7f]", value):
                raise ValueError(f"author {value!r}: must be text without '<', '>' and line ends")

    def __str__(self) -> str:
        return f"{self.name} <{self.email}>"

    @property
    def variables(self) -> dict[str, str]:
        """The identity as environment variables, for commands of Git that read it from there."""
        values = {"NAME": self.name, "EMAIL": self.email}
        return {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in values.items()
        }


@dataclass(frozen=True)
class Reason:
    """The reason for a commit: one sentence, and trailers such as `{"Source": "<commit>"}`."""

    why: str
    trailers: dict[str, str] = field(default_factory=dict)


def message(plan: Plan, reason: Reason) -> str:
    """Return the message of a commit: the reason, and every changed, removed and skipped folder."""
    sections = [_line(plan.subject) or _subject(plan), _line(plan.why or reason.why)]
    for title, rows in (
        ("Settings", [f"{name}: {', '.join(changes)}" for name, changes in plan.details.items()]),
        ("Added", plan.added),
        ("Changed", plan.changed),
        ("Removed", [str(removal) for removal in plan.removed]),
        ("Held back", [f"{skipped.what}: {skipped.why}" for skipped in plan.held]),
        ("Skipped", [f"{skipped.what}: {skipped.why}" for skipped in plan.refused]),
    ):
        if rows:
            sections.append("\n".join([f"{title}:", *_bullets([_line(row) for row in rows])]))

    # Git reads trailers from the last paragraph.
    trailers = [f"{_line(key)}: {_line(value)}" for key, value in reason.trailers.items()]
    return "\n\n".join(section for section in [*sections, "\n".join(trailers)] if section) + "\n"


def check(plan: Plan, base: Snapshot) -> None:
    """Raise `UnmanagedFiles` if a plan would replace more than regular files.

    Git and file systems do so silently.
    """
    if obstacle := base.find_conflict(plan.write.keys(), plan.delete):
        raise UnmanagedFiles(
            f"{obstacle} is not what caphv would write there, but a link, a submodule, a folder or "
            "a file of others; move it away, or set --path to another folder"
        )


def restore_former_files(
    extension: Plan, planned: Plan, review: Snapshot, target: Snapshot
) -> Plan:
    """Add files to the extension of a review that the review had removed, and return the extension.

    The files are as in the plan for the target. A removed folder of a cluster held the cluster's
    pinned versions, which a plan for the review no longer has.
    """
    former = {
        path: content
        for path in extension.write
        if review.entry(path) is None
        and (content := planned.write.get(path, target.read(path))) is not None
    }
    return replace(extension, write={**extension.write, **former})


def base_of(text: str) -> str:
    """Return the base in the message of a review commit, empty if the packager did not write it."""
    # Git ends lines only at a line feed. A subject from outside may hold other line breaks.
    for line in text.split("\n"):
        key, _, value = line.partition(": ")
        if key == BASE_TRAILER:
            return value
    return ""


def _subject(plan: Plan) -> str:
    parts = [
        ("Add", plan.added),
        ("Update", plan.changed),
        ("Remove", [str(removal) for removal in plan.removed]),
    ]
    folders = [(verb, name) for verb, names in parts for name in names]
    if not folders:
        files = list(plan.write)
        return f"Update {files[0]}" if len(files) == 1 else "Update records"

    # A subject has little room, so it names a single folder and counts several.
    if len(folders) == 1:
        verb, name = folders[0]
        return f"{verb} {name}"
    text = ", ".join(f"{verb.lower()} {len(names)}" for verb, names in parts if names)
    return f"{text[0].upper()}{text[1:]} folders"


def _bullets(rows: Sequence[str]) -> Iterator[str]:
    yield from (f"- {row}" for row in rows[:_MAX_LINES])
    if len(rows) > _MAX_LINES:
        yield f"- and {len(rows) - _MAX_LINES} more"


def _line(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()


def stream(plan: Plan, text: str, identity: Identity, parent: str, path: str) -> Iterator[bytes]:
    """Yield the input that makes `git fast-import` write one commit and print the commit's id.

    :param plan: the changes
    :param text: the message
    :param identity: the committer
    :param parent: the parent's id, empty for none
    :param path: the folder that the plan's paths are relative to
    """
    body = text.encode()
    size = len(body)
    yield f"reset {WORK_REF}\n\ncommit {WORK_REF}\nmark :1\n".encode()
    yield f"committer {identity} {int(time.time())} +0000\ndata {size}\n".encode() + body + b"\n"
    if parent:
        yield f"from {parent}\n".encode()

    # Deletions come first, because a file may take the name of a deleted folder.
    for name in plan.delete:
        yield f"D {check_path(join_path(path, name))}\n".encode()
    for name, content in sorted(plan.write.items()):
        header = f"M 100644 inline {check_path(join_path(path, name))}\ndata {len(content)}\n"
        yield header.encode() + content + b"\n"
    yield b"get-mark :1\ndone\n"
