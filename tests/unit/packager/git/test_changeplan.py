"""What a commit changes: rules for everything that could be there and wanted, and the dangerous cases one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.git.changeplan import Plan, plan_changes
from packager.git.folder import FILE_LIST, ExistingFolder, Folder, blob_id, file_list, parse_file_list
from packager.git.pruning import Pruning

pytestmark = pytest.mark.unit
SYNCED = Pruning(complete=True, budget=100)
NAMES = st.sampled_from(["ccm/fleet.yaml", "ccm/values.yaml", "cni/fleet.yaml", "csi/fleet.yaml", "hash"])
FILES = st.dictionaries(NAMES, st.sampled_from([b"1", b"2"]))
FOLDERS = st.sampled_from(["clusters/a/one", "clusters/a/two", "clusters/b/one", "manifests/a/one"])


def there(files: dict[str, bytes], foreign: dict[str, bytes] | None = None) -> ExistingFolder:
    """A folder as the packager has written it, with files of others next to."""
    others = {path: blob_id(content) for path, content in (foreign or {}).items() if path not in files}
    owned = {path: blob_id(content) for path, content in files.items()}
    return ExistingFolder(owned, others, blob_id(file_list(files)) if files else "")


def apply(state: dict[str, bytes], planned: Plan) -> dict[str, bytes]:
    return {path: content for path, content in state.items() if path not in planned.delete} | dict(planned.write)


def flat(folders: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    return {
        f"{folder}/{path}": content
        for folder, files in folders.items()
        for path, content in ({**files, FILE_LIST: file_list(files)} if files else {}).items()
    }


def definitions(folders: dict[str, dict[str, bytes]]) -> list[str]:
    return [folder for folder in folders if folder.startswith("manifests/")]


pruning = st.builds(
    Pruning,
    complete=st.booleans(),
    budget=st.integers(0, 4),
    scope=st.none() | st.frozensets(FOLDERS),
    confirmed=st.frozensets(FOLDERS),
)


@given(st.dictionaries(FOLDERS, FILES), st.dictionaries(FOLDERS, FILES), pruning)
def test_rules(before: dict[str, dict[str, bytes]], after: dict[str, dict[str, bytes]], rules: Pruning) -> None:
    current = {folder: there(before.get(folder, {})) for folder in {*before, *after}}
    wanted = {folder: Folder(files) for folder, files in after.items()}
    planned = plan_changes(current, wanted, rules, definitions(before))
    state = apply(flat(before), planned)
    # What is wanted is there.
    for folder, files in after.items():
        assert all(state[f"{folder}/{path}"] == content for path, content in files.items())
        assert parse_file_list(state[f"{folder}/{FILE_LIST}"]) >= set(files)
    # Nothing is deleted that may not.
    gone = {path.rsplit("/", 1)[0] for path in flat(before).keys() - state.keys()}
    bundles = {bundle for bundle in gone if not any(path.startswith(f"{bundle}/") for path in state)}
    removed = {folder for folder in before if before[folder] and folder not in after} - {
        "/".join(path.split("/")[:3]) for path in state
    }
    assert planned.removed or not removed
    if not rules.complete:
        assert not removed
        assert all(bundle.count("/") == 2 for bundle in bundles)
    assert sum(removal.weight for removal in planned.removed if not removal.definition) <= rules.budget
    assert all(folder in rules.confirmed for folder in removed if folder.startswith("manifests/"))
    if rules.scope is not None:
        assert removed <= set(rules.scope)
    # What is recorded is there, so nothing is forgotten.
    for path, content in state.items():
        if path.endswith(FILE_LIST):
            folder = path.removesuffix(f"/{FILE_LIST}")
            assert {f"{folder}/{name}" for name in parse_file_list(content)} <= state.keys()
    # The same again changes nothing, and what was held back is held back again.
    again = plan_changes(
        {folder: found(state, folder) for folder in {*before, *after}}, wanted, rules, definitions(before)
    )
    assert again.is_empty
    assert again.held == planned.held


def found(state: dict[str, bytes], folder: str) -> ExistingFolder:
    files = {path[len(folder) + 1 :]: content for path, content in state.items() if path.startswith(f"{folder}/")}
    listed = files.pop(FILE_LIST, None)
    own = parse_file_list(listed)
    ids = {path: blob_id(content) for path, content in files.items()}
    owned = {path: id_ for path, id_ in ids.items() if path in own}
    return ExistingFolder(
        owned, {path: id_ for path, id_ in ids.items() if path not in own}, blob_id(listed) if listed else ""
    )


@given(st.dictionaries(FOLDERS, FILES), st.dictionaries(FOLDERS, FILES), FILES, FILES)
def test_files_of_others_stay(
    before: dict[str, dict[str, bytes]],
    after: dict[str, dict[str, bytes]],
    foreign: dict[str, bytes],
    more: dict[str, bytes],
) -> None:
    others = {**foreign, **{f"extra/{path}": content for path, content in more.items()}}
    current = {folder: there(before.get(folder, {}), others) for folder in {*before, *after}}
    planned = plan_changes(current, {folder: Folder(files) for folder, files in after.items()}, SYNCED)
    for folder, now in current.items():
        for path, id_ in now.foreign.items():
            name = f"{folder}/{path}"
            assert name not in planned.delete
            assert name not in planned.write or blob_id(planned.write[name]) == id_


BEFORE = {"ccm/fleet.yaml": b"1", "cni/fleet.yaml": b"1"}
ONE = "clusters/a/one"


def test_a_bundle_that_is_deleted_takes_of_the_budget() -> None:
    wanted = {ONE: Folder({"ccm/fleet.yaml": b"2"})}
    held = plan_changes({ONE: there(BEFORE)}, wanted, Pruning(complete=True, budget=0))
    assert set(held.write) == {f"{ONE}/ccm/fleet.yaml"}
    assert held.delete == ()
    assert held.held[0].what == f"{ONE}/cni"
    assert "--max-prune 0" in held.held[0].why
    done = plan_changes({ONE: there(BEFORE)}, wanted, Pruning(complete=True, budget=1))
    assert done.delete == (f"{ONE}/cni/fleet.yaml",)
    assert [str(removal) for removal in done.removed] == [f"{ONE}/cni"]


def test_too_many_removals_remove_nothing() -> None:
    current = {f"clusters/a/{number}": there(BEFORE) for number in range(5)}
    held = plan_changes(current, {}, Pruning(complete=True, budget=9))
    assert held.is_empty
    assert len(held.held) == 5
    assert "10 removals" in held.held[0].why
    assert len(plan_changes(current, {}, Pruning(complete=True, budget=10)).removed) == 5


def test_clusters_that_were_seen_to_be_deleted_need_no_budget() -> None:
    current = {f"clusters/a/{number}": there(BEFORE) for number in range(5)}
    rules = Pruning(complete=True, budget=2, deleted={"clusters/a/0", "clusters/a/1", "clusters/a/2"})
    planned = plan_changes(current, {}, rules)
    assert {str(removal) for removal in planned.removed} == rules.deleted
    assert "4 removals" in planned.held[0].why
    assert "in Git" in planned.held[0].why
    assert not plan_changes(current, {}, replace(rules, complete=False)).removed


def test_nothing_is_deleted_before_all_is_known() -> None:
    held = plan_changes({ONE: there(BEFORE)}, {}, Pruning(complete=False, budget=100))
    assert held.is_empty
    assert "in sync" in held.held[0].why


def test_definitions_wait_for_a_confirmation() -> None:
    manifest = "manifests/a/one"
    current = {manifest: there({"cluster.yaml": b"1"})}
    held = plan_changes(current, {}, SYNCED, [manifest])
    assert held.is_empty
    assert "--confirm" in held.held[0].why
    confirmed = Pruning(complete=True, budget=1, confirmed={manifest})
    assert plan_changes(current, {}, confirmed, [manifest]).removed[0].definition


def test_a_file_inside_a_bundle_is_deleted_without_budget() -> None:
    wanted = {ONE: Folder({"ccm/fleet.yaml": b"1"})}
    current = {ONE: there({"ccm/fleet.yaml": b"1", "ccm/values.yaml": b"1"})}
    planned = plan_changes(current, wanted, Pruning(complete=True, budget=0))
    assert planned.delete == (f"{ONE}/ccm/values.yaml",)


@pytest.mark.parametrize(
    ("foreign", "named"),
    [({"ccm/fleet.yaml": "x"}, "ccm/fleet.yaml"), ({"ccm": "x"}, "ccm"), ({"ccm/fleet.yaml/deep": "x"}, "deep")],
)
def test_what_others_have_at_the_same_place_is_left(foreign: dict[str, str], named: str) -> None:
    planned = plan_changes({ONE: ExistingFolder(foreign=foreign)}, {ONE: Folder(BEFORE)}, SYNCED)
    assert planned.is_empty
    assert planned.refused[0].what == ONE
    assert named in planned.refused[0].why


def test_files_of_others_whose_names_are_not_utf8_can_be_reported() -> None:
    blocking = ExistingFolder(foreign={"ccm/fleet.yaml/caf\udce9": "x"})
    planned = plan_changes({ONE: blocking}, {ONE: Folder(BEFORE)}, SYNCED)
    assert planned.refused[0].why.startswith(r"ccm/fleet.yaml/caf\udce9 was not written")
    in_bundle = ExistingFolder(foreign={"ccm/caf\udce9.yaml": "x"})
    planned = plan_changes({ONE: in_bundle}, {ONE: Folder(BEFORE)}, SYNCED)
    assert planned.foreign == (rf"{ONE}/ccm/caf\udce9.yaml",)


def test_equal_files_of_others_are_taken_over() -> None:
    current = ExistingFolder(foreign={path: blob_id(content) for path, content in BEFORE.items()})
    assert set(plan_changes({ONE: current}, {ONE: Folder(BEFORE)}, SYNCED).write) == {f"{ONE}/{FILE_LIST}"}


def test_a_link_in_the_way_is_left() -> None:
    planned = plan_changes({ONE: ExistingFolder(obstacle="clusters/a is not a folder")}, {ONE: Folder(BEFORE)}, SYNCED)
    assert planned.is_empty
    assert "clusters/a is not a folder" in planned.refused[0].why


def test_what_cannot_be_rendered_is_kept() -> None:
    kept = plan_changes({ONE: there(BEFORE)}, {}, Pruning(complete=True, budget=100, keep={ONE}))
    assert kept.is_empty
    assert (kept.removed, kept.held) == ((), ())
