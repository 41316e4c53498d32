"""An agent as a process among its faults: wrong clocks, wrong files, kills, an API server that is ill."""

import asyncio
import re
import signal
from pathlib import Path
from random import Random

import pytest
import yaml

from machinery.client.rest import RestResource
from machinery.runtime.clock import SystemClock
from tests.e2e.hubs import now
from tests.e2e.processes import AVAILABLE, SHORT_LEASE, Bench, Program, recorded, status_of, until
from tests.fakes.hub import MemoryHub
from tests.trials import soak_only

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

FAKETIME = "libfaketimeMT.so.1"
NAMESPACE = "open-cluster-management-agent"
SECRETS = RestResource("", "v1", "secrets")
LIVES = 8


def faked(spoke: Program, shift: str, folder: Path) -> Path:
    """Makes the program live in another time; the returned file can be rewritten while it runs."""
    file = folder / "now"
    file.write_text(shift)
    spoke.environment.update(
        LD_PRELOAD=str(next(Path("/usr/lib").glob(f"*/faketime/{FAKETIME}"))),
        FAKETIME_TIMESTAMP_FILE=str(file),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    return file


async def is_ready(spoke: Program, status: int = 200) -> bool:
    return (await spoke.probe("/readyz"))[0] == status


@pytest.mark.faketime
async def test_a_clock_a_day_ahead_joins_stays_available_and_joins_again_after_a_restart(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--agent-lifetime=2h", *SHORT_LEASE)
    spoke = await bench.prepared("c1")
    faked(spoke, "+1d", bench.folder)
    await spoke.start()
    await bench.available("c1")
    for _ in range(2):  # the hub counts its beats, and by its own clock
        began = now()
        await until(lambda: bench.stored("SELECT at FROM heartbeats")[0][0] > began, what="the agent beats")  # noqa: B023
    assert status_of(await bench.cluster("c1"), AVAILABLE) == "True"
    await spoke.stop()
    await spoke.start()
    await spoke.says("session.opened", 2)
    assert len(await bench.requests()) == 1


@pytest.mark.faketime
async def test_a_clock_far_behind_is_told_with_both_times_and_joins_once_it_is_right(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.prepared("c1")
    cluster = bench.folder / "c1.kubeconfig"  # its API server has been there for longer than the hub
    cluster.write_text(re.sub("certificate-authority-data: .*", "insecure-skip-tls-verify: true", cluster.read_text()))
    time = faked(spoke, "-4d", bench.folder)
    await spoke.start()
    await spoke.says("the clock of this machine is behind: it says 20")
    time.write_text("+0")
    await bench.available("c1")


async def test_wrong_settings_and_an_unusable_bootstrap_kubeconfig_end_the_start_with_a_sentence(bench: Bench) -> None:
    told = await bench.program("help", "spoke", "run", "--help").start()
    assert await told.ended() == 0
    assert "/readyz" in told.output
    wrong = await bench.program("wrong", "spoke", "run", "--cluster-name=Bad_Name", "--cluster-healthcheck-period=0s").start()
    assert await wrong.ended() == 2
    for words in ("bootstrap-kubeconfig: is required", "cluster-name"):
        assert words in wrong.output
    file = bench.folder / "damaged"
    document = yaml.safe_load(MemoryHub(SystemClock()).bootstrap_kubeconfig())
    document["clusters"][0]["cluster"].pop("certificate-authority-data")
    file.write_text(yaml.safe_dump(document))
    spoke = await bench.spoke("c1", file)
    assert await spoke.ended() == 1
    assert "certificate-authority-data" in spoke.output
    assert "Traceback" not in bench.logs


async def test_an_expired_bootstrap_credential_is_told_and_replaced_and_a_namesake_is_not_merged(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.prepared("c1")
    await bench.bootstrap("c1", "--expires=1s")
    await asyncio.sleep(1.2)  # until it has expired
    await spoke.start()
    await spoke.says("expired at")
    assert (await spoke.probe("/livez"))[0] == 200
    code, text = await spoke.probe("/readyz")
    assert (code, "expired at" in text) == (503, True)
    await bench.bootstrap("c1")
    await bench.available("c1")

    other = await bench.hollow("twin")
    twin = bench.program(
        *("spoke-twin", "spoke", "run", "--cluster-name", "c1", "--kubeconfig", str(other)),
        *("--bootstrap-kubeconfig", str(await bench.bootstrap("c1"))),
    )
    await twin.start()
    await twin.says("another cluster")
    assert len(await bench.requests()) == 1
    assert twin.running


async def test_a_hub_that_is_away_hangs_or_drains_fails_readiness_only_and_is_found_again(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", "--shutdown-delay=1s", *SHORT_LEASE)
    spoke = await bench.spoke("c1", None, "--hub-silence=1s")
    await bench.available("c1")
    await until(lambda: is_ready(spoke), what="the agent is ready")
    await hub.kill()
    await until(lambda: is_ready(spoke, 503), what="the agent is not ready")
    assert (await spoke.probe("/livez"))[0] == 200
    assert (await spoke.probe("/healthz"))[0] == 200
    await hub.start()
    await until(lambda: is_ready(spoke), what="the agent is ready again")
    await spoke.says("session.opened", 2)

    hub.send(signal.SIGSTOP)
    await spoke.says("has not acknowledged a beat for 2 s")
    hub.send(signal.SIGCONT)
    await spoke.says("session.opened", 3)
    await bench.available("c1")

    assert await hub.stop() == 0
    await hub.start()
    await spoke.says("session.opened", 4)
    assert spoke.output.count("session.opened") < 20
    await bench.available("c1")


async def killed_again_and_again(spoke: Program, random: Random, longest: float) -> None:
    """Several lives, each ended with -9 at a moment drawn from its share of `longest`."""
    for life in range(LIVES):
        await spoke.start()
        await spoke.says("spoke.starting", life + 1)
        await asyncio.sleep(longest * (life + random.random()) / LIVES)
        await spoke.kill()
    await spoke.start()


async def assert_secrets_are_complete(bench: Bench) -> None:
    async with bench.kubernetes("c1") as client:
        secrets = await client.list(SECRETS.path(namespace=NAMESPACE))
    assert [secret["metadata"]["name"][:22] for secret in secrets] == ["hub-kubeconfig-secret", "hub-kubeconfig-secret-"]
    assert not [secret for secret in secrets if "pending.key" in secret["data"]]


@soak_only(1)  # in `make test`: tests/unit/spoke/test_crashes.py
@pytest.mark.parametrize("trial", range(10))
@pytest.mark.parametrize("driver", ["grpc", "csr"])
async def test_a_spoke_killed_again_and_again_while_it_joins_gets_one_certificate(
    bench: Bench, driver: str, trial: int
) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.prepared("c1", None, f"--registration-driver={driver}")
    await bench.fault("c1", "slow=100ms")  # every step takes its time, so that a kill falls between any two of them
    await killed_again_and_again(spoke, Random(trial), longest=2)
    await bench.available("c1")
    assert len(await bench.requests()) == 1
    await assert_secrets_are_complete(bench)
    assert recorded(bench.data / "hub.db", "agent") == {"c1": 1}
