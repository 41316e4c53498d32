"""The console: first load, frames beside those of a bare table, memory, and the cost of open pages for the hub.

    python -m bench console [--clusters 10000] [--pages 50] [--seconds 40]

It uses a real `hub serve` with a database that was filled before, `hubctl console`, and headless Chromium. Times of the page
begin with its navigation. The many open pages are HTTP clients. Each of them has the watches of the console's worker and
repeats the periodic reads of the fleet page, while one cluster changes every second. Processor time is that of the hub.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import aiohttp

from bench import door, queries
from bench.stage import CLUSTERS, Stage, cpu_seconds, memory_mib

OWN = "/apis/hub.open-cluster-management.io/v1alpha1"
SESSIONS, REQUESTS = f"{OWN}/clustersessions", "/apis/certificates.k8s.io/v1/certificatesigningrequests"
STRIP = (f"{OWN}/hubreplicas", f"{OWN}/clustersummaries/fleet")
STRIP_SECONDS, ROWS_SECONDS = 30, 10
"""Seconds between two reads of the hub's state (while the fleet changes), and of the beats of the visible rows."""
TABLE = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
ROWS = 40
LEASE_SECONDS = 3_600
"""Lease duration of the clusters. It is so long that no cluster becomes Unknown during the measurement."""
LOADS = 3
INTERACTIVE = "() => document.querySelectorAll('[data-testid=row]').length > 5 && performance.now()"
LOADED = """() => {
  const total = document.querySelector("[data-testid=count]")?.textContent ?? "";
  return total && !total.includes("loading") && performance.now();
}"""
SCRIPT = f"([name, ...given]) => {Path(__file__).with_suffix('.js').read_text('utf-8')}[name](...given)"


async def console(
    clusters: int = 10_000,
    pages: int = 50,
    seconds: Annotated[int, "Length of each measurement of the hub's processor time."] = 40,
) -> dict[str, Any]:
    """First load, frames and memory of the console, and the cost of open pages for the hub."""
    documents = [_patient(made) for made in queries.fleet(clusters)]
    async with door.filled("", lambda url: door.fill(url, documents, door.put_new, queries.beat), "--console=on") as (
        stage,
        hub,
    ):
        await asyncio.to_thread(door.settle, hub)
        found: dict[str, Any] = {"clusters": clusters, "hub_pss_mib": round(memory_mib(hub)[0], 1)}
        found["hub_without_page_ms_per_minute"] = await _spent(hub, seconds)
        found |= await _in_browser(stage, hub, seconds)
        found |= await _many_pages(stage, hub, pages, seconds)
        return found


def _patient(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "spec": {**made["spec"], "leaseDurationSeconds": LEASE_SECONDS}}


async def _spent(hub: int, seconds: int) -> float:
    """Return the processor time of the hub in milliseconds per minute."""
    before = cpu_seconds(hub)
    await asyncio.sleep(seconds)
    return round((cpu_seconds(hub) - before) * 60_000 / seconds, 1)


async def _in_browser(stage: Stage, hub: int, seconds: int) -> dict[str, Any]:
    """Return the figures of a page. Each load has a new context, and so no cache and no worker of an earlier load."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 - other benchmarks need no browser

    program = await stage.start("console", "hubctl", f"--kubeconfig={stage.admin}", "console", "--no-open")
    lines: list[str] = []

    async def printed() -> bool:
        lines[:] = [line for line in program.last_words() if "#secret=" in line]
        return bool(lines)

    await stage.until(printed, "hubctl console prints its URL")
    found: dict[str, Any] = {}
    async with async_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info"]
        browser = await driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        loads: dict[str, list[float]] = {INTERACTIVE: [], LOADED: []}
        for left in reversed(range(LOADS)):
            context = await browser.new_context(viewport={"width": 1600, "height": 1000})
            page = await context.new_page()
            await page.goto(lines[0])
            for condition, times in loads.items():
                handle = await page.wait_for_function(condition, polling="raf", timeout=60_000)
                times.append(await handle.json_value() / 1e3)
            if left:
                await context.close()
        found |= {"interactive": door.spread(loads[INTERACTIVE]), "all_loaded": door.spread(loads[LOADED])}
        for work in ("scroll", "filter"):
            spans = await page.evaluate(SCRIPT, ["frames", work, 10])
            found[f"frames_{work}"] = {**door.spread([span / 1e3 for span in spans]), "frames": len(spans)}
        found["page_heap_mib"] = round(await page.evaluate("performance.memory.usedJSHeapSize") / 2**20, 1)
        processes = (await (await browser.new_browser_cdp_session()).send("SystemInfo.getProcessInfo"))["processInfo"]
        renderers = (memory_mib(each["id"])[0] for each in processes if each["type"] == "renderer")
        found["renderers_pss_mib"] = round(sum(renderers), 1)
        found["hub_with_one_page_ms_per_minute"] = await _spent(hub, seconds)
        await page.goto("about:blank")
        await page.evaluate(SCRIPT, ["plain"])
        spans = await page.evaluate(SCRIPT, ["frames", "scroll", 10])
        found["frames_scroll_plain"] = {**door.spread([span / 1e3 for span in spans]), "frames": len(spans)}
        await browser.close()
    return found


async def _many_pages(stage: Stage, hub: int, pages: int, seconds: int) -> dict[str, Any]:
    client = door.Client(stage.admin, stage.https_port)
    lists = {path: json.loads(client.get(f"{path}?limit={ROWS}")) for path in (CLUSTERS, SESSIONS, REQUESTS)}
    names = [each["metadata"]["name"] for each in lists[CLUSTERS]["items"]]
    quoted = ", ".join(f'"{name}"' for name in names)
    rows = f"{CLUSTERS}?{urlencode({'where': f'name in [{quoted}]', 'includeObject': 'None'})}"
    connector = aiohttp.TCPConnector(ssl=client.context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    origin = f"https://127.0.0.1:{stage.https_port}"
    async with aiohttp.ClientSession(origin, connector=connector, timeout=timeout) as session:

        async def watch(path: str) -> None:
            query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": lists[path]["metadata"]["resourceVersion"]}
            async with session.get(path, params=query) as response:
                async for _ in response.content:
                    pass

        async def repeat(every: float, first: float, read: Callable[[], Any]) -> None:
            await asyncio.sleep(first)
            while True:
                began = time.monotonic()
                await read()
                await asyncio.sleep(max(0.0, every - (time.monotonic() - began)))

        async def read(*paths: str, **headers: str) -> None:
            for path in paths:
                async with session.get(path, headers=headers) as response:
                    response.raise_for_status()
                    await response.read()

        async def change() -> None:
            await asyncio.to_thread(client.label, names[0], f"v{time.time_ns()}")

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(watch(path)) for path in lists for _ in range(pages)]
            for number in range(pages):
                share = number / pages
                running += [
                    tasks.create_task(repeat(STRIP_SECONDS, share * STRIP_SECONDS, lambda: read(*STRIP))),
                    tasks.create_task(repeat(ROWS_SECONDS, share * ROWS_SECONDS, lambda: read(rows, **TABLE))),
                ]
            running.append(tasks.create_task(repeat(1, 0, change)))
            await asyncio.sleep(STRIP_SECONDS)
            spent, memory = await _spent(hub, seconds), memory_mib(hub)[0]
            for task in running:
                task.cancel()
    share = round(spent / 600, 2)
    return {"pages": pages, "hub_with_pages_percent_of_a_core": share, "hub_with_pages_pss_mib": round(memory, 1)}
