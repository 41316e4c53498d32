"""How many requests are worked on at once, in levels that cannot take each other's room, and how fast one identity may ask.

A level has seats. Who finds none waits in a queue of its own identity, for a bounded time; a free seat goes to the identities
in turn, and no identity holds more than half of them. So one that asks too much waits for itself, and the others pass. Who
finds no room in the queue, or waits in vain, is told when to try again: the more are refused, the later.

After Kubernetes' priority and fairness, with queues by identity where it shuffles identities into shards.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from math import ceil
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from machinery.errors import TooManyRequestsError
from machinery.runtime.clock import Clock

BODY_LIMIT = 3 * 1024 * 1024
"""The largest body of a request, and how much a patch may copy, in bytes: on every door."""
OBJECT_LIMIT = 3 * 1024 * 1024 // 2
"""The largest object, in bytes of its JSON: as in Kubernetes, whose etcd takes 1.5 MiB."""
OBJECT_CEILING = OBJECT_LIMIT + 256 * 1024
"""What was larger before goes on, a few bytes larger at each write, up to this."""
REQUEST_LIMIT = timedelta(seconds=60)
"""How long a request may take at most."""
PATIENCE = 4
"""A request waits for a seat for this part of its time: a quarter."""
SHARE = 2
"""An identity holds at most this part of a level's seats: one half."""
MAX_RETRY_AFTER = 32
TOO_MANY = "too many requests, please try again later"
BACK_SOON = timedelta(seconds=5)
MAX_IDENTITIES = 10_000


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """A part of a server's capacity. No `seats`: no limit. `queue`: how many wait; `each`: how many of one identity."""

    name: str
    seats: int = 0
    queue: int = 1_000
    each: int = 50

    @property
    def uid(self) -> str:
        """What clients are told instead of the name."""
        return str(uuid5(NAMESPACE_OID, f"priority-level/{self.name}"))


def origin(address: str) -> str:
    """As which host an address counts, of which an IPv6 host has a whole /64; "" when it is no address."""
    try:
        there = ip_address(address)
    except ValueError:
        return ""
    if isinstance(there, IPv6Address):
        there = there.ipv4_mapped or there
    return str(there) if isinstance(there, IPv4Address) else str(ip_network((there, 64), strict=False))


