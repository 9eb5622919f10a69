"""Which commit last changed a bundle, or the line of a definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.git import history
from packager.git.remote import Remote
from packager.git.repository import Repository
from tests.support.packager.repositories import Origin, git

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("others", [1, 150])
def test_a_shallow_clone_fetches_the_history_that_it_needs(origin: Origin, cache: Path, others: int) -> None:
    origin.push({"fleet/clusters/a/fleet.yaml": "first"})
    changed = origin.push({"fleet/clusters/a/fleet.yaml": "second"})
    lines = []
    for number in range(others):
        lines.append("commit refs/heads/main\ncommitter other <other@example.com> 1 +0000\ndata 0\n")
        lines.append("from refs/heads/main^0\n" if number == 0 else "")
        lines.append(f"M 100644 inline fleet/clusters/b/fleet.yaml\ndata 3\n{number:03}\n")
    git(origin.folder, "fast-import", "--quiet", "--done", stdin="".join([*lines, "done\n"]).encode())
    with Repository(Remote(origin.url, path="fleet"), cache) as repository:
        assert repository.sync().commit == origin.head()
        found = repository.last_change("clusters/a")
        assert found == history.Change(changed, "1970-01-01", "mine")
        assert repository.last_change("clusters/b/fleet.yaml") != found
        assert repository.last_change("clusters/c") is None
        # The clone with more history works on.
        head = origin.push({"fleet/clusters/c/fleet.yaml": "new"})
        assert repository.last_change("clusters/c") == history.Change(head, "1970-01-01", "mine")


def test_an_empty_repository_has_no_change(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        assert repository.last_change("clusters/a") is None


def test_lines_and_folders_of_a_checkout(tmp_path: Path) -> None:
    inner = tmp_path / "checkout" / "clusters"
    inner.mkdir(parents=True)
    definition = inner / "demo.yaml"
    definition.write_text("mtu: 1400\nname: calico\n")
    assert history.of_path(inner) is None, "not a checkout"
    top = inner.parent
    git(top, "init", "--quiet", "--initial-branch=main")
    assert (history.of_path(inner), history.of_line(definition, 1)) == (None, None), "no commit"
    first = commit(top, "first")
    definition.write_text("mtu: 1400\nname: cilium\n")
    second = commit(top, "second: a line")
    found = [history.of_line(definition, line) for line in (1, 2)]
    assert [(one.commit, one.subject) for one in found if one] == [(first, "first"), (second, "second: a line")]
    assert [one and one.commit for one in (history.of_path(inner), history.of_path(definition))] == [second, second]
    definition.write_text("mtu: 1450\nname: cilium\n")
    assert str(history.of_line(definition, 1)) == "not committed yet"
    assert history.of_line(definition, 9) is None


def commit(folder: Path, subject: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", f"--message={subject}")
    return git(folder, "rev-parse", "HEAD")


def test_a_clone_in_a_relative_folder_is_the_same(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin.push({"clusters/team/a/caphv.yaml": "a: 1\n"})
    monkeypatch.chdir(tmp_path)
    with Repository(Remote(origin.url), Path("cache")) as repository:
        assert repository.sync().read("clusters/team/a/caphv.yaml") == b"a: 1\n"
