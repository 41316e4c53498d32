"""A hub's metrics on its own listener: without credentials, as numbers of this process."""

from contextlib import AsyncExitStack

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hub.metrics import told_metrics
from hub.settings import load
from machinery.lifecycle.server import StartError
from machinery.metrics import gauge
from tests.e2e.processes import free_port


async def scraped(url: str, path: str = "/metrics") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_prometheus_scrapes_the_listener_and_finds_nothing_else_there() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        registry = await told_metrics(load({"metrics_listen": f"127.0.0.1:{port}"}), stack)
        registry.bind(gauge("hub_answer", "An answer."), lambda: 42)
        url = f"http://127.0.0.1:{port}"
        status, kind, text = await scraped(url)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        read = {family.name: family.samples[0].value for family in text_string_to_metric_families(text)}
        assert read["muster_hub_answer"] == 42
        assert read["process_resident_memory_bytes"] > 10_000_000
        assert read["process_cpu_seconds"] > 0
        assert (await scraped(url, "/api"))[0] == 404
    with pytest.raises(aiohttp.ClientConnectorError):
        await scraped(url)


async def test_without_an_address_nothing_listens() -> None:
    async with AsyncExitStack() as stack:
        registry = await told_metrics(load({}), stack)
        assert "muster_hub_build_info" in registry.text()


async def test_an_address_that_is_taken_is_a_sentence_that_names_the_setting() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        settings = load({"metrics_listen": f"127.0.0.1:{port}"})
        await told_metrics(settings, stack)
        with pytest.raises(StartError, match="--metrics-listen"):
            await told_metrics(settings, stack)
