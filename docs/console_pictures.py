"""Pictures of the console: `python -m docs.console_pictures` writes docs/console/, from a hub with simulated agents.

It needs Chromium and the packages of the tests.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import programs
from tests.browser.conftest import Desk, opened_browser
from tests.integration.https_door.conftest import hub_with

FOLDER = Path(__file__).parent / "console"
VIEWS = {"fleet": "fleet", "inbox": "inbox", "cluster": "cluster/edge-3", "time": "time"}
THEMES = ("light", "dark")
AGENTS, WAITING = 16, ("lab-1", "lab-2", "paris-7")
SIZE = {"width": 1100, "height": 720}


async def take_pictures(folder: Path) -> None:
    async with hub_with(folder, console="on", leads=True, auto_approve=("edge-*",)) as hub, opened_browser() as browser:
        file = str(folder / "edge.bootstrap")
        await hub.output(
            f"hubctl create bootstrap-kubeconfig --cluster-pattern edge-* --uses unlimited --allow-loopback -o {file}"
        )
        load = await programs.start(
            *("hollow", "load", "steady", "--bootstrap-kubeconfig", file, "--agents", str(AGENTS), "--name-prefix", "edge"),
            *("--state-dir", str(folder / "load"), "--duration", "10m", "--ramp", "1s"),
            stdout=programs.DEVNULL,
            stderr=programs.DEVNULL,
        )
        for number, name in enumerate(WAITING):
            await hub.join(name)
            await hub.request(name, f"{name}-{number}")
        desk = Desk(hub, browser)
        try:
            await hub.output(f"hubctl wait cluster/edge-{AGENTS - 1} --for condition=Available --timeout 60s")
            for theme in THEMES:
                async with desk.visit(viewport=SIZE, color_scheme=theme) as visit:
                    for name, view in VIEWS.items():
                        await visit.go(view)
                        await visit.loaded()
                        await visit.page.screenshot(path=FOLDER / f"{name}-{theme}.png")
        finally:
            await desk.close()
            load.kill()
            await load.wait()


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        asyncio.run(take_pictures(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
