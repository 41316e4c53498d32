"""What the hub knows of clusters for their agents, and of roles: never older than the bound."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from hub.access import rolebook
from hub.access.rights import ClusterView
from hub.access.rolebook import RoleBook
from hub.access.standing import BOUND, Standings
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import CLUSTER_ROLE_BINDINGS, MANAGED_CLUSTERS, Key
from hub.domain.roles import Groups
from hub.ports import Transaction
from hub.services import clusters, objects, roles
from machinery.apiserver.access import Attributes
from machinery.apiserver.rbac_authorizer import RbacAuthorizer
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from tests.fakes.inline_store import InlineStore

EDGE1 = ClusterName("edge1")


def put(store: InlineStore, **spec: Any) -> None:
    def use_case(tx: Transaction) -> None:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE1))
        clusters.put(tx, {"metadata": {"name": EDGE1}, "spec": spec}, old, "admin")

    store.transact(use_case)


def certify(store: InlineStore, agent: str, serial: int, clock: ManualClock) -> None:
    now, user = clock.now(), f"system:open-cluster-management:{EDGE1}:{agent}"
    ends, names = now + timedelta(days=1), (EDGE1, AgentId(agent))
    record = CertificateRecord(SerialNumber(serial), Purpose.AGENT, user, (), now, ends, str(serial), now, *names)
    store.transact(lambda tx: tx.certificates.add(record))


def tell(store: InlineStore, standings: Standings, after: int) -> None:
    for change in store.state.log:
        if change.revision > after:
            standings.heard(change)


def deny(store: InlineStore) -> None:
    put(store, hubAcceptsClient=False)


def remove(store: InlineStore) -> None:
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE1), "admin"))


async def test_what_nobody_tells_counts_after_the_bound(store: InlineStore, clock: ManualClock) -> None:
    standings = Standings(store, clock)
    certify(store, "a", 1, clock)
    put(store, hubAcceptsClient=True)
    await standings.of(EDGE1)

    clock.advance(timedelta(seconds=1))
    certify(store, "b", 2, clock)
    store.transact(lambda tx: clusters.set_accepted(tx, EDGE1, accepted=False, actor="admin"))
    assert await standings.of(EDGE1) == ClusterView(accepted=True, agent=AgentId("a"))

    clock.advance(BOUND)
    assert await standings.of(EDGE1) == ClusterView(accepted=False, agent=AgentId("b"), denied=True)


async def test_what_changes_while_it_is_read_is_not_kept(clock: ManualClock) -> None:
    class Changing(InlineStore):
        """Commits something between a read and its answer."""

        late: Callable[[], None] | None = None

        async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            found = await super().read(query, *args, **kwargs)
            if self.late is not None:
                late, self.late = self.late, None
                before = self.state.revision
                late()
                tell(self, standings, before)
            return found

    store = Changing(clock)
    standings = Standings(store, clock)
    put(store, hubAcceptsClient=True)
    store.late = lambda: put(store, hubAcceptsClient=False)

    assert (await standings.of(EDGE1)).accepted, "as it was when it was asked"
    assert not (await standings.of(EDGE1)).accepted


async def test_a_cluster_that_is_being_deleted_is_not_accepted_any_more(store: InlineStore, clock: ManualClock) -> None:
    def use_case(tx: Transaction) -> None:
        document = {"metadata": {"name": EDGE1, "finalizers": ["a/b"]}, "spec": {"hubAcceptsClient": True}}
        clusters.put(tx, document, None, "admin")

    store.transact(use_case)
    standings = Standings(store, clock)
    assert (await standings.of(EDGE1)).accepted
    seen = store.state.revision
    remove(store)
    tell(store, standings, seen)
    assert not (await standings.of(EDGE1)).accepted


async def test_what_was_granted_ends_once_when_the_cluster_is_denied_or_deleted(clock: ManualClock) -> None:
    for withdraw in (deny, remove):
        store = InlineStore(clock)
        standings = Standings(store, clock)
        ended: list[str] = []
        standings.end_with(ended.append)
        put(store, hubAcceptsClient=True)
        standings.granted(EDGE1, "certificate/7")

        seen = store.state.revision
        put(store, hubAcceptsClient=True, leaseDurationSeconds=5)
        tell(store, standings, seen)
        assert ended == []
        seen = store.state.revision
        withdraw(store)
        tell(store, standings, seen)
        assert ended == ["certificate/7"], withdraw
        seen = store.state.revision
        put(store, hubAcceptsClient=False, leaseDurationSeconds=7)
        tell(store, standings, seen)
        assert ended == ["certificate/7"], withdraw


BOB, ROOT = Actor("bob"), Actor("root", ("system:masters",))
LIST = Attributes("list", "", "cluster.open-cluster-management.io", "v1", "managedclusters")


@pytest.fixture
async def store(clock: ManualClock) -> InlineStore:
    store = InlineStore(clock)
    await store.run(roles.reconcile, Groups())
    return store


@pytest.fixture
async def book(store: InlineStore, clock: ManualClock) -> AsyncIterator[RoleBook]:
    book = RoleBook(store, clock)
    await book.load()
    task = asyncio.create_task(book.run(), name="book")
    yield book
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def bind(tx: Transaction, name: str, user: str) -> None:
    document: dict[str, Any] = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    objects.put(tx, CLUSTER_ROLE_BINDINGS, document, tx.objects.get(CLUSTER_ROLE_BINDINGS, Key("", name)), "admin")


async def test_roles_decide_only_while_they_are_proven_to_be_current(store: InlineStore, clock: ManualClock) -> None:
    book = RoleBook(store, clock)
    rbac = RbacAuthorizer(book)
    with pytest.raises(UnavailableError):
        rbac.decide(BOB, LIST)
    assert rbac.decide(ROOT, LIST).allowed
    await book.load()
    clock.advance(rolebook.BOUND)
    assert not rbac.decide(BOB, LIST).allowed
    clock.advance(timedelta(milliseconds=1))
    with pytest.raises(UnavailableError, match="does not know at present"):
        rbac.decide(BOB, LIST)
    await book.prove()
    assert not rbac.decide(BOB, LIST).allowed

    clock.advance(rolebook.BOUND + timedelta(seconds=1))
    store.failure = UnavailableError("away")
    with pytest.raises(UnavailableError):
        await book.prove()
    with pytest.raises(UnavailableError):
        book.check()

    store.failure = None
    await store.run(bind, "bob", "bob")  # the book does not follow the log, so it lags
    proving = asyncio.create_task(book.prove())
    await asyncio.wait((proving,), timeout=0.02)
    assert not proving.done()
    proving.cancel()
    with pytest.raises(UnavailableError):
        book.check()
