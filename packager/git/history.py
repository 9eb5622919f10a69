"""Which commit last changed a file or a line, for messages: nothing is decided by it.

A checkout may come from another user, and so may `.git/config` in it, or in a folder above it that others may write.
Git would run the programs that this file names for signatures, filters and differences. So its objects are read with a
repository of our own making, and of its own one only the commit that is checked out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    with _checkout(path) as checkout:
        return parsed(checkout.git([*LOG, "--", str(path.resolve())])) if checkout else None


def of_line(file: Path, line: int) -> Change | None:
    """Return the commit that last changed a line of a file in a checkout, as `of_path` does."""
    with _checkout(file) as checkout:
        if checkout is None:
            return None
        out = checkout.git(["blame", "--porcelain", "-L", f"{line},{line}", "--", str(file.resolve())])
        commit = out.partition(" ")[0]
        if commit == _UNCOMMITTED:
            return Change("")
        return parsed(checkout.git([*LOG, commit])) if commit else None


@dataclass(frozen=True)
class _Checkout:
    """Files at `top`, and a repository with our configuration and their objects, by its variables."""

    top: Path
    variables: Mapping[str, str]

    def git(self, arguments: Sequence[str]) -> str:
        return _git(self.top, self.variables, arguments)


@contextmanager
def _checkout(path: Path) -> Iterator[_Checkout | None]:
    """Yield the checkout that a path is in; None outside of one, and without commits."""
    top = next((parent for parent in path.resolve().parents if (parent / ".git").exists()), None)
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:
        yield _opened(top, Path(folder)) if top else None


def _opened(top: Path, folder: Path) -> _Checkout | None:
    theirs = environment(folder, top / ".git", "file")
    # This reads their configuration, and runs nothing that it names.
    answer = _git(top, theirs, ["rev-parse", "HEAD", "--git-path", "objects", "--git-path", "shallow"])
    head, objects, shallow = answer.splitlines() if answer.count("\n") == 3 else ("", "", "")
    if not head:
        return None
    clone = folder / "clone.git"
    ours = environment(folder, clone, "file") | {"GIT_OBJECT_DIRECTORY": str(top / objects)}
    _git(top, ours, ["init", "--bare", "--quiet", "--template="])
    (clone / "HEAD").write_text(f"{head}\n")
    if (top / shallow).is_file():
        (clone / "shallow").write_bytes((top / shallow).read_bytes())
    return _Checkout(top, ours | {"GIT_WORK_TREE": str(top)})


def _git(top: Path, variables: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return what Git prints; empty when it fails."""
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
