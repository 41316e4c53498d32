"""Limits: seats per priority level, queues per identity, request rates.

A priority level has seats. A request needs a seat; while none is free, it waits in the queue of its identity for a bounded
time. Free seats go to the identities in turn, and no identity gets more than half of the seats. So an identity with too many
requests delays only itself. If the queue is full, or the wait is too long, the request is refused with a Retry-After that grows
with the number of refusals.

The model is Kubernetes' API priority and fairness, with one queue per identity instead of shuffle sharding.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from math import ceil
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from machinery.errors import TooManyRequestsError
from machinery.runtime.clock import Clock
from machinery.runtime.congestion import Congestion

BODY_LIMIT = 3 * 1024 * 1024
"""Largest body of a request in bytes, at both doors. Also the most bytes that a patch may copy."""
OBJECT_LIMIT = 3 * 1024 * 1024 // 2
"""Largest JSON of an object in bytes, as in Kubernetes with etcd's limit of 1.5 MiB."""
OBJECT_CEILING = OBJECT_LIMIT + 256 * 1024
"""An object above OBJECT_LIMIT may grow to this size, by a few bytes per write."""
REQUEST_LIMIT = timedelta(seconds=60)
WAIT_DIVISOR = 4
"""A request waits for a seat for at most 1/WAIT_DIVISOR of its time limit."""
SHARE = 2
"""An identity holds at most 1/SHARE of a level's seats."""
MAX_RETRY_AFTER = 32
TOO_MANY = "too many requests, please try again later"
BACK_SOON = timedelta(seconds=5)
MAX_IDENTITIES = 10_000


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """A part of a server's capacity. `seats` 0: unlimited. At most `queue` requests wait; at most `each` of one identity."""

    name: str
    seats: int = 0
    queue: int = 1_000
    each: int = 50
    yields: bool = False
    """Whether the level gives no seats while the event loop is late."""

    @property
    def uid(self) -> str:
        """Opaque id of the level, sent to clients."""
        return str(uuid5(NAMESPACE_OID, f"priority-level/{self.name}"))


def origin(address: str) -> str:
    """Return the key by which limits count an address: an IPv4 address or an IPv6 /64; "" for anything else."""
    try:
        there = ip_address(address)
    except ValueError:
        return ""
    if isinstance(there, IPv6Address):
        there = there.ipv4_mapped or there
    return str(there) if isinstance(there, IPv4Address) else str(ip_network((there, 64), strict=False))


