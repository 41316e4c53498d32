"""The console without a hub: `python -m docs.record_console [FOLDER]` writes a static site with recorded exchanges.

A service worker answers the console's requests from them (docs/demo). It needs Chromium and the packages of the tests.
"""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from docs.console_pictures import scene
from hub.extensions.console import CONFIG
from machinery.product import GROUP_SUFFIX, version
from tests.browser.conftest import NO_SHARED_WORKER, Desk
from tests.integration.https_door.conftest import CLUSTERS, REQUESTS, admin_of

DEMO = Path(__file__).parent / "demo"
FOLDER = Path("build/console")
SESSIONS = "/apis/hub.open-cluster-management.io/v1alpha1/clustersessions"
FOLLOWED = (CLUSTERS, SESSIONS, REQUESTS)
FOLLOWED_SECONDS = 4
VIEWS = ("fleet", "fleet?group=version", "fleet?sort=-memory", "inbox", "time")
TABS = ("Overview", "History", "Events", "Audit", "YAML")
API = re.compile(r"/apis?/")


async def record_site(desk: Desk, folder: Path, names: Iterable[str], change: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Write the site: what the console asks in all views and of these clusters, and the events while `change` runs."""
    exchanges: list[dict[str, Any]] = []

    async def record(route: Any) -> None:
        request = route.request
        if "watch=1" in request.url:
            await route.continue_()
            return
        answer = await route.fetch()
        exchange = {"method": request.method, "url": request.url, "accept": request.headers.get("accept", "")}
        exchanges.append({**exchange, "status": answer.status, "body": await answer.text()})
        await route.fulfill(response=answer)

    # without a worker of several tabs all requests are the page's, which Playwright can record
    async with desk.visit(script=NO_SHARED_WORKER) as visit:
        await visit.page.route(API, record)
        await visit.page.reload()
        views = [*VIEWS, *(f"cluster/{name}?tab={tab}" for name in names for tab in TABS)]
        for view in views:
            await visit.go(view)
            await visit.loaded()
        events = await _events(desk, exchanges, change)
        await visit.loaded()
    _write_site(folder, {"at": datetime.now(UTC).isoformat(), "exchanges": exchanges, "events": events})


def _write_site(folder: Path, recording: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with resources.as_file(resources.files("hub.extensions.console") / "static") as static:
        shutil.copytree(static, folder / "console", dirs_exist_ok=True)
    for file in DEMO.iterdir():
        shutil.copy(file, folder)
    config = {"mode": "read-only", "version": version(), "groupSuffix": GROUP_SUFFIX}
    (folder / "console" / CONFIG).write_text(json.dumps(config))
    (folder / "recording.json").write_text(json.dumps(recording))


async def _events(
    desk: Desk, exchanges: Iterable[dict[str, Any]], change: Callable[[], Coroutine[Any, Any, None]]
) -> dict[str, list[str]]:
    """Lines of watches that begin where the recorded lists end, by path."""
    admin = await admin_of(desk.hub)

    async def lines(path: str) -> list[str]:
        listed = next(each["body"] for each in exchanges if f"{path}?limit=" in each["url"])
        after = json.loads(listed)["metadata"]["resourceVersion"]
        query = f"watch=1&resourceVersion={after}&timeoutSeconds={FOLLOWED_SECONDS}"
        async with admin.watch(f"{path}?{query}") as watch:
            return (await watch.response.text()).splitlines()

    async with asyncio.TaskGroup() as tasks:
        following = {path: tasks.create_task(lines(path)) for path in FOLLOWED}
        tasks.create_task(change())
    return {path: task.result() for path, task in following.items()}


async def record_demo(site: Path) -> None:
    with TemporaryDirectory() as folder:
        async with scene(Path(folder)) as desk:

            async def change() -> None:
                await desk.hub.join("lab-9")
                await desk.hub.request("lab-9", "lab-9-first")
                await desk.hub.output("hubctl revoke cluster edge-3 --reason superseded")

            names = (await desk.hub.output("hubctl get clusters -o jsonpath='{.items[*].metadata.name}'")).split()
            await record_site(desk, site, names, change)


def main() -> int:
    asyncio.run(record_demo(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
