"""A browser at the hub's console: the system's Chromium, driven by Playwright through `hubctl console`."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.integration.https_door.conftest import HubUnderTest, Running, hub_with

AXE = Path(__file__).with_name("axe.min.js")
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
QUIET = 5
WATCHED = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP ${event.violatedDirective} ${event.blockedURI} ${event.sample} ${event.sourceFile}:${event.lineNumber}`));
"""
NO_SHARED_WORKER = "delete globalThis.SharedWorker;"
FAULTS = ("CSP ", "Content Security Policy", "TrustedHTML", "TrustedScript", "[Report Only]")


@dataclass
class Visit:
    """A tab with the console. `faults`: violations of the policy, dialogs, and errors that no script has caught."""

    page: Any
    origin: str
    secret: str
    faults: list[str] = field(default_factory=list)
    requests: set[Any] = field(default_factory=set)
    """Open ones of the page; watches and those of its worker are not among them."""

    def at(self, testid: str) -> Any:
        return self.page.get_by_test_id(testid)

    async def go(self, view: str) -> None:
        """Show a view, as a link to it does."""
        await self.page.evaluate("(view) => { location.hash = view; }", f"#/{view}")

    async def loaded(self) -> None:
        """Returns when the page has had no request open for five turns of its loop, so that it shows all that it reads."""
        turns = 0
        try:
            async with asyncio.timeout(20):
                while turns < QUIET:
                    await self.page.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(done), 10))")
                    turns = 0 if self.requests else turns + 1
        except TimeoutError:
            pytest.fail(f"{self.page.url}: without an answer: {[each.url for each in self.requests]}")

    async def fetch(self, method: str, path: str, body: Any = None) -> int:
        """The status of a request that the page is made to send."""
        script = """async ([method, path, body, secret]) => (await fetch(path, {
            method, body: body && JSON.stringify(body),
            headers: { "Muster-Console-Secret": secret, "Content-Type": "application/merge-patch+json" },
        })).status"""
        return int(await self.page.evaluate(script, [method, path, body, self.secret]))

    def watch_faults(self) -> None:
        def note(message: Any) -> None:
            if any(text in message.text for text in FAULTS):
                self.faults.append(message.text)

        async def dismiss(dialog: Any) -> None:
            self.faults.append(f"dialog: {dialog.message}")
            await dialog.dismiss()

        def open_request(request: Any) -> None:
            if request.resource_type == "fetch" and "watch=1" not in request.url:
                self.requests.add(request)

        self.page.on("request", open_request)
        self.page.on("requestfinished", lambda request: self.requests.discard(request))  # noqa: PLW0108 - Playwright takes no builtin
        self.page.on("requestfailed", lambda request: self.requests.discard(request))  # noqa: PLW0108 - likewise
        self.page.on("console", note)
        self.page.on("dialog", dismiss)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))


@dataclass
class Desk:
    """A hub with a console, and a browser."""

    hub: HubUnderTest
    browser: Any
    consoles: list[Running] = field(default_factory=list)

    @asynccontextmanager
    async def visit(self, path: Path | None = None, *, script: str = "", **context: Any) -> AsyncIterator[Visit]:
        """Opens the URL that `hubctl console` prints for the user of a kubeconfig. Fails at its end for a fault of the page.

        `script`: runs in the page before its own.
        """
        console = await self.hub.start_hubctl("console", "--no-open", path=path)
        self.consoles.append(console)
        url = await console.line()
        origin, _, secret = url.partition("/console/#secret=")
        tabs = await self.browser.new_context(**context)
        visit = Visit(await tabs.new_page(), origin, secret)
        visit.watch_faults()
        await visit.page.add_init_script(WATCHED + script)
        await visit.page.goto(url)
        try:
            yield visit
            assert visit.faults == []
        finally:
            await tabs.close()

    async def close(self) -> None:
        for console in self.consoles:
            await console.end()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_words: object) -> None:
        """Logs nothing."""


@contextmanager
def static_site(folder: Path) -> Iterator[str]:
    """The URL of a plain web server for the files of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def opened_browser(*flags: str) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright  # noqa: PLC0415 - the tests are skipped without it

    async with async_playwright() as driver:
        # without a sandbox, which root and containers cannot have: the only pages are ours
        opened = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage", *flags]
        )
        yield opened
        await opened.close()


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Any]:
    async with opened_browser() as opened:
        yield opened


@pytest.fixture
async def desk(tmp_path: Path, browser: Any) -> AsyncIterator[Desk]:
    async with hub_with(tmp_path, console="on", leads=True) as hub:
        opened = Desk(hub, browser)
        yield opened
        await opened.close()


@pytest.fixture(scope="session")
def axe() -> str:
    script = AXE.read_bytes()
    assert sha256(script).hexdigest() == AXE_SHA256, "tests/browser/axe.min.js is not that of axe-core 4.14.1"
    return script.decode()