class Pushback:
    """Retry-After of refusals. It doubles while many requests are refused, and decreases slowly while few are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.value = 1
        self._changed = clock.monotonic()
        self._refusals: deque[float] = deque(maxlen=3 * MAX_RETRY_AFTER)

    def refused(self) -> timedelta:
        """Count a refusal and return its Retry-After."""
        now = self._clock.monotonic()
        self._refusals.append(now)
        if now - self._changed >= self.value:
            lately = sum(1 for moment in self._refusals if now - moment <= self.value)
            if lately >= 3 * self.value:
                self.value, self._changed = min(2 * self.value, MAX_RETRY_AFTER), now
            elif lately < self.value:
                self.value, self._changed = max(self.value - 1, 1), now
        return timedelta(seconds=self.value)


class Pool:
    """The seats of one level. Each `take` needs one `give`. `congestion` delays seats of a level that `yields`; None: none."""

    def __init__(self, level: PriorityLevel, clock: Clock, congestion: Congestion | None = None) -> None:
        self.level = level
        self.uid = level.uid
        self._share = ceil(level.seats / SHARE)
        self._pushback = Pushback(clock)
        self._taken = self._waiting = self._refused = 0
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._congestion = congestion if level.yields and level.seats else None
        if self._congestion is not None:
            self._congestion.callbacks.append(self._invite)

    async def take(self, identity: str, within: timedelta) -> None:
        """Take a seat. Raises TooManyRequestsError if no seat becomes free in the time `within`, or the queue is full."""
        if not self.level.seats or (identity not in self._queues and self._has_room(identity) and self._may_begin()):
            self._seat(identity)
            return
        mine = self._queues.get(identity)
        if self._waiting >= self.level.queue or (mine is not None and len(mine) >= self.level.each):
            raise self._refusal()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(identity, deque()).append(turn)
        self._waiting += 1
        try:
            async with asyncio.timeout(within.total_seconds()):
                await turn
        except BaseException as error:
            self._leave(identity, turn)
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def give(self, identity: str) -> None:
        self._taken -= 1
        self._held[identity] -= 1
        if not self._held[identity]:
            del self._held[identity]
        self._invite()

    @asynccontextmanager
    async def seat(self, identity: str, within: timedelta) -> AsyncIterator[None]:
        """Hold a seat for the block. Raises the errors of `take`."""
        await self.take(identity, within)
        try:
            yield
        finally:
            self.give(identity)

    def _has_room(self, identity: str) -> bool:
        return self._taken < self.level.seats and self._held[identity] < self._share

    def _may_begin(self) -> bool:
        return self._congestion is None or self._congestion.admit()

    def _seat(self, identity: str) -> None:
        self._taken += 1
        self._held[identity] += 1

    def _invite(self) -> None:
        for _ in range(len(self._queues)):
            if self._taken >= self.level.seats:
                return
            identity, turns = next(iter(self._queues.items()))
            if self._has_room(identity) and not self._may_begin():
                return
            self._queues.move_to_end(identity)
            while turns and self._has_room(identity):
                turn = turns.popleft()
                self._waiting -= 1
                if not turn.cancelled():
                    self._seat(identity)
                    turn.set_result(None)
                    break
            if not turns:
                del self._queues[identity]

    def _leave(self, identity: str, turn: asyncio.Future[None]) -> None:
        """Stop waiting. Give the seat back if the request has just received one."""
        if turn.done() and not turn.cancelled():
            self.give(identity)
            return
        turns = self._queues.get(identity)
        if turns is not None and turn in turns:
            turns.remove(turn)
            self._waiting -= 1
            if not turns:
                del self._queues[identity]

    def _refusal(self) -> TooManyRequestsError:
        self._refused += 1
        return TooManyRequestsError(TOO_MANY, retry_after=self._pushback.refused())

    def snapshot(self) -> dict[str, Any]:
        return {
            "seats": self.level.seats or "unlimited",
            "taken": self._taken,
            "waiting": self._waiting,
            "identities": len(self._held.keys() | self._queues.keys()),
            "refused": self._refused,
            "retry_after": self._pushback.value,
        }


class Seat:
    """A place in a count: a seat of a Pool, or a connection of a listener. `leave` gives the place back and is idempotent."""

    def __init__(self, give: Callable[[], None]) -> None:
        self._give: Callable[[], None] | None = give

    def leave(self) -> None:
        give, self._give = self._give, None
        if give is not None:
            give()


class RefusalQueue:
    """Queue of refused requests. Admits two at a time, of two addresses. A request keeps its seat until PAUSE after its end.

    This bounds the processor time of refusals for any number of addresses and connections.
    """

    PAUSE = timedelta(milliseconds=20)
    LEVEL = PriorityLevel("refused", seats=2, queue=100_000, each=100_000)

    def __init__(self, clock: Clock) -> None:
        self._pool = Pool(self.LEVEL, clock)

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        """Wait for a seat, and hold it during the block. `host`: a result of `origin`. Raises the errors of `Pool.take`."""
        await self._pool.take(host, REQUEST_LIMIT / WAIT_DIVISOR)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(self.PAUSE.total_seconds(), self._pool.give, host)


class Openings:
    """Bounds requests, such as open watches: `each` per identity, `together` in total; 0: unlimited. `refusal`: the message."""

    def __init__(self, each: int, together: int, refusal: str = "too many watches are open") -> None:
        self._each = each
        self._together = together
        self._refusal = refusal
        self._open: Counter[str] = Counter()
        self._total = self._refused = 0

    @contextmanager
    def one(self, identity: str) -> Iterator[None]:
        """Count one request during the block, unless `identity` is "". Raises TooManyRequestsError if a bound is reached."""
        if not identity:
            yield
            return
        if (self._each and self._open[identity] >= self._each) or (self._together and self._total >= self._together):
            self._refused += 1
            raise TooManyRequestsError(f"{TOO_MANY}: {self._refusal}", retry_after=BACK_SOON)
        self._open[identity] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._open[identity] -= 1
            if not self._open[identity]:
                del self._open[identity]

    def snapshot(self) -> dict[str, Any]:
        return {"identities": len(self._open), "open": self._total, "refused": self._refused}


class Rates:
    """Token bucket per identity: `burst` requests without a pause, then `rate` per second. Rate 0: unlimited."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = max(burst, 1)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._refused = 0

    def check(self, identity: str) -> None:
        """Take a token of the bucket. Raises TooManyRequestsError with the time until the next token."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        tokens, at = self._buckets.pop(identity, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        enough = tokens >= 1
        self._buckets[identity] = (tokens - 1 if enough else tokens, now)
        if len(self._buckets) > MAX_IDENTITIES:
            self._buckets.popitem(last=False)  # the longest unused bucket, which is most likely full
        if not enough:
            self._refused += 1
            raise TooManyRequestsError(TOO_MANY, retry_after=timedelta(seconds=(1 - tokens) / self._rate))

    def has_room(self, identity: str) -> bool:
        """Whether `check` would succeed now. It takes no token."""
        if not self._rate or identity not in self._buckets:
            return True
        tokens, at = self._buckets[identity]
        return tokens + (self._clock.monotonic() - at) * self._rate >= 1

    def snapshot(self) -> dict[str, Any]:
        return {"rate": self._rate or "unlimited", "identities": len(self._buckets), "refused": self._refused}
