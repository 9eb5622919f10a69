"""Paths that the packager may write: a hostile name must not leave its folder, nor have a meaning for Git."""

from __future__ import annotations

import re

LONGEST = 1024
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
# Names that some file systems take for `.git`, or that Git reads from a work tree.
_RESERVED = re.compile(r"\.git|git~\d+|\.gitmodules|\.gitattributes|\.gitignore|\.lfsconfig", re.I)


def fault_of(path: str) -> str:
    """Return the error of a relative POSIX path, empty when it can be written."""
    if len(path) > LONGEST:
        return f"must have at most {LONGEST} characters"
    for segment in path.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment.strip(".") == "":
            return "must be a relative path of letters, digits, '.', '_' and '-', with '/' between its parts"
        if _RESERVED.fullmatch(segment.rstrip(".")):
            return f"must not hold {segment}, which Git reads"
    return ""


# Characters that some file systems leave out of names.
_IGNORED = dict.fromkeys((0x200B, *range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


def may_be_checked_out(name: str) -> bool:
    """Whether Git would create an entry of this name in a work tree; it refuses whatever may mean `.git`."""
    # Where NTFS separates names, or begins the name of a stream.
    plain = re.split(r"[:\\]", name.translate(_IGNORED), maxsplit=1)[0].rstrip(". ").casefold()
    return bool(name) and name not in {".", ".."} and not {"/", "\0"} & set(name) and plain not in {".git", "git~1"}


def checked(path: str) -> str:
    """Return the path; raises ValueError when it cannot be written."""
    if fault := fault_of(path):
        raise ValueError(f"path {path!r}: {fault}")
    return path


def joined(*parts: str) -> str:
    """Join parts with '/', leaving out empty ones."""
    return "/".join(part for part in parts if part)
