"""The clone on disk. It is only a cache, because everything in it can be fetched again.

The clone is bare and shallow. One process at a time owns it by a lock on its folder, which ends
with the process and its children. The next owner cleans up after a killed process, and recreates a
corrupt clone.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import git
from git.exc import GitError as GitPythonError

from packager.git.credentials import PRIVATE, Credentials, hand_over, write_private_file
from packager.git.errors import (
    CloneLocked,
    CorruptClone,
    GitError,
    Redactor,
    UnusableContent,
    UnverifiedCommit,
)
from packager.git.process import environment, run
from packager.git.remote import Remote
from packager.git.signers import SIGNATURE_HEADER, Signers, refusal
from packager.git.snapshot import Objects

_CLONE = "clone.git"
_MIB = 1024 * 1024


class Clone:
    """A bare repository below `folder`, and calls of Git in it.

    Between `open` and `close` it holds the lock.
    """

    def __init__(self, remote: Remote, folder: Path, credentials: Credentials) -> None:
        self.remote = remote
        self.credentials = credentials
        # Git runs in other folders, where a relative path would point elsewhere.
        self._folder = folder.absolute()
        self._path = self._folder / _CLONE
        self._variables = environment(self._folder, self._path, remote.scheme)
        self._redact = Redactor(credentials.secrets)
        self._lock: int | None = None
        self._repository: git.Repo | None = None
        self._objects: Objects | None = None

    def open(self) -> None:
        """Take the lock and remove what killed processes left. Raises `CloneLocked`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(self._folder / "lock", self.remote.timeout)
        for leftover in self._folder.glob(f"{PRIVATE}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        _remove_leftovers(self._path)

    def close(self) -> None:
        """Release the lock and end the process that reads objects."""
        self._close_objects()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Delete the clone. The next access recreates it."""
        self._close_objects()
        shutil.rmtree(self._path, ignore_errors=True)

    @property
    def objects(self) -> Objects:
        """The objects of the clone, which is created if it does not exist.

        Raises `CorruptClone`.
        """
        if self._objects is not None:
            return self._objects

        if not self._path.is_dir():
            self._create()
        try:
            self._repository = git.Repo(self._path, expand_vars=False)
        except (GitPythonError, OSError, ValueError, configparser.Error) as error:
            raise CorruptClone(f"the clone cannot be opened: {type(error).__name__}") from None

        # GitPython passes on this process's environment, whose GIT_ variables may point to
        # another repository.
        inherited = dict.fromkeys((name for name in os.environ if name.startswith("GIT_")), "")
        folders = {
            "GIT_COMMON_DIR": str(self._path),
            "GIT_OBJECT_DIRECTORY": str(self._path / "objects"),
        }
        self._repository.git.update_environment(**{**inherited, **folders, **self._variables})
        # One process of Git answers all reads until the clone is closed.
        self._objects = Objects(self._repository)
        return self._objects

    def _create(self) -> None:
        """Create the repository under another name first, so that no clone is ever incomplete."""
        fresh = self._folder / f"{_CLONE}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        arguments = ["init", "--bare", "--quiet", "--template="]
        self.run_locally("creating the clone", arguments, variables={"GIT_DIR": str(fresh)})
        fresh.rename(self._path)

    @property
    def is_shallow(self) -> bool:
        """Whether its history was cut once. Later fetches then bring only newer commits."""
        return (self._path / "shallow").exists()

    def is_cut_at(self, commit: str) -> bool:
        """Whether the history was cut at a commit, so that older commits are not known."""
        shallow = self._path / "shallow"
        return shallow.exists() and commit in shallow.read_text(encoding="ascii").split()

    def ref(self, name: str) -> str:
        """Return the commit that a ref of the clone points to, empty if the ref does not exist."""
        out = self.run_locally(
            "reading the clone", ["for-each-ref", "--format=%(objectname)", name]
        )
        return out.decode().strip()

    def run_locally(
        self,
        action: str,
        arguments: Sequence[str],
        *,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run Git without the remote.

        Raises `DiskFull`, or `CorruptClone` for any other failure.
        """
        return self._run(action, arguments, stdin, (), variables or {}, local=True)

    def run_with_remote(
        self, action: str, arguments: Sequence[str], *, with_messages: bool = False
    ) -> bytes:
        """Run Git with credentials for the remote, and limit the size of the files that it writes.

        `with_messages` adds the messages of Git and the remote on standard error. Raises
        `GitError`.
        """
        try:
            with hand_over(self.remote, self.credentials, self._folder) as config:
                return self._run(
                    action,
                    arguments,
                    b"",
                    config.settings,
                    config.variables,
                    local=False,
                    with_messages=with_messages,
                )
        except GitError:
            # A failed attempt leaves a partial pack. If the pack has the largest size that Git may
            # write, the limit is the cause, and Git's own error does not say so.
            packs = self._path.glob("objects/**/tmp_*")
            received = max((path.stat().st_size for path in packs), default=0)
            _remove_leftovers(self._path)
            if received < self.remote.max_size * _MIB:
                raise
            raise UnusableContent(
                f"{action} ({self.remote.shown}) failed: it brings more than --git-max-size "
                f"{self.remote.max_size} (MiB); remove large files from the branch, or raise "
                "--git-max-size"
            ) from None

    def commit_same_tree(
        self, commit: str, text: str, variables: Mapping[str, str], parent: str = ""
    ) -> str:
        """Write a commit with the files of another commit, and return its id. Raises `GitError`.

        The new commit is signed if the credentials have a signing key.

        :param commit: the commit whose files the new commit has
        :param text: message of the new commit
        :param variables: author and committer, as environment variables
        :param parent: parent of the new commit, empty for none
        """
        parents = ["-p", parent] if parent else []
        arguments = [*parents, f"{commit}^{{tree}}"]
        stdin = text.encode()
        if not self.credentials.signing_key:
            command = ["commit-tree", *arguments]
            out = self.run_locally("writing the commit", command, stdin=stdin, variables=variables)
            return out.decode().strip()

        with self._private_folder() as private:
            key = write_private_file(private, "key", self.credentials.signing_key)
            settings = ["gpg.format=ssh", f"user.signingKey={key}"]
            command = ["commit-tree", "-S", *arguments]
            out = self._run("signing the commit", command, stdin, settings, variables, local=False)
        return out.decode().strip()

    def verify(self, commit: str, signers: Signers) -> str:
        """Return who signed a commit. Raises `UnverifiedCommit` unless it was a listed signer."""
        # gpg creates sockets in its home, and the path of a socket must be short. The cache folder
        # may be too deep.
        with tempfile.TemporaryDirectory(prefix="caphv-signers-") as private:
            config = signers.write_config(Path(private))

            def git(*arguments: str) -> str:
                out = self._run(
                    "verifying the commit",
                    arguments,
                    b"",
                    config.settings,
                    config.variables,
                    local=False,
                )
                return out.decode(errors="replace")

            try:
                git("verify-commit", commit)
            except GitError:
                # Git's log has the reason: a letter for the verdict, then the key.
                verdict, key = git("log", "-1", "--format=%G?%n%GK", commit, "--").splitlines()[:2]
                if verdict == "N":
                    header = git("cat-file", "commit", commit).partition("\n\n")[0]
                    if SIGNATURE_HEADER in header:
                        # Git also reports "not signed" when it has no program for the format.
                        verdict = "E"
                raise UnverifiedCommit(refusal(verdict, key)) from None
            return git("log", "-1", "--format=%GS", commit, "--").strip()

    @contextlib.contextmanager
    def _private_folder(self) -> Iterator[Path]:
        private = self._folder / f"{PRIVATE}signing"
        private.mkdir(mode=0o700)
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)

    def _run(
        self,
        action: str,
        arguments: Sequence[str],
        stdin: bytes,
        settings: Sequence[str],
        variables: Mapping[str, str],
        *,
        local: bool,
        with_messages: bool = False,
    ) -> bytes:
        """Run Git in the clone, with the limits of the remote.

        :param action: description of the call for messages
        :param arguments: arguments of `git`
        :param stdin: standard input of `git`
        :param settings: `key=value` of Git's configuration
        :param variables: environment variables to add to the clone's own
        :param local: whether the call does without the remote
        :param with_messages: append Git's standard error to the output
        """
        if self._lock is None:
            raise RuntimeError("the clone is not open")

        return run(
            f"{action} ({self.remote.shown})",
            arguments,
            variables={**self._variables, **variables},
            settings=settings,
            stdin=stdin,
            timeout=self.remote.timeout,
            redact=self._redact,
            local=local,
            most_bytes=0 if local else self.remote.max_size * _MIB,
            with_messages=with_messages,
            # Children of a killed process may still write for a while, so they inherit the lock.
            inherit=(self._lock,),
        )

    def _close_objects(self) -> None:
        if self._repository is not None:
            self._repository.close()
        self._repository = self._objects = None


def _take_lock(path: Path, timeout: float) -> int:
    """Return the descriptor of a locked file, which holds the lock until it is closed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout

    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A previous owner may still be ending.
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise CloneLocked(
                    f"{path.parent} is in use by another process; give each its own cache folder"
                ) from None
            time.sleep(0.05)
        else:
            return descriptor


def _remove_leftovers(clone: Path) -> None:
    """Remove the files that a killed Git process left behind."""
    for pattern in ("**/*.lock", "objects/**/tmp_*", "fast_import_crash_*"):
        for path in list(clone.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
