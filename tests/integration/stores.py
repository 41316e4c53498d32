"""Use cases of the tests of stores: named objects are put, and what is there is read."""

from hub.domain.change import MANAGED_CLUSTERS, Key, Query
from hub.ports import Transaction


def put(tx: Transaction, name: str, size: int = 0) -> None:
    document = {"metadata": {"name": name, "uid": name}, "spec": {"filler": "x" * size}}
    tx.objects.put(MANAGED_CLUSTERS, document, tx.objects.get(MANAGED_CLUSTERS, Key("", name)), "tester")


def names(tx: Transaction) -> list[str]:
    return [item.key.name for item in tx.objects.find(MANAGED_CLUSTERS, Query()).items]


def newest(tx: Transaction) -> int:
    return tx.changes.newest()
