"""Paths that the packager may write. No such path leaves its folder or has a meaning to Git."""

from __future__ import annotations

import re

_MAX_LENGTH = 1024
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
# Names that some file systems take for `.git`, or that Git reads from a work tree.
_RESERVED = re.compile(r"\.git|git~\d+|\.gitmodules|\.gitattributes|\.gitignore|\.lfsconfig", re.I)


def fault_of(path: str) -> str:
    """Return the fault of a relative POSIX path, empty if it can be written."""
    if len(path) > _MAX_LENGTH:
        return f"must have at most {_MAX_LENGTH} characters"
    for segment in path.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment.strip(".") == "":
            return (
                "must be a relative path of letters, digits, '.', '_' and '-', with '/' between "
                "its parts"
            )
        if _RESERVED.fullmatch(segment.rstrip(".")):
            return f"must not hold {segment}, which Git reads"
    return ""


# Characters that some file systems leave out of names.
_IGNORED = dict.fromkeys(
    (0x200B, *range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF)
)


def may_be_checked_out(name: str) -> bool:
    """Whether Git would check out an entry of this name. Git refuses names that may mean `.git`."""
    if not name or name in {".", ".."} or {"/", "\0"} & set(name):
        return False

    # NTFS separates names at a backslash, and begins the name of a stream at a colon.
    shown = name.translate(_IGNORED)
    first_part = re.split(r"[:\\]", shown, maxsplit=1)[0]
    return first_part.rstrip(". ").casefold() not in {".git", "git~1"}


def check_path(path: str) -> str:
    """Return the path. Raises `ValueError` if it cannot be written."""
    if fault := fault_of(path):
        raise ValueError(f"path {path!r}: {fault}")
    return path


def join_path(*parts: str) -> str:
    """Join parts with '/', leaving out empty ones."""
    return "/".join(part for part in parts if part)
