"""Pictures of the console: `python -m docs.console_pictures` writes docs/console/, from a hub with simulated agents.

It needs Chromium and the packages of the tests.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import programs
from tests.browser.conftest import Desk, opened_browser
from tests.e2e.processes import until
from tests.integration.https_door.conftest import hub_with

FOLDER = Path(__file__).parent / "console"
VIEWS = {
    "fleet": ("fleet", ".vbody [data-column=beat]:not(.muted)"),
    "inbox": ("inbox", "[data-testid=entry]"),
    "cluster": ("cluster/edge-3", "[data-testid=diagnosis]"),
    "time": ("time?range=3600000&at={now}", "[data-testid=fleet-then]"),
}
"""By the name of the picture: the view, and the part of it that must be visible."""
THEMES = ("light", "dark")
AGENTS, WAITING = 16, ("lab-1", "lab-2", "paris-7")
SIZE = {"width": 1200, "height": 680}


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Desk]:
    """A hub with AGENTS simulated agents, one of them revoked, and clusters that wait."""
    async with hub_with(folder, console="on", leads=True, auto_approve=("edge-*",)) as hub, opened_browser() as browser:
        file = str(folder / "edge.bootstrap")
        await hub.output(
            f"hubctl create bootstrap-kubeconfig --cluster-pattern edge-* --uses unlimited --allow-loopback -o {file}"
        )
        load = await programs.start(
            *("hollow", "load", "steady", "--bootstrap-kubeconfig", file, "--agents", str(AGENTS), "--name-prefix", "edge"),
            *("--state-dir", str(folder / "load"), "--duration", "10m", "--ramp", "1s"),
            stdout=programs.DEVNULL,
        )
        for number, name in enumerate(WAITING):
            await hub.join(name)
            await hub.request(name, f"{name}-{number}")
        desk = Desk(hub, browser)

        async def available() -> bool:
            names = await hub.output("hubctl get clusters -o name --where 'available == \"True\"'")
            return len(names.splitlines()) == AGENTS

        try:
            await until(available, what="the agents' clusters are Available")
            await hub.output("hubctl revoke cluster edge-12 --reason superseded")
            yield desk
        finally:
            await desk.close()
            load.kill()
            await load.wait()


async def take_pictures(folder: Path) -> None:
    async with scene(folder) as desk:
        for theme in THEMES:
            async with desk.visit(viewport=SIZE, color_scheme=theme) as visit:
                for name, (view, part) in VIEWS.items():
                    await visit.go(view.format(now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")))
                    await visit.page.locator(part).first.wait_for()
                    await visit.loaded()
                    await visit.page.screenshot(path=FOLDER / f"{name}-{theme}.png")


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        asyncio.run(take_pictures(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
