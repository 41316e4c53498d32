"""Bounds the cost of bearer token checks at addresses with too many refusals."""

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from hashlib import blake2b

from machinery.apiserver.http.limits import BACK_SOON, TOO_MANY, Rates, RefusalQueue, origin
from machinery.errors import TooManyRequestsError, UnauthorizedError
from machinery.runtime.clock import Clock

REFUSED_FOR = timedelta(seconds=10)
"""How long a refused token is remembered. If it becomes valid meanwhile, it is refused for the rest at such an address."""
MAX_REMEMBERED = 10_000


class TokenChecks:
    """Decides whether and when a token is checked, by its address and by earlier results.

    Below the rate of refusals every token is checked at once. Above it, a token that was valid before is checked at once, one
    that was refused recently is refused without a check, and any other token waits in a queue with turns per address. The rate
    thus never refuses a valid token. Tokens are remembered as keyed hashes only.
    """

    def __init__(self, refusals: Rates, clock: Clock) -> None:
        self._refusals = refusals
        self._clock = clock
        self._turns = RefusalQueue(clock)
        self._key = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._bad: OrderedDict[bytes, float] = OrderedDict()

    @asynccontextmanager
    async def one(self, address: str, token: str) -> AsyncIterator[None]:
        """A block around one check; UnauthorizedError in it marks the token as bad. Raises TooManyRequestsError."""
        host = origin(address)
        known = blake2b(token.encode(), key=self._key, digest_size=16).digest()
        if known in self._good or self._refusals.has_room(host):
            with self._remembering(known):
                yield
            return
        self._check_refused(known)
        async with self._turns.one(host):
            self._check_refused(known)  # the token may have been refused meanwhile
            with self._remembering(known):
                yield

    def _check_refused(self, known: bytes) -> None:
        if self._bad.get(known, 0.0) > self._clock.monotonic():
            raise TooManyRequestsError(TOO_MANY, retry_after=BACK_SOON)

    @contextmanager
    def _remembering(self, known: bytes) -> Iterator[None]:
        try:
            yield
        except UnauthorizedError:
            self._good.pop(known, None)
            self._bad.pop(known, None)
            self._bad[known] = self._clock.monotonic() + REFUSED_FOR.total_seconds()
            if len(self._bad) > MAX_REMEMBERED:
                self._bad.popitem(last=False)
            raise
        self._bad.pop(known, None)
        self._good[known] = None
        self._good.move_to_end(known)
        if len(self._good) > MAX_REMEMBERED:
            self._good.popitem(last=False)
