"""What a backup costs, and what a restore takes.

    python -m bench backup [--clusters 10000]

A store on SQLite with that many ManagedClusters of 3 kB, each written three times (its log has as many changes), and as many
certificates. Processor time of this process, which does nothing else; the file on a disk.
"""

import asyncio
import json
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore
from hub.store.backup.archive import FORMAT, Archive, ArchiveWriter, Manifest
from hub.store.backup.backup import write_tables
from hub.store.backup.restore import RestoreTarget, restore_tables
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.meta.objects import Key
from machinery.product import GROUP_SUFFIX

PORTION = 500
WRITES = 3
CLAIMS = [{"name": f"claim-{number}.example.com", "value": "x" * 40} for number in range(28)]


@click.command()
@click.option("--clusters", default=10_000, show_default=True)
def backup(clusters: int) -> None:
    """Size, and time of backup and restore."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        asyncio.run(filled(f"sqlite:///{place / 'hub.db'}", clusters))
        click.echo(json.dumps(measured(place), indent=2))


async def filled(url: str, clusters: int) -> None:
    store = SqlStore(url)
    await store.open()
    await store.run(lambda tx: tx.facts.set("hub-id", "bench"))
    for turn in range(WRITES):
        for first in range(0, clusters, PORTION):
            await store.run(written, range(first, min(first + PORTION, clusters)), turn)
    await store.close()


def written(tx: Transaction, numbers: range, turn: int) -> None:
    for number in numbers:
        name = f"cluster-{number}"
        metadata = {"name": name, "uid": f"uid-{number}", "labels": {"region": f"r{number % 9}"}}
        status: dict[str, Any] = {"clusterClaims": CLAIMS, "turn": turn}
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
        tx.objects.put(MANAGED_CLUSTERS, {"metadata": metadata, "status": status}, old, "bench")
        if turn == 0:
            begin, end = tx.now, tx.now + timedelta(days=30)
            holder = {"cluster": ClusterName(name), "agent": AgentId("agent")}
            serial = SerialNumber((1 << 158) + number)
            record = CertificateRecord(serial, Purpose.AGENT, name, (), begin, end, name, begin, **holder)  # type: ignore[arg-type]
            tx.certificates.add(record)


def measured(folder: Path) -> dict[str, float]:
    url, file = f"sqlite:///{folder / 'hub.db'}", folder / "hub.zip"
    began, wall = time.process_time(), time.monotonic()
    with ArchiveWriter(file) as writer:
        seen = write_tables(url, writer)
        writer.finish(Manifest(FORMAT, "bench", seen.made, seen.schema, seen.revision, "bench", GROUP_SUFFIX, ()))
    made, made_in = time.process_time() - began, time.monotonic() - wall
    began, wall = time.process_time(), time.monotonic()
    with Archive(file) as archive:
        archive.verify()
        restore_tables(archive, RestoreTarget(f"sqlite:///{folder / 'again.db'}"), lambda tx: tx.now)
    return {
        "database MiB": round((folder / "hub.db").stat().st_size / 2**20, 1),
        "backup MiB": round(file.stat().st_size / 2**20, 1),
        "backup processor s": round(made, 2),
        "backup s": round(made_in, 2),
        "restore processor s": round(time.process_time() - began, 2),
        "restore s": round(time.monotonic() - wall, 2),
    }
