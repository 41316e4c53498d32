"""`/healthz`, `/livez`, `/readyz`: named checks, each alone or all together, as kube-apiserver answers them.

Root answers hide why a check failed (the log has it); the path of one check tells it, because that path needs permission.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog
from aiohttp import web

ENDPOINTS = ("healthz", "livez", "readyz")
NOT_FOUND = "404 page not found\n"

log = structlog.get_logger(__name__)


async def _ping() -> None:
    """Says only that the server answers."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """`probe` raises when the part is not well. It belongs to the endpoints named.

    Who excludes a `group` excludes all checks in it. A name may come twice, with other endpoints.
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
    """Answers the three endpoints over a sealed list of checks; `ping` is always first."""

    def __init__(self, checks: Iterable[HealthCheck] = ()) -> None:
        everything = (PING, *checks)
        self._checks: dict[str, Mapping[str, HealthCheck]] = {
            endpoint: {check.name: check for check in everything if endpoint in check.endpoints} for endpoint in ENDPOINTS
        }
        self._failing: set[tuple[str, str]] = set()

    def paths(self) -> Iterator[str]:
        """Every path that is answered here."""
        for endpoint, checks in self._checks.items():
            yield f"/{endpoint}"
            yield from (f"/{endpoint}/{name}" for name in checks)

    async def answer(self, request: web.Request, endpoint: str, check: str) -> web.Response:
        """The answer for `/<endpoint>` (empty `check`) or `/<endpoint>/<check>`."""
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
        """What comes of a check, unless its name or its group is excluded."""
        for name in (check.name, check.group):
            if name in exclude:
                return _Outcome(check.name, excluded_by=name)
        return await self._outcome(check, endpoint)

    async def _outcome(self, check: HealthCheck, endpoint: str) -> _Outcome:
        """What comes of a check. The log is told once that it fails, and why, and once that it passes again."""
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
