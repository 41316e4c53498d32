"""503 instead of 404 while paths are still being installed: garbage collectors delete objects on a 404.

The state at the arrival of the request decides. A request that arrived too early was routed by an incomplete server, even if
all paths exist by the time of its response.
"""

from collections.abc import Callable
from datetime import timedelta

from aiohttp import web

from machinery.apiserver.http.filters import Filter, Incoming, Inner
from machinery.apiserver.site import NO_SUCH_PATH
from machinery.errors import NotFoundError, UnavailableError

RETRY = timedelta(seconds=5)


def not_yet(complete: Callable[[], bool]) -> Filter:
    """The filter; `complete` returns whether all paths are installed."""

    async def marked(incoming: Incoming, inner: Inner) -> web.StreamResponse:
        if complete():
            return await inner(incoming)
        try:
            response = await inner(incoming)
        except NotFoundError as error:
            if error.subject is None:  # about a path, not about an object
                raise _early() from error
            raise
        if NO_SUCH_PATH in response:
            raise _early()
        return response

    return marked


def _early() -> UnavailableError:
    return UnavailableError(
        "the request has been made before all known HTTP paths have been installed, please try again", retry_after=RETRY
    )
