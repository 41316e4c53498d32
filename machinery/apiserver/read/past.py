"""The query parameter `at`: an object or a list as it was at an earlier time or revision.

Such a request uses the same code as other reads, with a read-only storage of that revision. So pages, selectors, conditions,
versions and tables show the state of that time, and ages are relative to it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from machinery.apiserver.read.reads import ResourceCall
from machinery.durations import parse_duration
from machinery.errors import BadRequestError
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import Clock

PARAMETER = "at"
MAX_DIGITS = 18
AHEAD = timedelta(minutes=1)
"""A client's clock may be ahead of the hub's by this much."""
FORMS = "a time such as 2026-11-01T12:00Z, a time ago such as -2h, or a revision"


def parse_at(text: str, now: datetime) -> datetime | int:
    """Parse a time, a time before `now` such as `-2h`, or a revision. Raises BadRequestError with the valid forms."""
    if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    try:
        moment = now - parse_duration(text[1:]) if text.startswith("-") else parse_time(text)
    except (ValueError, OverflowError) as error:
        hint = ": say in which time zone, as in 2026-11-01T12:00Z" if "time zone" in str(error) else f": give {FORMS}"
        raise BadRequestError(f"at={text[:40]} cannot be read{hint}") from None
    if moment > now + AHEAD:
        raise BadRequestError(f"at={text[:40]} is in the future: the hub's time is {now:%Y-%m-%dT%H:%M:%SZ}")
    return min(moment, now)


async def resolve_call(call: ResourceCall) -> ResourceCall:
    """Return the same request for the state at `at`. Raises BadRequestError, ExpiredError."""
    query, past, verb = call.request.query, call.resource.past, call.attributes.verb
    if verb not in ("get", "list", "watch"):
        raise BadRequestError("at is valid in reads only: earlier states cannot be changed")
    if past is None:
        raise BadRequestError(f"the past of {call.resource.name} is not kept: leave out at")
    if verb == "watch":
        raise BadRequestError("the past does not change: list with at, and watch from a resourceVersion")
    if query.get("resourceVersion"):
        raise BadRequestError("at and resourceVersion exclude each other: give one of them")
    storage, moment = await past(parse_at(query[PARAMETER], call.clock.now()))
    resource = replace(call.resource, extras=None)  # extras exist only for the current state
    return replace(call, resource=resource, clock=_Stopped(moment, call.clock), storage=storage)


@dataclass(frozen=True, slots=True)
class _Stopped(Clock):
    """A clock fixed at one instant."""

    at: datetime
    clock: Clock

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.clock.monotonic()
