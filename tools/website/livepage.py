"""Take pictures of the live page: `python -m tools.website.livepage FOLDER [STATE...]`.

Its states are built from objects (`tests/support/pagestates.py`), so that pictures differ only if
the page does. The picture of the documentation is `live-page.png`. The others, light and dark, on a
desktop and a phone, are for checking.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from operations.status.page.server import Feed, PageServer
from tests.support.browser import Browser, browser
from tests.support.clusters import NOW
from tests.support.pagestates import STATES, PageState, mixed

_DESKTOP = (1400, 900)
_PHONE = (390, 844)
_DOCUMENTED = (1400, 1180)


async def main(folder: Path, names: list[str]) -> None:
    """Serve each state and take its pictures; `names` limits them."""
    feed = Feed()
    with tempfile.TemporaryDirectory(prefix="caphv-pictures-") as profile:
        async with (
            PageServer(feed).serving("127.0.0.1", 0) as url,
            browser(Path(profile)) as window,
        ):
            # The page shows ages, which would differ in each picture.
            await window.stop_clock(NOW)
            for state in (PageState("live-page", mixed), *STATES):
                if names and state.name not in names:
                    continue
                feed.publish(state.make().content())
                await _take_pictures(window, url, folder, state.name)


async def _take_pictures(window: Browser, url: str, folder: Path, name: str) -> None:
    for suffix, size, dark in (
        ("", _DOCUMENTED if name == "live-page" else _DESKTOP, False),
        ("-dark", _DESKTOP, True),
        ("-phone", _PHONE, False),
        ("-phone-dark", _PHONE, True),
    ):
        await window.resize(*size, dark=dark)
        await window.open(url)
        await window.until(
            "typeof data === 'object' && data !== null && document.readyState === 'complete'"
        )
        whole = name != "live-page" or bool(suffix)
        await window.picture(folder / f"{name}{suffix}.png", whole=whole)


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures, sys.argv[2:]))
