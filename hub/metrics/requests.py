"""Metrics of the HTTPS door: requests, watches, limits, logins."""

from collections.abc import Mapping
from typing import Any

from hub.access import AccessLimits
from hub.https_door.server import HttpsServer
from machinery.apiserver.http.draining import Draining
from machinery.observability.metrics import Registry, counter, gauge, histogram

ANSWERED = counter(
    "hub_api_requests_total",
    "Requests at the HTTPS door; code 0: the client went before the answer.",
    "verb",
    "resource",
    "code",
)
SECONDS = histogram("hub_api_request_seconds", "How long requests took; watches are not among them.", "verb")
IN_FLIGHT = gauge("hub_api_in_flight", "Requests that are being answered; watches are not among them.")
WATCHES = gauge("hub_watchers", "Open watches, by resource.", "resource")
BEHIND = counter("hub_watchers_behind_total", "Watchers that were too slow, and read on from the change log.")
SEATS = gauge("hub_limit_seats_taken", "Requests at both doors that have a seat of their level.", "level")
CAPACITY = gauge("hub_limit_seats", "Seats that a level has; none: as many as come.", "level")
WAITING = gauge("hub_limit_waiting", "Requests at both doors that wait for a seat of their level.", "level")
REFUSED = counter("hub_limit_refused_total", "Requests that found no seat in time and were told to try again.", "level")
TOO_FAST = counter("hub_limit_rate_refused_total", "Requests that were refused because their sender asks too often.")
LOGINS = counter(
    "hub_logins_total", "Tokens that came to be exchanged for a certificate, by kind of authenticator.", "kind", "result"
)
METRICS = (ANSWERED, SECONDS, IN_FLIGHT, WATCHES, BEHIND, SEATS, CAPACITY, WAITING, REFUSED, TOO_FAST, LOGINS)


def add_requests(registry: Registry, operators: HttpsServer, draining: Draining, limits: AccessLimits) -> None:
    counts, watches = operators.server.counts, operators.server.watches
    registry.bind(ANSWERED, lambda: counts.answered)
    registry.bind(SECONDS, lambda: counts.seconds)
    registry.bind(IN_FLIGHT, lambda: draining.in_flight)
    registry.bind(WATCHES, watches.by_resource)
    registry.bind(BEHIND, lambda: operators.feed.behind)
    registry.bind(SEATS, lambda: _of_levels(limits, "taken"))
    registry.bind(CAPACITY, lambda: _of_levels(limits, "seats"))
    registry.bind(WAITING, lambda: _of_levels(limits, "waiting"))
    registry.bind(REFUSED, lambda: _of_levels(limits, "refused"))
    registry.bind(TOO_FAST, lambda: limits.rates.snapshot()["refused"])
    registry.bind(LOGINS, lambda: {tuple(key.split(" ", 1)): count for key, count in operators.exchange.outcomes.items()})


def _of_levels(limits: AccessLimits, what: str) -> Mapping[str, Any]:
    levels = limits.pools.snapshot()
    return {level: told[what] for level, told in levels.items() if isinstance(told[what], int)}
