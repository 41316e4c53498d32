"""Roles in memory: as current as the log, proven once a second, and silent when that can no longer be proven."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from hub.access.rolebook import BOUND, RoleBook
from hub.domain.change import CLUSTER_ROLE_BINDINGS, Key
from hub.domain.roles import Groups
from hub.ports import Transaction
from hub.services import objects, roles
from machinery.apiserver.access import Attributes
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE_BINDING
from machinery.apiserver.rbac_authorizer import RbacAuthorizer
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from tests.fakes.inline_store import InlineStore

BOB, ROOT = Actor("bob"), Actor("root", ("system:masters",))
LIST = Attributes("list", "", "cluster.open-cluster-management.io", "v1", "managedclusters")
RESOURCE = CLUSTER_ROLE_BINDING.key


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


def unbind(tx: Transaction, name: str) -> None:
    objects.remove(tx, CLUSTER_ROLE_BINDINGS, objects.find(tx, CLUSTER_ROLE_BINDINGS, Key("", name)), "admin")


async def test_what_is_bound_and_unbound_counts_once_its_revision_is_seen(store: InlineStore, book: RoleBook) -> None:
    rbac = RbacAuthorizer(book)
    assert not rbac.decide(BOB, LIST).allowed

    await store.run(bind, "bob", "bob")
    await book.seen(RESOURCE, store.state.revision)
    assert rbac.decide(BOB, LIST).allowed

    await store.run(bind, "bob", "eve")
    await book.seen(RESOURCE, store.state.revision)
    assert not rbac.decide(BOB, LIST).allowed
    assert rbac.decide(Actor("eve"), LIST).allowed

    await store.run(unbind, "bob")
    await book.seen(RESOURCE, store.state.revision)
    assert not rbac.decide(Actor("eve"), LIST).allowed


async def test_nothing_is_decided_before_the_roles_were_read_nor_after_they_are_no_longer_proven(
    store: InlineStore, clock: ManualClock
) -> None:
    book = RoleBook(store, clock)
    rbac = RbacAuthorizer(book)
    with pytest.raises(UnavailableError):
        rbac.decide(BOB, LIST)
    assert rbac.decide(ROOT, LIST).allowed
    await book.load()
    clock.advance(BOUND)
    assert not rbac.decide(BOB, LIST).allowed
    clock.advance(timedelta(milliseconds=1))
    with pytest.raises(UnavailableError, match="does not know at present"):
        rbac.decide(BOB, LIST)
    await book.prove()
    assert not rbac.decide(BOB, LIST).allowed

    clock.advance(BOUND + timedelta(seconds=1))
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
