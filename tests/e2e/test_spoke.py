"""An agent as a process among its faults: wrong clocks, wrong files, kills, an API server that is ill."""

import asyncio
import copy
import re
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from machinery.clock import SystemClock
from machinery.kube.client import KubeClient, Resource
from machinery.pki import parse_certificate
from tests.e2e.processes import Bench, Program, recorded, status_of, until
from tests.fakes.hub import MemoryHub
from tests.trials import repeated

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

FAKETIME = "libfaketimeMT.so.1"
AVAILABLE = "ManagedClusterConditionAvailable"
SHORT_LEASE = ("--default-lease-duration=1s", "--beat-interval=300ms", "--flush-window=100ms")


def certificate(bench: Bench, cluster: str) -> Any:
    """The certificate that the agent has at present."""
    return parse_certificate((bench.folder / f"{cluster}.credentials" / "tls.crt").read_bytes())


async def says(program: Program, text: str, within: float = 20) -> None:
    async def said() -> bool:
        return text in program.output

    await until(said, what=f"{program.name} says {text!r}", within=within)


async def probe(program: Program, path: str) -> tuple[int, str]:
    """Status and text of one of the agent's probes."""
    line = next(line for line in program.output.splitlines() if "probes.listening" in line)
    port = int(line.split('"address": "127.0.0.1:')[1].split('"')[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body.strip()


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


async def prepared(bench: Bench, cluster: str, *flags: str) -> Program:
    """A spoke that is not started yet."""
    kubeconfig = await bench.hollow(cluster)
    return bench.program(
        f"spoke-{cluster}",
        *("spoke", "run", "--cluster-name", cluster, "--kubeconfig", str(kubeconfig)),
        *("--bootstrap-kubeconfig", str(await bench.bootstrap(cluster))),
        *("--hub-kubeconfig-dir", str(bench.folder / f"{cluster}.credentials"), *flags),
    )


@pytest.mark.faketime
async def test_a_clock_a_day_ahead_joins_stays_available_and_joins_again_after_a_restart(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--agent-lifetime=2h", *SHORT_LEASE)
    spoke = await prepared(bench, "c1")
    faked(spoke, "+1d", bench.folder)
    await spoke.start()
    await bench.available("c1")
    await asyncio.sleep(7)  # longer than its grace
    assert status_of(await bench.cluster("c1"), AVAILABLE) == "True"
    await spoke.stop()
    await spoke.start()
    await says_again(spoke, "session.opened", 2)
    assert len(await bench.requests()) == 1


async def says_again(program: Program, text: str, times: int, within: float = 20) -> None:
    async def said() -> bool:
        return program.output.count(text) >= times

    await until(said, what=f"{program.name} says {text!r} {times} times", within=within)


@pytest.mark.faketime
async def test_a_clock_far_behind_is_told_with_both_times_and_joins_once_it_is_right(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await prepared(bench, "c1")
    cluster = bench.folder / "c1.kubeconfig"  # its API server has been there for longer than the hub
    cluster.write_text(re.sub("certificate-authority-data: .*", "insecure-skip-tls-verify: true", cluster.read_text()))
    now = faked(spoke, "-4d", bench.folder)
    await spoke.start()
    await says(spoke, "the clock of this machine is behind: it says 20")
    now.write_text("+0")
    await bench.available("c1", within=35)


async def test_a_short_certificate_is_replaced_again_and_again_without_a_gap(bench: Bench) -> None:
    await bench.hub("--auto-approve=*", "--agent-lifetime=8s", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    serials = {certificate(bench, "c1").serial}

    async def rotated() -> bool:
        serials.add(certificate(bench, "c1").serial)
        assert status_of(await bench.cluster("c1"), AVAILABLE) == "True"
        assert (await probe(spoke, "/readyz"))[0] == 200
        return len(serials) == 4

    await until(rotated, what="the certificate was replaced three times", within=40)
    assert "registration.begins" not in spoke.output.split("session.opened", 1)[1]


async def test_an_unusable_bootstrap_kubeconfig_ends_the_start_with_a_sentence(bench: Bench) -> None:
    await bench.hollow("c1")
    good = yaml.safe_load(MemoryHub(SystemClock()).bootstrap_kubeconfig())
    damages: dict[str, Callable[[Any], object]] = {
        "certificate-authority-data": lambda one: one["clusters"][0]["cluster"].pop("certificate-authority-data"),
        "the server": lambda one: one["clusters"][0]["cluster"].pop("server"),
        "client-certificate-data and client-key-data": lambda one: one["users"][0]["user"].clear(),
        'no user "': lambda one: one["users"].clear(),
        "current-context": lambda one: one.pop("current-context"),
    }
    for number, (says_what, damage) in enumerate(damages.items()):
        document = copy.deepcopy(good)
        damage(document)
        file = bench.folder / f"damaged-{number}"
        file.write_text(yaml.safe_dump(document))
        spoke = await bench.spoke("c1", file)
        assert await spoke.ended() == 1
        assert says_what in spoke.output.replace('\\"', '"')
        assert "Traceback" not in spoke.output


async def test_an_expired_bootstrap_credential_is_told_and_replaced_while_the_agent_runs(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await prepared(bench, "c1")
    file = bench.folder / "c1.bootstrap"
    again = ("create", "bootstrap-kubeconfig", "--cluster", "c1", "--allow-loopback", "-o")
    await bench.hubctl(*again, str(file), "--expires=1s")
    await asyncio.sleep(1.2)  # until it has expired
    await spoke.start()
    await says(spoke, "expired at")
    assert (await probe(spoke, "/livez"))[0] == 200
    code, text = await probe(spoke, "/readyz")
    assert code == 503
    assert "expired at" in text
    await bench.hubctl(*again, str(file))
    await bench.available("c1", within=35)


async def test_a_second_cluster_with_the_same_name_is_noticed_and_not_merged(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    await bench.spoke("c1")
    await bench.available("c1")
    other = await bench.hollow("twin")
    twin = bench.program(
        *("spoke-twin", "spoke", "run", "--cluster-name", "c1", "--kubeconfig", str(other)),
        *("--bootstrap-kubeconfig", str(await bench.bootstrap("c1"))),
    )
    await twin.start()
    await says(twin, "another cluster")
    assert len(await bench.requests()) == 1
    assert twin.running


async def test_a_hub_that_is_away_fails_readiness_only(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    await bench.available("c1")

    async def ready() -> bool:
        return (await probe(spoke, "/readyz"))[0] == 200

    async def not_ready() -> bool:
        return (await probe(spoke, "/readyz"))[0] == 503

    await until(ready, what="the agent is ready")
    await hub.kill()
    await until(not_ready, what="the agent is not ready")
    assert (await probe(spoke, "/livez"))[0] == 200
    assert (await probe(spoke, "/healthz"))[0] == 200
    await hub.start()
    await until(ready, what="the agent is ready again", within=40)


async def fault(bench: Bench, cluster: str, *faults: str) -> None:
    kubeconfig = str(bench.folder / f"{cluster}.kubeconfig")
    program = bench.program(f"fault-{len(bench.programs)}", "hollow", "fault", "--kubeconfig", kubeconfig, *faults)
    await program.start()
    assert await program.ended() == 0


LIVES = 8
SLOW = "slow=100ms"
"""Every step takes its time, so that a kill falls between any two of them."""


async def killed_again_and_again(spoke: Program, random: Random, longest: float) -> None:
    """Eight lives, each ended with -9 at a moment drawn from its eighth of `longest`."""
    for life in range(LIVES):
        await spoke.start()
        await says_again(spoke, "spoke.starting", life + 1)
        await asyncio.sleep(longest * (life + random.random()) / LIVES)
        await spoke.kill()
    await spoke.start()


@repeated(1, 10)
async def test_a_spoke_killed_again_and_again_while_it_joins_gets_one_certificate(bench: Bench, trial: int) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await prepared(bench, "c1")
    await fault(bench, "c1", SLOW)
    await killed_again_and_again(spoke, Random(trial), longest=2)
    await bench.available("c1")
    requests = await bench.requests()
    assert len(requests) == 1
    async with kubernetes(bench, "c1") as client:
        secrets = await client.list(Resource("", "v1", "secrets").path(namespace="open-cluster-management-agent"))
    assert [secret["metadata"]["name"][:22] for secret in secrets] == ["hub-kubeconfig-secret", "hub-kubeconfig-secret-"]
    assert not [secret for secret in secrets if "pending.key" in secret["data"]]
    assert recorded(bench.data / "hub.db", "agent") == {"c1": 1}


@repeated(1, 10)
async def test_a_spoke_killed_again_and_again_while_it_rotates_gets_one_certificate_per_approval(
    bench: Bench, trial: int
) -> None:
    await bench.hub("--auto-approve=*", "--agent-lifetime=8s", *SHORT_LEASE)
    spoke = await prepared(bench, "c1")
    await fault(bench, "c1", SLOW)
    await killed_again_and_again(spoke, Random(trial), longest=3)

    async def rotated() -> bool:
        return len(await bench.requests()) > 2 and "session.opened" in spoke.output.rsplit("spoke.starting", 1)[1]

    await until(rotated, what="certificates were replaced", within=40)
    await bench.available("c1")
    await spoke.kill()

    async def settled() -> bool:
        """What the agent had asked for last may be issued while we look."""
        requests = await bench.requests()
        issued = [request for request in requests if request["status"].get("certificate")]
        return recorded(bench.data / "hub.db", "agent") == {"c1": len(issued)} and len(requests) - len(issued) <= 1

    await until(settled, what="every request but one that was under way is one certificate")
    assert "cannot be used" not in spoke.output


NOISE = b64encode(b"what nobody knows").decode()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"tls.key": None}, "half-written: tls.key missing"),
        ({"kubeconfig": None, "tls.crt": None}, "half-written: kubeconfig, tls.crt missing"),
        ({"tls.crt": NOISE, "unknown": NOISE}, "cannot be read: tls.crt"),
        ({"kubeconfig": NOISE}, "cannot be read: kubeconfig"),
    ],
    ids=["no key", "only a key", "unknown certificate", "unknown kubeconfig"],
)
async def test_a_secret_that_was_damaged_is_told_and_repaired_by_the_next_start(
    bench: Bench, damage: dict[str, str | None], told: str
) -> None:
    await bench.hub("--auto-approve=*")
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    await spoke.stop()
    path = Resource("", "v1", "secrets").path("hub-kubeconfig-secret", namespace="open-cluster-management-agent")
    async with kubernetes(bench, "c1") as client:
        await client.patch(path, {"data": damage})
    await spoke.start()
    await says(spoke, told)
    await says_again(spoke, "session.opened", 2)
    assert {status_of(await bench.cluster("c1"), AVAILABLE)} == {"True"}


@asynccontextmanager
async def kubernetes(bench: Bench, cluster: str) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_file(bench.folder / f"{cluster}.kubeconfig") as client:
        yield client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_at_once_in_any_state(bench: Bench, number: signal.Signals) -> None:
    hub = await bench.hub()
    spoke = await bench.spoke("c1")
    await says(spoke, "request.waiting")
    assert await spoke.stop(number, within=5) == 0
    await hub.kill()
    await spoke.start()
    await says(spoke, "cannot be reached")
    assert await spoke.stop(number, within=5) == 0


async def test_help_and_wrong_settings_need_no_cluster(bench: Bench) -> None:
    told = bench.program("help", "spoke", "run", "--help")
    await told.start()
    assert await told.ended() == 0
    assert "/readyz" in told.output
    wrong = bench.program("wrong", "spoke", "run", "--cluster-name=Bad_Name", "--cluster-healthcheck-period=0s")
    await wrong.start()
    assert await wrong.ended() == 2
    assert "bootstrap-kubeconfig: is required" in wrong.output
    assert "cluster-name" in wrong.output
    assert "Traceback" not in wrong.output


async def test_a_hub_that_hangs_is_noticed_and_found_again_when_it_goes_on(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    assert hub.process is not None
    hub.process.send_signal(signal.SIGSTOP)
    await says(spoke, "has not acknowledged a beat for 10 s", within=50)
    hub.process.send_signal(signal.SIGCONT)
    await says_again(spoke, "session.opened", 2, within=40)
    await bench.available("c1")


async def test_a_hub_that_drains_is_left_and_found_again(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*", "--shutdown-delay=3s", *SHORT_LEASE)
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    assert await hub.stop(within=30) == 0
    await hub.start()
    await says_again(spoke, "session.opened", 2, within=40)
    assert spoke.output.count("session.opened") < 15
    await bench.available("c1")
