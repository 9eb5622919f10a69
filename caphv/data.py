"""Finds the data folders (schemas, CRDs, …), which a checkout and an installed package keep at different places."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Return the data folder `name`, a relative path such as `schemas` or `deploy/crds`.

    In a checkout it stands next to the package; the wheel carries a copy below `caphv/_data`. The copy is looked for
    first, because what stands next to an installed package belongs to others.

    Raises:
        FileNotFoundError: neither place has it; the message names both.
    """
    places = (_PACKAGE / "_data" / name, _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places)
    msg = f"data folder {name!r} not found (searched {looked}): install caphv again, or run from a whole checkout"
    raise FileNotFoundError(msg)
