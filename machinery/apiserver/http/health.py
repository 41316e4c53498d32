"""`/healthz`, `/livez` and `/readyz` with named checks, in kube-apiserver's format.

Responses for all checks omit the reasons of failures; the log contains them. The response for a single check contains the
reason, because its path needs a permission.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import structlog
from aiohttp import web

from machinery.apiserver.http.responses import NOT_FOUND
from machinery.runtime.health import PING, Endpoint, HealthCheck

log = structlog.get_logger(__name__)


def _plain(text: str, status: int = 200) -> web.Response:
    response = web.Response(text=text, status=status, content_type="text/plain", charset="utf-8")
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


class HealthEndpoints:
    """Serves the three endpoints for a fixed list of checks. `ping` comes first, even if the list does not contain it."""

    def __init__(self, checks: Iterable[HealthCheck] = ()) -> None:
        everything = (PING, *checks)
        self._checks: dict[str, Mapping[str, HealthCheck]] = {
            endpoint: {check.name: check for check in everything if endpoint in check.endpoints} for endpoint in Endpoint
        }
        self._failing: set[tuple[str, str]] = set()

    def paths(self) -> Iterator[str]:
        for endpoint, checks in self._checks.items():
            yield f"/{endpoint}"
            yield from (f"/{endpoint}/{name}" for name in checks)

    async def answer(self, request: web.Request, endpoint: str, check: str) -> web.Response:
        """Return the response for `/<endpoint>` (`check` is "") or for `/<endpoint>/<check>`."""
        if check:
            return await self._one(endpoint, check)
        exclude = set(request.query.getall("exclude", []))
        unknown, lines, passed = set(exclude), [], True
        for each in self._checks[endpoint].values():
            if each.name in exclude:
                unknown.discard(each.name)
                lines.append(f"[+]{each.name} excluded: ok")
            elif await self._failure(each, endpoint) is None:
                lines.append(f"[+]{each.name} ok")
            else:
                lines.append(f"[-]{each.name} failed: reason withheld")
                passed = False
        if unknown:
            names = ",".join(json.dumps(name, ensure_ascii=False) for name in sorted(unknown))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        if not passed:
            return _plain("\n".join([*lines, f"{endpoint} check failed", ""]), 500)
        if "verbose" in request.query:
            return _plain("\n".join([*lines, f"{endpoint} check passed", ""]))
        return _plain("ok")

    async def _one(self, endpoint: str, name: str) -> web.Response:
        check = self._checks[endpoint].get(name)
        if check is None:
            return _plain(NOT_FOUND, 404)
        failure = await self._failure(check, endpoint)
        if failure is not None:
            return _plain(f"internal server error: {failure}\n", 500)
        return web.Response(text="ok", content_type="text/plain", charset="utf-8")

    async def _failure(self, check: HealthCheck, endpoint: str) -> str | None:
        """Return why a check fails; None: it passes. Log the first failure and the recovery."""
        place = (endpoint, check.name)
        try:
            await check.probe()
        except Exception as error:  # noqa: BLE001 - every exception of a probe means that it fails
            if place not in self._failing:
                log.warning("health check failed", check=check.name, endpoint=endpoint, error=str(error))
            self._failing.add(place)
            return str(error) or type(error).__name__
        if place in self._failing:
            log.info("health check passes again", check=check.name, endpoint=endpoint)
        self._failing.discard(place)
        return None