class Pushback:
    """When who is refused should come again, in seconds: doubles while many are refused, and falls slowly when few are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value = 1
        self._changed = clock.monotonic()
        self._refusals: deque[float] = deque(maxlen=3 * MAX_RETRY_AFTER)

    @property
    def value(self) -> int:
        return self._value

    def refused(self) -> timedelta:
        """Counts a refusal; what it is told."""
        now = self._clock.monotonic()
        self._refusals.append(now)
        if now - self._changed >= self._value:
            lately = sum(1 for moment in self._refusals if now - moment <= self._value)
            if lately >= 3 * self._value:
                self._set(min(2 * self._value, MAX_RETRY_AFTER), now)
            elif lately < self._value:
                self._set(self._value - 1, now)
        return timedelta(seconds=self._value)

    def _set(self, value: int, now: float) -> None:
        self._value = max(value, 1)
        self._changed = now


class Pool:
    """The seats of one level. `take` and `give` always come in pairs."""

    def __init__(self, level: PriorityLevel, clock: Clock) -> None:
        self.level = level
        self.uid = level.uid
        self._share = ceil(level.seats / SHARE)
        self._pushback = Pushback(clock)
        self._taken = self._waiting = self._refused = 0
        self._held: dict[str, int] = {}
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, identity: str, patience: timedelta) -> None:
        """A seat. Raises TooManyRequestsError when none becomes free within `patience`, or too many wait already."""
        if not self.level.seats or (identity not in self._queues and self._has_room(identity)):
            self._seat(identity)
            return
        mine = self._queues.get(identity)
        if self._waiting >= self.level.queue or (mine is not None and len(mine) >= self.level.each):
            raise self._refusal()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(identity, deque()).append(turn)
        self._waiting += 1
        try:
            async with asyncio.timeout(patience.total_seconds()):
                await turn
        except BaseException as error:
            self._leave(identity, turn)
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def give(self, identity: str) -> None:
        """The seat is free again."""
        self._taken -= 1
        left = self._held[identity] - 1
        if left:
            self._held[identity] = left
        else:
            del self._held[identity]
        self._invite()

    def _has_room(self, identity: str) -> bool:
        return self._taken < self.level.seats and self._held.get(identity, 0) < self._share

    def _seat(self, identity: str) -> None:
        self._taken += 1
        self._held[identity] = self._held.get(identity, 0) + 1

    def _invite(self) -> None:
        """Gives free seats to identities in turn; one that has had its turn goes to the end."""
        for _ in range(len(self._queues)):
            if self._taken >= self.level.seats:
                return
            identity = next(iter(self._queues))
            self._queues.move_to_end(identity)
            if self._has_room(identity):
                self._call(identity)

    def _call(self, identity: str) -> None:
        """Seats the first of an identity that still waits."""
        turns = self._queues[identity]
        while turns:
            turn = turns.popleft()
            self._waiting -= 1
            if not turn.cancelled():
                self._seat(identity)
                turn.set_result(None)
                break
        if not turns:
            del self._queues[identity]

    def _leave(self, identity: str, turn: asyncio.Future[None]) -> None:
        """Gives up waiting; a seat that was given in the same moment is given back."""
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
        """Numbers for who looks into a running server."""
        return {
            "seats": self.level.seats or "unlimited",
            "taken": self._taken,
            "waiting": self._waiting,
            "identities": len(self._held.keys() | self._queues.keys()),
            "refused": self._refused,
            "retry_after": self._pushback.value,
        }


class RefusalQueue:
    """Turns of addresses that are refused too often: two at once in all, one of an address, and a pause after each.

    So neither their number nor that of their connections makes more work than a bounded part of a processor.
    """

    PAUSE = timedelta(milliseconds=20)
    LEVEL = PriorityLevel("refused", seats=2, queue=100_000, each=100_000)

    def __init__(self, clock: Clock) -> None:
        self._pool = Pool(self.LEVEL, clock)

    @asynccontextmanager
    async def one(self, host: str) -> AsyncIterator[None]:
        """A block in turn. Raises TooManyRequestsError when the turn does not come in time."""
        await self._pool.take(host, REQUEST_LIMIT / PATIENCE)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(self.PAUSE.total_seconds(), self._pool.give, host)


class Pools:
    """The levels of a server, by name."""

    def __init__(self, levels: Iterable[PriorityLevel], clock: Clock) -> None:
        self._pools = {level.name: Pool(level, clock) for level in levels}

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def snapshot(self) -> dict[str, Any]:
        return {name: pool.snapshot() for name, pool in self._pools.items()}


class Openings:
    """How many of what stays open each identity has, and all have together. 0: any number."""

    def __init__(self, each: int, together: int) -> None:
        self._each = each
        self._together = together
        self._open: Counter[str] = Counter()
        self._total = self._refused = 0

    @contextmanager
    def one(self, identity: str) -> Iterator[None]:
        """A block around one of them; "" is not limited and does not count. Raises TooManyRequestsError."""
        if not identity:
            yield
            return
        if (self._each and self._open[identity] >= self._each) or (self._together and self._total >= self._together):
            self._refused += 1
            raise TooManyRequestsError(f"{TOO_MANY}: too many watches are open", retry_after=BACK_SOON)
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
        """Numbers for who looks into a running server."""
        return {"identities": len(self._open), "open": self._total, "refused": self._refused}


class Rates:
    """A token bucket per identity: `burst` requests at once, then `rate` a second. A rate of 0: no limit."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = max(burst, 1)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._refused = 0

    def check(self, identity: str) -> None:
        """Takes a token. Raises TooManyRequestsError, which says when there is one again."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        tokens, at = self._buckets.pop(identity, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        enough = tokens >= 1
        self._buckets[identity] = (tokens - 1 if enough else tokens, now)
        if len(self._buckets) > MAX_IDENTITIES:
            self._buckets.popitem(last=False)  # whoever has not asked for longest, and so most likely has all of its tokens
        if not enough:
            self._refused += 1
            raise TooManyRequestsError(TOO_MANY, retry_after=timedelta(seconds=(1 - tokens) / self._rate))

    def has_room(self, identity: str) -> bool:
        """Whether `check` would not raise now; takes no token."""
        if not self._rate or identity not in self._buckets:
            return True
        tokens, at = self._buckets[identity]
        return tokens + (self._clock.monotonic() - at) * self._rate >= 1

    def snapshot(self) -> dict[str, Any]:
        return {"rate": self._rate or "unlimited", "identities": len(self._buckets), "refused": self._refused}
