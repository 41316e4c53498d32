"""A hub that is killed with -9 around the signature: its agent asks again, and has the one certificate that is on record."""

import sqlite3
from contextlib import closing

import pytest

from machinery.pki import parse_certificate
from tests.e2e.processes import Bench, recorded
from tests.fakes.mortal_hub import BEFORE, COMMITTED, SIGNED
from tests.trials import soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
SHORT = "--default-lease-duration=2s"


@soaked(1)
@pytest.mark.parametrize("moment", (SIGNED, BEFORE, COMMITTED)[: trials(1, 3)])
async def test_a_hub_killed_around_the_signature_has_one_certificate_for_its_agent(bench: Bench, moment: str) -> None:
    doors = (f"--grpc-listen=127.0.0.1:{bench.grpc_port}", f"--https-listen=127.0.0.1:{bench.https_port}")
    serve = ("serve", f"--data-dir={bench.data}", *doors, "--auto-approve=c1", SHORT)
    mortal = await bench.program("mortal-hub", "tests.fakes.mortal_hub", moment, *serve).start()
    await bench.ready(mortal)
    agent = await bench.spoke("c1")
    assert await mortal.ended(60) == -9
    survived = recorded(bench.data / "hub.db", "agent")["c1"]
    assert survived == (1 if moment == COMMITTED else 0), "record and signature come together"

    await bench.hub("--auto-approve=c1", SHORT)
    await bench.available("c1", 60)
    assert agent.running
    assert recorded(bench.data / "hub.db", "agent")["c1"] == recorded(bench.data / "hub.db", "recovery")["c1"] == 1
    held = parse_certificate((bench.folder / "c1.credentials" / "tls.crt").read_bytes())
    with closing(sqlite3.connect(f"file:{bench.data / 'hub.db'}?mode=ro", uri=True)) as connection:
        serials = {int(serial, 16) for (serial,) in connection.execute("SELECT serial FROM certificates")}
    assert held.serial in serials
    assert len(await bench.requests()) == 1, "a request that is handed in again is the same one"
