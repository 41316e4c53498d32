"""A listening server whose listener stops apart from its clean-up, so that a drain can stand between the two."""

import ssl
from datetime import timedelta

from aiohttp import web

LINE_LIMIT = 64 * 1024
"""Of the request line, which may hold long selectors, and of each header."""


class Listening:
    """A server that listens. `stop_listening`, then `close`; both may be called twice."""

    def __init__(self, runner: web.AppRunner, site: web.TCPSite) -> None:
        self._runner = runner
        self._site: web.TCPSite | None = site
        self._port = int(runner.addresses[0][1])

    @property
    def port(self) -> int:
        """The port that was bound: the one to know after asking for port 0."""
        return self._port

    async def stop_listening(self) -> None:
        """Takes no further connection; those open go on."""
        if self._site is not None:
            site, self._site = self._site, None
            await site.stop()

    async def close(self) -> None:
        """Ends watches, lets other requests finish within the shutdown time-out, closes every connection."""
        await self.stop_listening()
        await self._runner.cleanup()


async def serve(
    app: web.Application,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None = None,
    *,
    shutdown_timeout: timedelta = timedelta(seconds=10),
) -> Listening:
    """Listens on `host`:`port` (0: any free port). Raises OSError when the port is in use: two servers never share one."""
    runner = web.AppRunner(
        app,
        handle_signals=False,
        access_log=None,
        shutdown_timeout=shutdown_timeout.total_seconds(),
        keepalive_timeout=90,
        max_line_size=LINE_LIMIT,
        max_field_size=LINE_LIMIT,
        handler_cancellation=True,  # an idle watch of a client that went away would stay to its time-out
    )
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=ssl_context, reuse_port=False)
    try:
        await site.start()
    except BaseException:
        await runner.cleanup()
        raise
    return Listening(runner, site)
