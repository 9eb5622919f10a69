"""Find the data folders (schemas, CRDs, …), in a checkout or an installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """Return the data folder `name`, a relative path such as `schemas` or `deploy/crds`.

    In a checkout, the folder is next to the package. The wheel has a copy below `caphv/_data`,
    which takes precedence, because folders next to an installed package belong to other
    distributions.

    Raises:
        FileNotFoundError: neither place has it; the message names both.
    """
    places = (_PACKAGE / "_data" / name, _PACKAGE.parent / name)
    for place in places:
        if place.is_dir():
            return place
    looked = " and ".join(str(place) for place in places)
    msg = (
        f"data folder {name!r} not found (searched {looked}): install caphv again, or run from a "
        "whole checkout"
    )
    raise FileNotFoundError(msg)
