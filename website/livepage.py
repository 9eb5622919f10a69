"""Take pictures of the live page in each of its states: `python -m website.livepage FOLDER [STATE...]`.

The states are made of objects (`tests/support/pagestates.py`), so that pictures differ only if the page
does. The picture of the documentation is `live-page.png`. The others, light and dark, on a desktop and a
phone, are for checking.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from overview.page.serving import Feed, PageServer
from tests.support.browser import Browser, browser
from tests.support.clusters import NOW
from tests.support.pagestates import STATES, PageState, mixed

_DESKTOP, _PHONE = (1400, 900), (390, 844)
_DOCUMENTED = (1400, 1180)


async def main(folder: Path, names: list[str]) -> None:
    """Serve each state, and take its pictures; `names` limits them."""
    feed = Feed()
    with tempfile.TemporaryDirectory(prefix="caphv-pictures-") as profile:
        async with PageServer(feed).serving("127.0.0.1", 0) as url, browser(Path(profile)) as shown:
            await shown.stop_clock(NOW)
            for state in (PageState("live-page", mixed), *STATES):
                if names and state.name not in names:
                    continue
                feed.publish(state.make().content())
                await _pictures(shown, url, folder, state.name)


async def _pictures(shown: Browser, url: str, folder: Path, name: str) -> None:
    for suffix, size, dark in (
        ("", _DOCUMENTED if name == "live-page" else _DESKTOP, False),
        ("-dark", _DESKTOP, True),
        ("-phone", _PHONE, False),
        ("-phone-dark", _PHONE, True),
    ):
        await shown.resize(*size, dark=dark)
        await shown.open(url)
        await shown.until("typeof data === 'object' && data !== null && document.readyState === 'complete'")
        whole = name != "live-page" or suffix
        await shown.picture(folder / f"{name}{suffix}.png", whole=bool(whole))


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures, sys.argv[2:]))
