"""A hub that dies at any write of joining and issuing: the agent asks again with the same bytes, and all is as it would be."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hub.api.certificates import CertificateRecord, IssuedCertificate, Profile, Purpose
from hub.api.certificatesigningrequests.request import RequestPhase, RequestState
from hub.api.managedclusters.cluster import JoinRequest
from hub.ports import Store, Transaction
from hub.registry.certificatesigningrequests import issuance
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.certificatesigningrequests.submission import submit
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.identity import SerialNumber, cluster_name
from machinery.runtime.clock import ManualClock
from tests.fakes.databases import SqlDatabase
from tests.fakes.inline_store import InlineStore
from tests.fakes.issuer import WordIssuer
from tests.fakes.registration import AGENT, LIFETIMES, Newcomer
from tests.trials import soaked, trials

WRITES = frozenset(("put", "delete", "add", "admit", "revoke", "hold", "issue", "count", "use", "spend", "release", "take"))
PARTS = frozenset(("objects", "certificates", "credentials"))
AT_MOST = 60
"""Moments; a join has fewer."""
STEP = trials(4, 1)


class KilledError(Exception):
    """The process is gone."""


@dataclass
class Life:
    """Dies at the n-th moment, counted from 1; 0: never. There is one before and after each write, and around each commit."""

    fatal: int = 0
    moments: int = 0

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.fatal:
            raise KilledError


class Mortal:
    """Whatever it stands for, with a moment before and after each write."""

    def __init__(self, inner: Any, life: Life) -> None:
        self._inner, self._life = inner, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in PARTS:
            return Mortal(found, self._life)
        if name not in WRITES or not callable(found):
            return found

        def written(*args: Any, **kwargs: Any) -> Any:
            self._life.moment()
            result = found(*args, **kwargs)
            self._life.moment()
            return result

        return written


class NumberedIssuer(WordIssuer):
    """Tells the serial in its words: two certificates are never the same."""

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:
        issued = super().issue(profile, serial, now)
        return IssuedCertificate(serial, issued.chain + f"{serial:x}\n".encode())


@dataclass
class Hub:
    """The steps of a join, each a transaction, in one life."""

    store: Store
    life: Life
    issuer: WordIssuer
    newcomer: Newcomer
    request: bytes

    async def _run(self, step: Callable[[Transaction], Any]) -> Any:
        def mortal(tx: Transaction) -> Any:
            result = step(Mortal(tx, self.life))
            self.life.moment()
            return result

        result = await self.store.run(mortal)
        self.life.moment()
        return result

    async def joined(self, requester: CertificateRecord) -> tuple[str, RequestState]:
        """What the agent does, and what the hub does for it."""
        joining = JoinRequest(self.newcomer.cluster, "uid-1", AGENT, credential=requester.credential)
        await self._run(lambda tx: clusters.ensure(tx, joining, requester.user))
        submission = self.newcomer.submission(requester, request=self.request)
        name: str = await self._run(lambda tx: submit(tx, submission))
        await self._run(lambda tx: requests.decide(tx, name, approve=True, reason="R", message="m", actor="ann"))
        await self._run(lambda tx: issuance.issue(tx, name, Mortal(self.issuer, self.life), LIFETIMES, "hub"))
        return name, await self.store.read(lambda tx: requests.state(tx, name))


@asynccontextmanager
async def born(database: SqlDatabase, clock: ManualClock, life: Life, newcomer: Newcomer, request: bytes) -> AsyncIterator[Hub]:
    async with database.opened(clock) as store:
        yield Hub(store, life, NumberedIssuer(), newcomer, request)


async def _credential(database: SqlDatabase, clock: ManualClock, newcomer: Newcomer) -> CertificateRecord:
    """A bootstrap credential with one use."""
    made = newcomer.bootstrap(uses=1)
    record = newcomer.store.transact(lambda tx: tx.credentials.by_id(made.credential or newcomer.bootstrap().credential))  # type: ignore[arg-type]
    async with database.opened(clock) as store:

        def kept(tx: Transaction) -> None:
            assert record is not None
            tx.credentials.add(record)
            tx.certificates.add(made)

        await store.run(kept)
    return made


@soaked(AT_MOST // STEP)
async def test_whenever_the_hub_dies_one_request_has_one_certificate_and_nobody_is_locked_out(
    database: SqlDatabase, clock: ManualClock
) -> None:
    """Each moment has a cluster of its own, with a credential that has one use."""
    tried = 0
    for fatal in range(1, AT_MOST, STEP):
        cluster = cluster_name(f"edge-{fatal}")
        newcomer = Newcomer(InlineStore(clock), cluster=cluster, key=pki.generate_key())
        request = newcomer.request()
        requester = await _credential(database, clock, newcomer)
        told: RequestState | None = None
        async with born(database, clock, Life(fatal), newcomer, request) as hub:
            try:
                _, told = await hub.joined(requester)
            except KilledError:
                tried += 1
        async with born(database, clock, Life(), newcomer, request) as hub:
            name, state = await hub.joined(requester)
            again, same = await hub.joined(requester)
            stored = await hub.store.read(lambda tx, name=name: requests.find(tx, name))  # type: ignore[misc]
            records = await hub.store.read(lambda tx, uid=stored.uid: tx.certificates.of_request(uid))  # type: ignore[misc]
            every = await hub.store.read(lambda tx, cluster=cluster: tx.certificates.of_cluster(cluster))  # type: ignore[misc]
        assert (name, state) == (again, same), fatal
        assert told in (None, state), fatal
        assert state.phase is RequestPhase.ISSUED, fatal
        assert sorted(record.purpose for record in records) == [Purpose.AGENT, Purpose.RECOVERY], fatal
        assert [record for record in every if record.request_uid not in (None, stored.uid)] == [], fatal
        left = {line for chain in (state.certificate, state.recovery_certificate) for line in chain.decode().splitlines()}
        assert {f"{record.serial:x}" for record in records} <= left, fatal
    assert tried >= 20 / STEP, f"only {tried} moments"
