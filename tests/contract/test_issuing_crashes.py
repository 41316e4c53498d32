"""What several hubs decide at once is what one would, and a hub that dies at any write leaves one certificate."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from hub.api.approvalrules import flag_rules
from hub.api.certificates import CertificateRecord, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.api.certificatesigningrequests import RequestPhase, RequestState, Submission, phase
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.controllers.manager import ControllerManager
from hub.extensions.settings import load
from hub.ports import Store, Transaction
from hub.registry import namespaces
from hub.registry.approvalrules import approval
from hub.registry.approvalrules.approval import RULE_ACTOR
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import issuance, service as requests, submission
from hub.registry.certificatesigningrequests.submission import submit
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.identity import ClusterName, SerialNumber, agent_subject, cluster_name
from machinery.meta import conditions
from machinery.meta.objects import Document, Query
from machinery.runtime.clock import ManualClock
from machinery.runtime.tasks import GuardedTasks
from tests.checks import present
from tests.fakes.authority import WordIssuer
from tests.fakes.databases import SqlDatabase
from tests.fakes.fleetwork import addon, put
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, LIFETIMES, Newcomer
from tests.trials import soaked, trials

WRITES = frozenset(("put", "delete", "add", "admit", "revoke", "hold", "issue", "count", "use", "spend", "release", "take"))
PARTS = frozenset(("objects", "certificates", "credentials"))
AT_MOST = 60  # moments; a join has fewer
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
    """Returns a text with the serial: two certificates are never the same."""

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:
        return IssuedCertificate(serial, super().issue(profile, serial, now).chain + f"{serial:x}\n".encode())


@dataclass
class Hub:
    """The steps of a join, each a transaction, in one life."""

    store: Store
    life: Life
    issuer: WordIssuer
    newcomer: Newcomer
    request: bytes
    by_rule: bool

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
        issuer = Mortal(self.issuer, self.life)
        if self.by_rule:
            sign = partial(issuance.sign_request, issuer=issuer, lifetimes=LIFETIMES)
            await self._run(lambda tx: approval.review(tx, name, flag_rules(("*",)), "hub", sign=sign))
        else:
            await self._run(lambda tx: requests.decide(tx, name, approve=True, reason="R", message="m", actor="ann"))
        await self._run(lambda tx: issuance.issue(tx, name, issuer, LIFETIMES, "hub"))
        return name, await self.store.read(lambda tx: requests.state(tx, name))


@asynccontextmanager
async def born(database: SqlDatabase, clock: ManualClock, life: Life, *of_hub: Any) -> AsyncIterator[Hub]:
    async with database.opened(clock) as store:
        yield Hub(store, life, NumberedIssuer(), *of_hub)


async def _credential(database: SqlDatabase, clock: ManualClock, newcomer: Newcomer) -> CertificateRecord:
    """A bootstrap credential with one use."""
    made = newcomer.bootstrap(uses=1)
    record = present(newcomer.store.transact(lambda tx: tx.credentials.by_id(present(made.credential))))
    async with database.opened(clock) as store:
        await store.run(lambda tx: tx.credentials.add(record))
        await store.run(lambda tx: tx.certificates.add(made))
    return made


@soaked(AT_MOST // STEP)
async def test_whenever_a_hub_dies_a_request_has_one_certificate(database: SqlDatabase, clock: ManualClock) -> None:
    """Each moment has a cluster of its own, with a credential that has one use. A rule or an operator approves."""
    tried = 0
    for fatal in range(1, AT_MOST, STEP):
        cluster = cluster_name(f"edge-{fatal}")
        newcomer = Newcomer(InlineStore(clock), cluster=cluster, key=pki.generate_key())
        of_hub, requester = (newcomer, newcomer.request(), fatal // STEP % 2), await _credential(database, clock, newcomer)
        answered: RequestState | None = None
        async with born(database, clock, Life(fatal), *of_hub) as hub:
            try:
                _, answered = await hub.joined(requester)
            except KilledError:
                tried += 1
        async with born(database, clock, Life(), *of_hub) as hub:
            name, state = await hub.joined(requester)
            again, same = await hub.joined(requester)
            stored = await hub.store.read(lambda tx, name=name: requests.find(tx, name))  # type: ignore[misc]
            records = await hub.store.read(lambda tx, uid=stored.uid: tx.certificates.of_request(uid))  # type: ignore[misc]
            every = await hub.store.read(lambda tx, cluster=cluster: tx.certificates.of_cluster(cluster))  # type: ignore[misc]
        assert (name, state) == (again, same), fatal
        assert answered in (None, state), fatal
        assert state.phase is RequestPhase.ISSUED, fatal
        assert sorted(record.purpose for record in records) == [Purpose.AGENT, Purpose.RECOVERY], fatal
        assert [record for record in every if record.request_uid not in (None, stored.uid)] == [], fatal
        left = {line for chain in (state.certificate, state.recovery_certificate) for line in chain.decode().splitlines()}
        assert {f"{record.serial:x}" for record in records} <= left, fatal
    assert tried >= 20 / STEP, f"only {tried} moments"


HUBS, CLUSTERS = 3, 15
NAMES = [ClusterName(f"c{number:02d}") for number in range(CLUSTERS)]
AT_ONCE = {"auto_approve": ("*",), "taint_delay": "0s", "brake_share": 0.0, "default_cluster_set": False}
ONCE_EACH = (
    ("certificatesigningrequests", "--auto-approve", "MODIFIED"),
    *(("managedclusters", "--auto-approve", "MODIFIED"), ("managedclusters", "availability", "MODIFIED")),
    *(("managedclusters", "taints", "MODIFIED"), ("managedclusters", "removal", "DELETED")),
    *(("managedclusteraddons", "addon-health", "MODIFIED"), ("managedclusteraddons", "removal", "DELETED")),
    *(("namespaces", "--auto-approve", "ADDED"), ("namespaces", "namespaces", "DELETED")),
    ("namespaces", "namespaces", "ADDED"),
)  # kind, who, what: for every cluster once, however many hubs there are
Holds = Callable[[Transaction], bool]


@asynccontextmanager
async def working(store: Store, clock: ManualClock, issuer: WordIssuer, count: int) -> AsyncIterator[None]:
    """So many hubs' controllers on one store."""
    began = clock.now()
    async with GuardedTasks("hubs") as tasks:
        for _ in range(count):
            settings = load(AT_ONCE, None, {})
            builder = ControllerBuilder(store, issuer, settings, Lifetimes(), clock=clock, since=lambda _tx: began)
            await ControllerManager(builder).start(tasks)
        yield
        await tasks.stop()


