"""The metrics registry of this process and its optional listener."""

from contextlib import AsyncExitStack

import structlog
from aiohttp import web

from hub.metrics.process import add_process
from hub.settings import HubSettings
from machinery.apiserver.http.listener import serve
from machinery.lifecycle.startup import listening_failed
from machinery.observability.metrics import CONTENT_TYPE, Registry

PATH = "/metrics"

log = structlog.get_logger(__name__)


async def told_metrics(settings: HubSettings, stack: AsyncExitStack) -> Registry:
    """Returns the registry, served at `--metrics-listen` until `stack` ends. Raises StartError if it cannot listen there."""
    registry = Registry(detailed=settings.metrics_per_cluster)
    add_process(registry)
    if settings.metrics_listen is not None:
        await _listen(settings.metrics_listen.host, settings.metrics_listen.port, registry, stack)
    return registry


async def _listen(host: str, port: int, registry: Registry, stack: AsyncExitStack) -> None:
    try:
        listening = await serve(_application(registry), host, port)
    except OSError as error:
        raise listening_failed("metrics_listen", host, port, error) from error
    stack.push_async_callback(listening.close)
    log.info("metrics are told", address=f"{host}:{port}")


def _application(registry: Registry) -> web.Application:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=(await registry.scrape()).encode(), headers={"Content-Type": CONTENT_TYPE})

    application = web.Application()
    application.router.add_get(PATH, answer)
    return application
