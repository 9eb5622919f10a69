"""Which commit last changed a file or a line, for messages: nothing is decided by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.git.errors import GitError, Redactor
from packager.git.process import environment, run

LOG = ("log", "-1", "--format=%H %cs %s")
"""Arguments of Git that print what `parsed` reads."""
_SECONDS = 30.0
_UNCOMMITTED = "0" * 40


@dataclass(frozen=True)
class Change:
    """A commit with its date and subject; without `commit` the change is not committed yet."""

    commit: str
    date: str = ""
    subject: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        return f"commit {self.commit[:12]} of {self.date}: {self.subject}" if self.commit else "not committed yet"


def parsed(out: str) -> Change | None:
    """Return the commit that `git log` printed, None for none."""
    commit, _, rest = out.strip().partition(" ")
    date, _, subject = rest.partition(" ")
    return Change(commit, date, subject) if commit else None


def of_path(path: Path) -> Change | None:
    """Return the commit that last changed a file or folder of a checkout; None outside of one, and without commits."""
    return parsed(_git(path, [*LOG, "--", str(path.resolve())]))


def of_line(file: Path, line: int) -> Change | None:
    """Return the commit that last changed a line of a file in a checkout, as `of_path` does."""
    out = _git(file, ["blame", "--porcelain", "-L", f"{line},{line}", "--", str(file.resolve())])
    commit = out.partition(" ")[0]
    if commit == _UNCOMMITTED:
        return Change("")
    return parsed(_git(file, [*LOG, commit])) if commit else None


def _git(path: Path, arguments: Sequence[str]) -> str:
    """Return what Git prints in the checkout of a path; empty outside of one, and when it fails."""
    top = next((parent for parent in path.resolve().parents if (parent / ".git").exists()), None)
    if top is None:
        return ""
    variables = environment(top, top / ".git", "file")
    try:
        out = run(
            "reading the history",
            ["-C", str(top), "--no-pager", *arguments],
            variables=variables,
            timeout=_SECONDS,
            redact=Redactor(()),
            local=False,
        )
    except GitError:
        return ""
    return out.decode(errors="replace")
