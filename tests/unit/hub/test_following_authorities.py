"""How soon a replica acts upon another CA: also where its database was away, and where the change shows after its word."""

import asyncio
from datetime import timedelta

from hub.access.looking import SOON
from hub.authorities import LOOK_EVERY, AuthorityFollower
from hub.domain.certificate import Lifetimes
from hub.issuer.keyvaults import SealedKeys
from hub.issuer.local import make_authority
from hub.issuer.rotating import RotatingIssuer
from hub.services import authorities
from hub.services.authorities import Made
from machinery.errors import UnavailableError
from tests.fakes.bell import Bell
from tests.fakes.databases import SEAL
from tests.fakes.virtual_time import START, in_virtual_time

JITTER = 1.1
"""Looks keep apart from those of other replicas."""


class Following:
    """One replica that follows; `acts` ends when it acts upon the CA that was made. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self.store, self._issuer = Bell(), RotatingIssuer()
        self._follower = AuthorityFollower(self.store, self._issuer, SealedKeys(self.store, SEAL), "one")
        self._made, _ = make_authority(Lifetimes(), START)

    def commit(self) -> None:
        """The CA shows in the database; nothing rings."""
        self.store.transact(authorities.adopt, Made(self._made.certificate, None))

    def acted(self, *steps: tuple[float, str]) -> float:
        """When it acts upon the CA; until then these methods of the store, or of ours, are called at their times."""

        async def told() -> float:
            loop, acting = asyncio.get_running_loop(), asyncio.Event()
            self._issuer.listen(acting.set)
            following = asyncio.create_task(self._follower.run())
            for at, name in steps:
                await asyncio.sleep(at - loop.time())
                getattr(self, name)()
            async with asyncio.timeout(timedelta(minutes=1).total_seconds()):
                await acting.wait()
            following.cancel()
            return loop.time()

        return in_virtual_time(told())

    def ring(self) -> None:
        self.store.ring()

    def lose(self) -> None:
        self.store.failure = UnavailableError("the database is away")

    def come_back(self) -> None:
        """With the CA, which another replica has committed."""
        self.store.failure = None
        self.commit()


def test_a_change_that_shows_a_moment_after_its_word_is_followed_soon() -> None:
    assert Following().acted((7.0, "ring"), (7.2, "commit")) <= 7.0 + SOON.total_seconds() * JITTER


def test_a_replica_that_could_not_look_looks_again_soon_though_word_comes_by_itself() -> None:
    acting = Following().acted((7.0, "lose"), (7.1, "ring"), (8.0, "come_back"))
    assert acting <= 8.0 + LOOK_EVERY.total_seconds() * JITTER
