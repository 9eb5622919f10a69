"""Store the objects of a cache by key and by index; client-go calls it an indexer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from caphv.api.object import Key, Obj

IndexFunction = Callable[[Obj], Iterable[str]]


class Store:
    """Objects by key, with indexes."""

    def __init__(self, indexes: Mapping[str, IndexFunction] | None = None) -> None:
        self._objects: dict[Key, Obj] = {}
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in self._index_functions}

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Obj]:
        return iter(list(self._objects.values()))

    def keys(self) -> set[Key]:
        """Return the keys of all objects."""
        return set(self._objects)

    def get(self, namespace: str, name: str) -> Obj | None:
        """Return the object, or None. Do not modify it, because all readers share it."""
        return self._objects.get(Key(namespace, name))

    def by_index(self, index: str, value: str) -> list[Obj]:
        """Return the objects with this value of the index function, ordered by key."""
        return [self._objects[key] for key in sorted(self._indexes[index].get(value, ()))]

    def count(self, index: str, value: str) -> int:
        """Return the number of objects with this value of the index function."""
        return len(self._indexes[index].get(value, ()))

    def put(self, key: Key, obj: Obj) -> Obj | None:
        """Store an object, and return the previous one."""
        old = self._objects.get(key)
        self._reindex(key, old, obj)
        self._objects[key] = obj
        return old

    def remove(self, key: Key) -> Obj | None:
        """Remove and return an object."""
        old = self._objects.get(key)
        if old is not None:
            self._reindex(key, old, None)
            del self._objects[key]
        return old

    def _reindex(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        # Call all functions first, so that one that raises does not leave indexes half changed.
        values = {
            name: (
                set(function(old) if old is not None else ()),
                set(function(new) if new is not None else ()),
            )
            for name, function in self._index_functions.items()
        }

        for name, (before, after) in values.items():
            index = self._indexes[name]
            for value in before - after:
                index[value].discard(key)
                if not index[value]:
                    del index[value]
            for value in after - before:
                index.setdefault(value, set()).add(key)