def come(tx: Transaction, name: ClusterName, issuer: WordIssuer, key: bytes) -> None:
    """A cluster joins, and asks for its certificate."""
    terms, own = credentials.CredentialTerms(name, 1, Lifetimes().bootstrap), pki.public_key_of(pki.generate_key())
    record, issued = credentials.create(tx, terms, own, issuer, lifetimes=Lifetimes(), actor="admin")
    requester = present(tx.certificates.by_serial(issued.serial))
    clusters.ensure(tx, JoinRequest(name, f"uid-{name}", AGENT, credential=record.id), "agent")
    submission.submit(tx, Submission(name, AGENT, pki.build_request(agent_subject(name, AGENT), key), requester, f"uid-{name}"))


def touch(tx: Transaction, mark: str) -> None:
    """Something about every cluster changes, so that all are looked at."""
    for name in NAMES:
        stored = clusters.find(tx, name)
        clusters.put(tx, doc.with_metadata(stored.document, labels={"mark": mark}), stored, "admin")


def delete(tx: Transaction) -> None:
    for name in NAMES:
        put(tx, ADDONS, addon("metrics", name, "True"))
        clusters.remove(tx, clusters.find(tx, name), "admin")


def every(holds: Callable[[Transaction, Document], bool]) -> Holds:
    return lambda tx: all(holds(tx, clusters.find(tx, name).document) for name in NAMES)


def is_let_in(tx: Transaction, cluster: Document) -> bool:
    found = conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED)
    held = [record for record in tx.certificates.of_cluster(ClusterName(doc.name(cluster))) if record.purpose is Purpose.AGENT]
    return found is not None and found.status == conditions.TRUE and bool(held)


def has_new_namespace(tx: Transaction, cluster: Document) -> bool:
    stored = namespaces.get(tx, doc.name(cluster))
    return stored is not None and not doc.is_deleting(stored.document)


def written(tx: Transaction) -> dict[tuple[str, str, str], int]:
    """How often controllers and rules wrote what, by kind, by who, and by what happened to it; but for Events."""
    own = [change for change in tx.changes.since(0, limit=100_000) if change.actor.startswith((ACTOR, RULE_ACTOR))]
    keys = ((change.kind.partition(".")[0], change.actor.rpartition(":")[2], change.type.value) for change in own)
    return Counter(key for key in keys if key[0] != "events")


async def test_several_hubs_at_once_decide_judge_and_remove_as_one_would(store: Store, clock: ManualClock) -> None:
    issuer = WordIssuer()
    with capture_logs() as lines:
        async with working(store, clock, issuer, HUBS):
            for name in NAMES:
                await store.run(come, name, issuer, pki.generate_key())
            await until(store, every(is_let_in))
            agents = await store.read(lambda tx: [tx.certificates.of_cluster(name) for name in NAMES])
            await store.run(lambda tx: [namespaces.remove(tx, present(namespaces.get(tx, name)), "admin") for name in NAMES])
            await until(store, every(has_new_namespace))
            clock.advance(timedelta(seconds=301))
            await store.run(touch, "later")
            await until(store, every(lambda _tx, one: bool(rules.availability(one) and doc.sequence(one, "spec", "taints"))))
            falls = await store.read(lambda tx: [len(tx.transitions.of(name, limit=10)) for name in NAMES])
            asked = await store.read(lambda tx: [phase(stored.document) for stored in tx.objects.find(REQUESTS, Query()).items])
            await store.run(delete)
            await until(store, lambda tx: not tx.objects.find(MANAGED_CLUSTERS, Query()).items)
    counted = await store.read(written)
    assert [sum(record.purpose is Purpose.AGENT for record in held) for held in agents] == [1] * CLUSTERS
    assert asked == [RequestPhase.ISSUED] * CLUSTERS
    assert falls == [1] * CLUSTERS, "each fell silent once"
    assert counted == dict.fromkeys(ONCE_EACH, CLUSTERS)
    assert [line for line in lines if str(line["event"]).startswith("reconcile failed")] == [], "nobody was in another's way"


async def until(store: Store, holds: Holds) -> None:
    while not await store.read(holds):
        await store.wait_for_change(await store.read(lambda tx: tx.changes.newest()), timedelta(seconds=1))
