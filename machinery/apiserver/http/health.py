"""`/healthz`, `/livez` and `/readyz` with named checks, in kube-apiserver's format.

Responses for all checks omit the reason of a failure (it is in the log); the path of a single check includes it, because that
path needs permission.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog
from aiohttp import web

from machinery.apiserver.http.responses import NOT_FOUND

ENDPOINTS = ("healthz", "livez", "readyz")

log = structlog.get_logger(__name__)


async def _ping() -> None:
    """Always passes: the server answers."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """`probe` raises when the check fails. The check belongs to the named endpoints.

    Excluding a `group` excludes all its checks. A name may occur twice with different endpoints.
    """

    name: str
    probe: Callable[[], Awaitable[None]]
    endpoints: tuple[str, ...] = ENDPOINTS
    group: str = ""


PING = HealthCheck("ping", _ping)


@dataclass(frozen=True, slots=True)
class _Outcome:
    name: str
    failure: str | None = None
    excluded_by: str = ""

    @property
    def line(self) -> str:
        if self.excluded_by == self.name:
            return f"[+]{self.name} excluded: ok"
        if self.excluded_by:
            return f"[+]{self.name} excluded with {self.excluded_by}: ok"
        return f"[+]{self.name} ok" if self.failure is None else f"[-]{self.name} failed: reason withheld"


def _plain(text: str, status: int = 200) -> web.Response:
    response = web.Response(text=text, status=status, content_type="text/plain", charset="utf-8")
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


class HealthEndpoints:
    """Serves the three endpoints for a fixed list of checks; `ping` is first."""

    def __init__(self, checks: Iterable[HealthCheck] = ()) -> None:
        everything = (PING, *checks)
        self._checks: dict[str, Mapping[str, HealthCheck]] = {
            endpoint: {check.name: check for check in everything if endpoint in check.endpoints} for endpoint in ENDPOINTS
        }
        self._failing: set[tuple[str, str]] = set()

    def paths(self) -> Iterator[str]:
        """All paths that this class serves."""
        for endpoint, checks in self._checks.items():
            yield f"/{endpoint}"
            yield from (f"/{endpoint}/{name}" for name in checks)

    async def answer(self, request: web.Request, endpoint: str, check: str) -> web.Response:
        """Response for `/<endpoint>` (empty `check`) or `/<endpoint>/<check>`."""
        if check:
            return await self._one(endpoint, check)
        exclude = set(request.query.getall("exclude", []))
        outcomes = [await self._outcome_unless(check, endpoint, exclude) for check in self._checks[endpoint].values()]
        unknown = exclude - {outcome.excluded_by for outcome in outcomes}
        lines = [outcome.line for outcome in outcomes]
        if unknown:
            names = ",".join(json.dumps(name, ensure_ascii=False) for name in sorted(unknown))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        if any(outcome.failure is not None for outcome in outcomes):
            return _plain("\n".join([*lines, f"{endpoint} check failed", ""]), 500)
        if "verbose" in request.query:
            return _plain("\n".join([*lines, f"{endpoint} check passed", ""]))
        return _plain("ok")

    async def _one(self, endpoint: str, name: str) -> web.Response:
        check = self._checks[endpoint].get(name)
        if check is None:
            return _plain(NOT_FOUND, 404)
        outcome = await self._outcome(check, endpoint)
        if outcome.failure is not None:
            return _plain(f"internal server error: {outcome.failure}\n", 500)
        return web.Response(text="ok", content_type="text/plain", charset="utf-8")

    async def _outcome_unless(self, check: HealthCheck, endpoint: str, exclude: Collection[str]) -> _Outcome:
        """Outcome of a check, unless its name or group is excluded."""
        for name in (check.name, check.group):
            if name in exclude:
                return _Outcome(check.name, excluded_by=name)
        return await self._outcome(check, endpoint)

    async def _outcome(self, check: HealthCheck, endpoint: str) -> _Outcome:
        """Outcome of a check. Logs the first failure and the recovery."""
        place = (endpoint, check.name)
        try:
            await check.probe()
        except Exception as error:  # noqa: BLE001 - whatever a probe raises is its failure
            if place not in self._failing:
                log.warning("health check failed", check=check.name, endpoint=endpoint, error=str(error))
            self._failing.add(place)
            return _Outcome(check.name, failure=str(error) or type(error).__name__)
        if place in self._failing:
            log.info("health check passes again", check=check.name, endpoint=endpoint)
        self._failing.discard(place)
        return _Outcome(check.name)
