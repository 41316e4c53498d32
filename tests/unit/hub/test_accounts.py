"""A ServiceAccount's logins end with it, whoever removes it and whatever holds it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from hub.domain.certificate import Lifetimes
from hub.domain.change import SERVICE_ACCOUNTS, Key, StoredObject
from hub.domain.login import Login
from hub.domain.request import CLUSTER_LABEL, Requester
from hub.ports import Transaction
from hub.services import accounts, logins, revocation
from hub.services.addon_tokens import _remove_part
from hub.services.kinds import WRITE_PATHS
from machinery.clock import ManualClock
from machinery.identity import ClusterName, SerialNumber
from tests.fakes.issuer import WordIssuer
from tests.fakes.memory_store import MemoryStore

PATH = WRITE_PATHS[SERVICE_ACCOUNTS]
WHO = Requester("admin", ())
Remove = Callable[[Transaction, StoredObject], Any]


def account(tx: Transaction, /, name: str, **metadata: Any) -> None:
    told = {"name": name, "namespace": "edge1", "labels": {CLUSTER_LABEL: "edge1"}, **metadata}
    PATH.put(tx, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": told}, None, WHO)


def stored(tx: Transaction, name: str) -> StoredObject:
    found = tx.objects.get(SERVICE_ACCOUNTS, Key("edge1", name))
    assert found is not None
    return found


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    made = MemoryStore(clock)
    for name in ("robot", "other"):
        made.transact(account, name)
    return made


def login(store: MemoryStore, name: str) -> SerialNumber:
    def given(tx: Transaction) -> SerialNumber:
        who = Login(f"system:serviceaccount:edge1:{name}", account=stored(tx, name).uid)
        return logins.admit(tx, who, b"key", WordIssuer(), Lifetimes()).serial

    return store.transact(given)


def reason(store: MemoryStore, serial: SerialNumber) -> str | None:
    record = store.transact(lambda tx: tx.certificates.by_serial(serial))
    assert record is not None
    return record.revoked_reason


@pytest.mark.parametrize(
    "remove",
    [
        lambda tx, old: PATH.remove(tx, old, WHO),
        lambda tx, old: _remove_part(tx, SERVICE_ACCOUNTS, old, "hub"),
        lambda tx, _old: revocation._end_accounts(tx, ClusterName("edge1"), "hub"),
    ],
    ids=["deleted", "its add-on ends", "its cluster is revoked"],
)
def test_the_logins_of_an_account_end_with_it(store: MemoryStore, remove: Remove) -> None:
    first, second = login(store, "robot"), login(store, "robot")
    store.transact(lambda tx: remove(tx, stored(tx, "robot")))
    assert [reason(store, serial) for serial in (first, second)] == [accounts.GONE] * 2


def test_those_of_another_stay(store: MemoryStore) -> None:
    other = login(store, "other")
    store.transact(lambda tx: PATH.remove(tx, stored(tx, "robot"), WHO))
    assert reason(store, other) is None


def test_an_account_that_only_waits_for_its_finalizers_has_ended_too(store: MemoryStore) -> None:
    store.transact(account, "held", finalizers=["example.org/wait"])
    serial = login(store, "held")
    store.transact(lambda tx: PATH.remove(tx, stored(tx, "held"), WHO))
    assert store.transact(lambda tx: stored(tx, "held")) is not None
    assert reason(store, serial) == accounts.GONE


def test_what_has_ended_by_itself_is_not_revoked(store: MemoryStore, clock: ManualClock) -> None:
    serial = login(store, "robot")
    clock.advance(Lifetimes().login + timedelta(seconds=1))
    store.transact(lambda tx: PATH.remove(tx, stored(tx, "robot"), WHO))
    assert reason(store, serial) is None
