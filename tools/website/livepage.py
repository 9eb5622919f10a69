"""Take pictures of the live page: `python -m tools.website.livepage FOLDER [NAME...]`.

Its states are built from objects (`tests/support/pagestates.py`), so that pictures differ only if
the page does. Those of the documentation are WebP files, which are small. The others show each
state in a PNG file, light and dark, on a desktop and a phone, and are for checking.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from operations.status.page.server import Feed, PageServer
from tests.support.browser import Browser, browser
from tests.support.clusters import NOW
from tests.support.pagestates import STATES, PageState, mixed, thirty, three_hundred


@dataclass(frozen=True)
class Picture:
    """A picture of a state.

    :param file: its name; the suffix chooses the format
    :param state: what the page shows
    :param width: of the window, in pixels
    :param height: of the window
    :param dark: uses dark colours
    :param whole: shows the whole page, however long it is, not only what fits into the window
    """

    file: str
    state: PageState
    width: int
    height: int
    dark: bool
    whole: bool = False


def _pictures() -> Iterator[Picture]:
    """Yield the pictures of the documentation, then those for checking."""
    yield Picture("live-page.webp", PageState("mixed", mixed), 1400, 1180, dark=False)
    yield Picture("live-page-many.webp", PageState("many", three_hundred), 1400, 900, dark=True)
    yield Picture("live-page-phone.webp", PageState("phone", thirty), 390, 844, dark=False)

    for state in STATES:
        for dark in (False, True):
            colours = "dark" if dark else "light"
            desktop = f"{state.name}-desktop-{colours}.png"
            phone = f"{state.name}-phone-{colours}.png"
            yield Picture(desktop, state, 1400, 900, dark=dark, whole=True)
            yield Picture(phone, state, 390, 844, dark=dark, whole=True)


async def main(folder: Path, names: list[str]) -> None:
    """Take the pictures whose file name begins with one of the names; all without names."""
    feed = Feed()
    with tempfile.TemporaryDirectory(prefix="caphv-pictures-") as profile:
        async with (
            PageServer(feed).serving("127.0.0.1", 0) as url,
            browser(Path(profile)) as window,
        ):
            # The page shows ages, which would differ in each picture.
            await window.stop_clock(NOW)
            for picture in _pictures():
                if not names or picture.file.startswith(tuple(names)):
                    feed.publish(picture.state.make().content())
                    await _take_picture(window, url, folder, picture)


async def _take_picture(window: Browser, url: str, folder: Path, picture: Picture) -> None:
    await window.resize(picture.width, picture.height, dark=picture.dark)
    await window.open(url)
    await window.until(
        "typeof data === 'object' && data !== null && document.readyState === 'complete'"
    )
    await window.picture(folder / picture.file, whole=picture.whole)


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures, sys.argv[2:]))
