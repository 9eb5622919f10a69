"""Take the picture of the live page: `python -m website.livepage FOLDER`, from clusters with faults in a sandbox.

It writes `live-page.png`, and to be checked the same in dark colours and on a phone.
"""

import asyncio
import contextlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from sandbox.cluster import LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.browser import Browser, browser

_PRODUCTION = ClusterSpec("production", "team-a", "production", workers=2)
# No health check replaces its lost VM before the picture is taken.
_SHOP = ClusterSpec("shop", "team-b", "shop", 1, 2, machines=("machines-large",), unhealthy_seconds=3600)
_STAGING = ClusterSpec("staging", "team-c", "staging", 1, 2, machines=("machines-large",))
_WRONG = ClusterSpec("wrong", "team-d", "wrong", 1, 1, variables={"identitySecretName": "no-such-identity"})


async def main(folder: Path) -> None:
    """Start a sandbox, create clusters, break some of them, and take pictures."""
    binaries.prepare()
    with tempfile.TemporaryDirectory(prefix="caphv-pictures-", ignore_cleanup_errors=True) as temporary:
        box = Sandbox(Path(temporary) / "box", SandboxSettings(boot_seconds=4.0, page=True))
        try:
            await box.up()
            await _clusters(box)
            async with browser(Path(temporary) / "profile") as shown:
                await _pictures(shown, box.page(), folder)
        finally:
            await children.stop_all(box.folder)


async def _clusters(box: Sandbox) -> None:
    network = box.status()["network"]
    for spec in (_PRODUCTION, _SHOP, _STAGING):
        scenario = Scenario(box.folder, in_network(spec, network), timeout=300)
        async with scenario.watching():
            await scenario.create()
            await scenario.bring_up()
            if spec is _SHOP:
                await scenario.destroy(scenario.view.workers()[0]["metadata"]["name"])
    wrong = Scenario(box.folder, in_network(_WRONG, network), timeout=5)
    async with wrong.watching():
        with contextlib.suppress(AssertionError):  # it never becomes ready, which is what the page is to show
            await wrong.create()
    staging = Scenario(box.folder, in_network(replace(_STAGING, version=LATER_VERSION), network))
    async with staging.watching():
        with contextlib.suppress(TimeoutError):  # the page shows it under way
            async with asyncio.timeout(1):
                await staging.upgrade(LATER_VERSION)


async def _pictures(shown: Browser, url: str, folder: Path) -> None:
    await shown.resize(1400, 1540)
    await shown.open(url)
    for text in ("not found", "no longer exists", "→ v1.", "free of"):
        await shown.until(f"document.body && document.body.innerText.includes({text!r})")
    await shown.until("document.querySelectorAll('#clusters article').length === 4")
    await shown.picture(folder / "live-page.png")
    await shown.resize(1400, 1540, dark=True)
    await shown.picture(folder / "live-page-dark.png")
    await shown.resize(390, 844)
    await shown.picture(folder / "live-page-phone.png")


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures))
