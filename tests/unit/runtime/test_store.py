"""The store against the most naive thing that does the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj, key_of
from caphv.runtime.store import Store
from tests.support import memory

pytestmark = pytest.mark.unit

NAMES = st.sampled_from(["a", "b", "c", "d"])
LABELS = st.sets(st.sampled_from(["red", "green", "blue"]))


def labels(obj: Obj) -> list[str]:
    return list(obj["metadata"]["labels"])


def thing(name: str, values: set[str]) -> Obj:
    return {"metadata": {"namespace": "ns", "name": name, "labels": dict.fromkeys(values, "")}}


@given(st.lists(st.tuples(NAMES, st.none() | LABELS)))
def test_indexes_answer_what_a_search_through_all_objects_would(steps: list[tuple[str, set[str] | None]]) -> None:
    store, naive = Store({"label": labels, "first": lambda obj: sorted(labels(obj))[:1]}), dict[Key, Obj]()
    for name, values in steps:
        key = Key("ns", name)
        if values is None:
            assert store.remove(key) is naive.pop(key, None)
        else:
            obj = thing(name, values)
            assert store.put(key, obj) is naive.get(key)
            naive[key] = obj
        assert store.keys() == naive.keys()
        assert len(store) == len(naive)
        for value in ("red", "green", "blue"):
            found = [obj for key, obj in sorted(naive.items()) if value in labels(obj)]
            assert store.by_index("label", value) == found
            assert store.count("label", value) == len(found)
            assert store.by_index("first", value) == [obj for obj in found if min(labels(obj)) == value]


def test_index_keeps_no_values_that_no_one_has() -> None:
    store = Store({"label": labels})
    for number in range(100):
        store.put(Key("ns", "a"), thing("a", {f"value-{number}"}))
    store.remove(Key("ns", "a"))
    assert memory.size(store) == memory.size(Store({"label": labels}))


def test_object_that_an_index_cannot_take_changes_nothing() -> None:
    store = Store({"label": labels, "picky": lambda obj: [obj["metadata"]["labels"]["red"]]})
    good, bad = thing("a", {"red"}), thing("a", {"green"})
    store.put(key_of(good), good)
    with pytest.raises(KeyError):
        store.put(key_of(bad), bad)
    assert store.get("ns", "a") is good
    assert store.by_index("label", "red") == [good]
    assert store.by_index("label", "green") == []


def test_iteration_allows_changes_meanwhile() -> None:
    store = Store()
    for name in "abc":
        store.put(Key("ns", name), thing(name, set()))
    for obj in store:
        store.remove(key_of(obj))
    assert len(store) == 0
