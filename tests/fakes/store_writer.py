"""Writes pairs of objects for ever and says each name once it is acknowledged: to be killed by a test."""

import asyncio
import sys
from itertools import count

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore


def put_pair(tx: Transaction, number: int) -> None:
    for half in "ab":
        name = f"c{number}-{half}"
        tx.objects.put(MANAGED_CLUSTERS, {"metadata": {"name": name, "uid": name}}, None, "writer")


async def write(store: SqlStore, numbers: "count[int]") -> None:
    for number in numbers:
        await store.run(put_pair, number)
        sys.stdout.write(f"c{number}-a\nc{number}-b\n")
        sys.stdout.flush()


async def main() -> None:
    store = SqlStore(f"sqlite:///{sys.argv[1]}")
    await store.open()
    numbers = count()
    await asyncio.gather(*(write(store, numbers) for _ in range(8)))


asyncio.run(main())
