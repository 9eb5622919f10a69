"""What Git does for its users, and an author of commits could use: attributes, submodules, LFS, hooks, links."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands.main import cli
from packager.controller.definition_source import DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig
from packager.git import history
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.errors import UnusableContent
from packager.git.remote import Remote
from packager.git.repository import Repository
from tests.support.packager.repositories import Origin, git

pytestmark = pytest.mark.integration

DEFINITION = (
    "apiVersion: caphv.io/v1beta1\nkind: ClusterDefinition\nmetadata: {name: good, namespace: team-a}\n"
    "spec: {}  # $Id$ $Format:%H$\r\n"
)
ATTRIBUTES = "* filter=evil diff=evil merge=evil ident export-subst text eol=lf working-tree-encoding=UTF-16\n"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where LFS and submodules would connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def connections(listener: socket.socket) -> int:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return 0
    return 1 + connections(listener)


def hostile_files(trap: Path, port: int) -> dict[str, str]:
    """What Git reads in a work tree, each with a command that makes the trap, or an address that is not to be used."""
    address = f"http://127.0.0.1:{port}/repository.git"
    return {
        ".gitattributes": ATTRIBUTES,
        "clusters/.gitattributes": ATTRIBUTES,
        ".gitmodules": f'[submodule "a"]\n\tpath = a\n\turl = ext::sh -c "touch {trap}"\n\tupdate = !touch {trap}\n'
        f'[submodule "b"]\n\tpath = b\n\turl = {address}\n[submodule "c"]\n\tpath = c\n\turl = -utouch${{IFS}}{trap}\n',
        ".lfsconfig": f"[lfs]\n\turl = {address}\n",
        ".mailmap": "Another Name <another@example.com> <other@example.com>\n",
        "hooks/post-checkout": f"#!/bin/sh\ntouch {trap}\n",
        # A bare repository within the files.
        "inner/HEAD": "ref: refs/heads/main\n",
        "inner/config": f"[core]\n\tbare = true\n\tfsmonitor = touch {trap}\n\thooksPath = hooks\n",
        "inner/objects/.keep": "",
        "inner/refs/.keep": "",
        "clusters/good.yaml": DEFINITION,
        "clusters/large.yaml": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }


def test_attributes_submodules_lfs_and_links_have_no_effect(
    origin: Origin, tmp_path: Path, listener: socket.socket
) -> None:
    trap = tmp_path / "trap"
    head = origin.push(hostile_files(trap, listener.getsockname()[1]))
    secret = tmp_path / "secret.yaml"
    secret.write_text("kind: Secret\n")
    links = {"clusters/out.yaml": str(secret), "clusters/config.yaml": "../.git/config", "clusters/up.yaml": "../.."}
    lines = ["commit refs/heads/main\ncommitter other <other@example.com> 1 +0000\ndata 0\n", f"from {head}\n"]
    lines += [f"M 120000 inline {path}\ndata {len(target)}\n{target}\n" for path, target in links.items()]
    lines += [f"M 160000 {head} {path}\n" for path in ("a", "b", "c")]
    git(origin.folder, "fast-import", "--quiet", "--done", stdin="".join([*lines, "done\n"]).encode())
    config = RepositoryConfig(Remote(origin.url), tmp_path / "cache")
    source = DefinitionSource(SourceOptions(config, lambda _: []))
    try:
        source.refresh()
    finally:
        source.close()
    assert source.last
    assert [entry.key.name for entry in source.last.source.clusters] == ["good"]
    problems = "\n".join(map(str, source.last.source.problems))
    for path in links:
        assert f"{path}:1: is a symbolic link, which is not followed" in problems
    assert "clusters/large.yaml:1: is a pointer of Git LFS" in problems
    with Repository(Remote(origin.url), tmp_path / "other-cache") as repository:
        # Byte for byte, and so are files that are written next to them.
        assert repository.sync().read("clusters/good.yaml") == DEFINITION.encode()
        written = repository.commit(lambda _: Plan(write={"clusters/new.yaml": DEFINITION.encode()}), Reason("test"))
        assert repository.last_change("clusters/good.yaml")
    blob = git(origin.folder, "cat-file", "blob", f"{written.commit}:clusters/new.yaml")
    assert blob == DEFINITION.strip()
    assert not trap.exists()
    assert connections(listener) == 0


@pytest.mark.parametrize("name", [".git\\config", ".GIT\\hooks", "git~1\\config", ".git::$INDEX_ALLOCATION", ".git . "])
def test_names_that_mean_git_on_other_systems_are_refused(origin: Origin, tmp_path: Path, name: str) -> None:
    blob = git(origin.folder, "hash-object", "-w", "--stdin", stdin=DEFINITION.encode())
    tree = git(origin.folder, "mktree", "-z", stdin=f"100644 blob {blob}\t{name}\0".encode())
    commit = git(origin.folder, "commit-tree", tree, "-m", "mine")
    git(origin.folder, "update-ref", "refs/heads/main", commit)

    refused = pytest.raises(UnusableContent, match="that Git does not check out")
    with Repository(Remote(origin.url), tmp_path / "cache") as repository, refused:
        dict(repository.sync().tree)
    # Git itself refuses it, too.
    with pytest.raises(AssertionError, match="invalid path"):
        git(origin.folder, "read-tree", tree)


def test_names_that_differ_by_case_are_files_of_their_own(origin: Origin, tmp_path: Path) -> None:
    paths = {"clusters/good.yaml": "good", "clusters/GOOD.yaml": "other", "Clusters/good.yaml": "third"}
    origin.push({path: DEFINITION.replace("good", name) for path, name in paths.items()})
    config = RepositoryConfig(Remote(origin.url), tmp_path / "cache")
    source = DefinitionSource(SourceOptions(config, lambda _: []))
    try:
        source.refresh()
    finally:
        source.close()

    assert source.last
    found = {entry.head.file: entry.key.name for entry in source.last.source.clusters}
    assert found == paths


def test_configuration_of_a_checkout_runs_nothing(tmp_path: Path) -> None:
    """Another user of the machine, or the author of an archive, has written `.git/config` of a folder or above it."""
    trap, top = tmp_path / "trap", tmp_path / "checkout"
    definition = top / "clusters" / "demo.yaml"
    definition.parent.mkdir(parents=True)
    definition.write_text("mtu: 1400\n")
    (top / ".gitattributes").write_text(ATTRIBUTES.replace(" working-tree-encoding=UTF-16", ""))
    git(top, "init", "--quiet", "--initial-branch=main")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message=first")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trap}\nexec cat\n")
    program.chmod(0o755)
    for name in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "gpg.program"):
        git(top, "config", name, str(program))
    for name in ("core.pager", "core.fsmonitor", "core.sshCommand", "diff.external", "core.alternateRefsCommand"):
        git(top, "config", name, str(program))
    git(top, "config", "log.showSignature", "true")
    signed = git(top, "cat-file", "commit", "HEAD").replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n -----END PGP SIGNATURE-----\n\n", 1
    )
    commit = git(top, "hash-object", "-t", "commit", "-w", "--stdin", stdin=signed.encode())
    git(top, "update-ref", "refs/heads/main", commit)
    definition.write_text("mtu: 1450\n")
    trap.unlink(missing_ok=True)
    assert str(history.of_line(definition, 1)) == "not committed yet"
    definition.write_text("mtu: 1400\n")
    changes = [history.of_line(definition, 1), history.of_path(definition), history.of_path(definition.parent)]
    assert [change and change.commit for change in changes] == [commit] * 3
    assert not trap.exists()


@pytest.mark.parametrize("command", [["packager", "sync"], ["validate"]])
def test_links_out_of_a_folder_are_not_followed(tmp_path: Path, command: list[str]) -> None:
    """A pipeline reads the files of a merge request, on a machine with files that its author may not read."""
    outside, folder = tmp_path / "token.yaml", tmp_path / "checkout"
    outside.write_text("password: [hunter2\n")
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("extraheader: [hunter2\n")
    (folder / "good.yaml").write_text(DEFINITION)
    options = ["--folder", str(tmp_path / "out")] if "sync" in command else []
    for target in (outside, Path("/dev/zero"), Path("/proc/self/environ"), Path(".git/config")):
        (folder / "link.yaml").unlink(missing_ok=True)
        (folder / "link.yaml").symlink_to(target)
        done = CliRunner().invoke(cli, [*command, *options, str(folder)])
        assert done.exit_code != 0
        assert "link.yaml: leads out of" in done.output
        assert "hunter2" not in done.output
