"""Only commits of listed signers define clusters: with real git, ssh-keygen and gpg."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from packager.controller.definition_source import DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig
from packager.git.errors import GitError, InvalidRemote, UnverifiedCommit
from packager.git.remote import Remote
from tests.support.packager.definitions import definition
from tests.support.packager.environment import Case
from tests.support.packager.repositories import Origin
from tests.support.packager.signing import PgpSigner, SshSigner, change_tree, strip_signature
from tests.support.packager.sync import call

pytestmark = pytest.mark.integration
NOT_LISTED = "which the list does not have"
COMMIT = 40


@pytest.fixture
def alice(tmp_path: Path) -> SshSigner:
    return SshSigner.make(tmp_path, "alice")


@pytest.fixture
def mallory(tmp_path: Path) -> SshSigner:
    return SshSigner.make(tmp_path, "mallory")


@pytest.fixture
def pgp() -> Iterator[Callable[[str], PgpSigner]]:
    signers: list[PgpSigner] = []
    with tempfile.TemporaryDirectory(prefix="caphv-gpg-", ignore_cleanup_errors=True) as folder:

        def make(name: str) -> PgpSigner:
            signers.append(PgpSigner.make(Path(folder), name))
            return signers[-1]

        yield make
        for signer in signers:
            signer.close()


def defined(case: Case, name: str) -> str:
    obj = definition(name)
    obj["metadata"]["namespace"] = case.namespace
    return yaml.safe_dump(obj)


class Watched:
    """A source with a list of signers, as the packager in the cluster reads it."""

    def __init__(self, origin: Origin, folder: Path, *lines: str) -> None:
        self._list = folder / "allowed_signers"
        self.allow(*lines)
        config = RepositoryConfig(Remote(origin.url), folder / "source-cache")
        self.source = DefinitionSource(SourceOptions(config, lambda _: [], self._list))

    def allow(self, *lines: str) -> None:
        self._list.write_text("".join(lines))

    def accepted(self) -> str:
        """Read the newest commit; return the one in use."""
        self.source.refresh()
        return self.in_use

    def refused(self, kind: type[GitError] = UnverifiedCommit) -> str:
        """Fail to read the newest commit; return why."""
        before = self.in_use
        with pytest.raises(kind) as error:
            self.source.refresh()
        assert self.in_use == before, "the last accepted commit stays in use"
        return str(error.value)

    @property
    def in_use(self) -> str:
        return self.source.last.origin[-COMMIT:] if self.source.last else ""


def test_commits_without_a_signature_of_a_listed_signer_are_refused(
    origin: Origin, tmp_path: Path, alice: SshSigner, mallory: SshSigner
) -> None:
    watched = Watched(origin, tmp_path, alice.line)
    unsigned = origin.push({"README": "one\n"})
    reason = watched.refused()
    assert f"commit {unsigned} of branch main of {origin.url} is refused: it is not signed; " in reason
    assert "git commit --amend --no-edit -S" in reason
    assert watched.in_use == ""

    first = alice.sign(origin)
    assert watched.accepted() == first

    origin.push({"README": "two\n"})
    mallory.sign(origin)
    assert NOT_LISTED in watched.refused()

    tree = origin.tree()
    second = alice.sign(origin)
    strip_signature(origin)
    assert "it is not signed" in watched.refused()

    # A signature of another commit.
    origin.push({"README": "three\n"})
    alice.sign(origin)
    change_tree(origin, tree)
    assert "its signature does not fit its content" in watched.refused()
    assert watched.in_use == first
    watched.source.close()
    assert second != first


def test_a_changed_list_takes_effect_without_another_commit(
    origin: Origin, tmp_path: Path, alice: SshSigner, mallory: SshSigner
) -> None:
    watched = Watched(origin, tmp_path, alice.line)
    origin.push({"README": "one\n"})
    first = alice.sign(origin)
    assert watched.accepted() == first

    watched.allow(mallory.line)
    assert NOT_LISTED in watched.refused()
    watched.allow("")
    assert "must hold the key of at least one signer" in watched.refused(InvalidRemote)

    origin.push({"README": "two\n"})
    second = mallory.sign(origin)
    watched.allow(alice.line)
    assert NOT_LISTED in watched.refused()
    watched.allow(alice.line, mallory.line)
    assert watched.accepted() == second
    assert list((tmp_path / "source-cache").glob("private-*")) == []
    watched.source.close()


def test_keys_of_openpgp(origin: Origin, tmp_path: Path, alice: SshSigner, pgp: Callable[[str], PgpSigner]) -> None:
    bob, eve = pgp("bob"), pgp("eve")
    watched = Watched(origin, tmp_path, alice.line)
    origin.push({"README": "one\n"})
    first = bob.sign(origin)
    assert "it is signed with a key of another format" in watched.refused()
    watched.allow(bob.public_key)
    assert watched.accepted() == first

    origin.push({"README": "two\n"})
    eve.sign(origin)
    assert NOT_LISTED in watched.refused()
    alice.sign(origin)
    assert NOT_LISTED in watched.refused()
    watched.allow(bob.public_key, eve.public_key)
    second = eve.sign(origin)
    assert watched.accepted() == second
    watched.source.close()


@pytest.mark.usefixtures("own_environment")
def test_sync_writes_nothing_of_a_refused_commit(
    origin: Origin, tmp_path: Path, alice: SshSigner, mallory: SshSigner, case: Case
) -> None:
    source = Origin.make(tmp_path / "source.git")
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(alice.line)
    arguments = ("sync", "--source-repo", source.url, "--repo", origin.url, "--source-signers", allowed)
    source.push({"one.yaml": defined(case, "one")})
    mallory.sign(source)
    result = call(*arguments)
    assert result.exit_code == 2
    assert NOT_LISTED in result.output
    assert origin.branches() == []
    alice.sign(source)
    assert call(*arguments).exit_code == 0
    assert origin.branches() == ["main"]
    # A list that verifies nothing is a mistake.
    result = call("sync", tmp_path, "--repo", origin.url, "--source-signers", allowed)
    assert result.exit_code == 2
    assert "--source-signers verifies commits" in result.output


async def test_the_packager_keeps_the_accepted_definitions_and_says_so(
    case: Case, tmp_path: Path, alice: SshSigner, mallory: SshSigner
) -> None:
    source = Origin.make(tmp_path / "origin" / "source.git")
    allowed = tmp_path / "signers"
    allowed.mkdir()
    (allowed / "alice").write_text(alice.line)
    await case.namespace_for_leases()
    source.push({"one.yaml": defined(case, "one"), "two.yaml": defined(case, "two")})
    alice.sign(source)
    packager = await case.running(
        f"--source-repo={source.url}", f"--source-signers={allowed}", "--interval=1", "--leader-elect"
    )
    await case.until_count(1)
    await case.cluster("one")
    await case.until_condition("one", "True")
    commits = case.count()
    await packager.until_value(0, "caphv_packager_source_refused")

    source.remove("two.yaml")
    mallory.sign(source)
    refused = source.head()
    await packager.until_value(1, "caphv_packager_source_refused")
    await packager.until_value(lambda value: value > 0, "caphv_packager_errors_total", kind="UnverifiedCommit")
    event = await case.until_lease_event("SourceCommitRefused", refused)
    assert event["involvedObject"]["kind"] == "Lease"
    await case.until_condition("one", "True", part=f"its definition remains as it was: commit {refused}")
    assert case.count() == commits

    alice.sign(source)
    await packager.until_value(0, "caphv_packager_source_refused")
    await case.until_event("AddonBundlesKept", "two")
