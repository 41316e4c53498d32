"""What one audit record costs, from the policy to the database.

    python -m bench audit [--records 8000]

In this process, without doors: the processor time of building and offering records, and of all until they are in SQLite.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path

import click

from hub.api.auditrecords import AuditRecord, ResponseStatus, Stage
from hub.audit import Auditor, default_policy
from hub.audit.auditor import reference_of, short, user_of
from hub.audit.store_sink import StoreSink
from hub.audit.trail import Trail
from hub.store import SqlStore
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import SystemClock
from machinery.runtime.tasks import GuardedTasks

ASKER = Actor("system:bootstrap:1234", ("system:bootstrappers:managedcluster", "system:authenticated"))
ASKED = Attributes(
    "create",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
)
NOTES = {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""}


@click.command()
@click.option("--records", default=8000, show_default=True)
def audit(records: int) -> None:
    """Processor time of one audit record."""
    click.echo(json.dumps(asyncio.run(measure(records)), indent=2))


async def measure(records: int) -> dict[str, float]:
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(f"sqlite:///{Path(folder) / 'hub.db'}")
        await store.open()
        auditor = Auditor(default_policy(GROUP_SUFFIX), [Trail(StoreSink(store, "bench"), clock, capacity=records)], clock)
        await auditor.open()
        async with GuardedTasks("bench") as tasks:
            tasks.start("audit", auditor.run())
            began = time.process_time()
            for number in range(records):
                auditor.offer(record(auditor, number))
            built = time.process_time() - began
            await auditor.finish()
            spent = time.process_time() - began
        await store.close()
    return {
        "records": records,
        "microseconds_before_the_answer": round(built / records * 1e6, 1),
        "microseconds_in_all": round(spent / records * 1e6, 1),
    }


def record(auditor: Auditor, number: int) -> AuditRecord:
    """What a door writes about one request."""
    received = auditor.clock.now()
    return AuditRecord(
        level=auditor.verdict(ASKER, ASKED).level,
        audit_id=f"{number:036}",
        stage=Stage.RESPONSE_COMPLETE,
        request_uri=ASKED.path,
        verb=ASKED.verb,
        user=user_of(ASKER),
        source_ips=("127.0.0.1",),
        user_agent=short("grpc-python-asyncio/1.85"),
        object_ref=reference_of(ASKED, name=f"edge-{number}"),
        response_status=ResponseStatus(201),
        received=received,
        at=auditor.clock.now(),
        annotations=NOTES,
    )
