"""Every certificate is replaced under open sessions without a lost beat; agents that were off for all of it come back.

Many whole agents live in this process, and talk over gRPC to a hub, or to two replicas of one, which are killed in each phase.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from machinery.pki import parse_certificate
from spoke.kubeconfigs import stored_connection
from spoke.trust import fingerprints
from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.hubs import hubs_in
from tests.e2e.processes import Bench, until
from tests.e2e.replicas import replicas_of
from tests.e2e.test_ca_key_places import CAS
from tests.e2e.test_replicas_agents import FAST
from tests.fakes.stage import OWNER
from tests.trials import SOAKING, soaked, trials

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800 if SOAKING else 300)]

SESSIONS = trials(test=10, soak=500)
AGENTS, OFF = trials(test=10, soak=200), trials(test=2, soak=20)
PATIENCE = trials(test=1, soak=5)
"""How many times as long as in a test run things may take."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


async def authorities(bench: Bench) -> list[dict[str, Any]]:
    return list((await bench.get(CAS))["items"])


async def until_phases(bench: Bench, *wanted: str, within: float = 90) -> list[dict[str, Any]]:
    """Returns the CAs when these are their phases, in whatever order."""

    async def reached() -> list[dict[str, Any]] | None:
        found = await authorities(bench)
        return found if sorted(each["status"]["phase"] for each in found) == sorted(wanted) else None

    found: list[dict[str, Any]] = await until(reached, what=f"CAs are {wanted}", within=within * PATIENCE)
    return found


def held(crowd: Crowd, number: int) -> Mapping[str, bytes]:
    return crowd.secrets[f"{crowd.prefix}-{number}"].contents(OWNER)


def issuer_of(contents: Mapping[str, bytes]) -> bytes | None:
    return parse_certificate(contents["tls.crt"]).authority_key_id


def trusted_by(contents: Mapping[str, bytes]) -> tuple[str, ...]:
    return fingerprints(stored_connection(contents).address.ca)


async def until_all(crowd: Crowd, numbers: range, holds: Callable[[Mapping[str, bytes]], bool], what: str) -> None:
    async def all_do() -> bool:
        return all(holds(held(crowd, number)) for number in numbers)

    await until(all_do, what=what, within=90 * PATIENCE)


@soaked(SESSIONS)
async def test_every_certificate_is_replaced_under_open_sessions_without_a_lost_beat(tmp_path: Path) -> None:
    async with hubs_in(tmp_path) as hubs:
        await hubs.start(1, "--default-lease-duration=10s", "--beat-interval=1s", "--ca-rotation-patience=2s")
        hub, everybody = hubs[0], range(SESSIONS)
        crowd = await crowd_of(hub.admin, SESSIONS)
        async with crowd.running():
            await crowd.all_heard(within=90 * PATIENCE)
            first = [held(crowd, number) for number in everybody]
            told = await hub.hubctl("rotate", "cluster", "--all", "--within", f"{max(3, SESSIONS // 5)}s", within=20 * PATIENCE)
            assert f"{SESSIONS} clusters are asked to renew" in told

            def renewed(one: Mapping[str, bytes]) -> bool:
                return one["tls.key"] not in keys

            keys = {one["tls.key"] for one in first}
            await until_all(crowd, everybody, renewed, "all agents have renewed")
            second = [held(crowd, number) for number in everybody]
            for key in ("tls.key", "recovery.crt"):
                assert all(one[key] != other[key] for one, other in zip(first, second, strict=True))
            await hub.hubctl("ca", "rotate")
            found = await until_phases(hub, "Issuing", "Retiring")
            (new,) = (each for each in found if each["status"]["phase"] == "Issuing")
            await until_all(crowd, everybody, lambda one: len(trusted_by(one)) == 1, "all agents trust the new CA alone")
            third = [held(crowd, number) for number in everybody]
            assert len({issuer_of(one) for one in third}) == 1
            assert not {issuer_of(one) for one in third} & {issuer_of(one) for one in first}
            assert new["metadata"]["name"]
            await crowd.all_heard(asyncio.get_running_loop().time(), within=30 * PATIENCE)
        assert crowd.lost == 0, crowd.why.most_common(5)
        assert all(tally.opened >= 3 for tally in crowd.tallies.values()), "the first session, and one for each certificate"


@asynccontextmanager
async def killed_in_each_phase(replicas: Any) -> AsyncIterator[Callable[[], Any]]:
    """What kills one replica and starts it again, in turn."""
    turn = 0

    async def kill() -> None:
        nonlocal turn
        replica = replicas[turn % 2]
        turn += 1
        replicas.leave(replica)
        await replica.process.kill()
        await replicas.restart(replica)

    yield kill


@pytest.mark.postgres
@soaked(AGENTS)
async def test_agents_that_were_off_for_a_whole_change_of_ca_come_back_and_one_hub_is_killed_in_each_phase(
    bench: Bench, postgres_url: str
) -> None:
    """The bootstrap credential is revoked before: nothing but the recovery certificate can bring them back."""
    flags = ("--auto-approve=*", "--default-lease-duration=1s", "--ca-rotation-patience=6s", "--ca-key-place=database", *FAST)
    on, off = range(AGENTS - OFF), range(AGENTS - OFF, AGENTS)
    async with replicas_of(bench, postgres_url, *flags) as replicas:
        await replicas.start(2)
        crowd = await crowd_of(bench.admin, AGENTS)
        async with crowd.running():
            await crowd.all_heard(within=90 * PATIENCE)
        (credential,) = json.loads(await bench.hubctl("get", "bootstrap-credentials", "-o", "json"))["items"]
        old = [held(crowd, number) for number in off]
        async with crowd.running(on), killed_in_each_phase(replicas) as kill:
            await crowd.all_heard_of(on, within=60 * PATIENCE)
            await bench.hubctl("revoke", "bootstrap-credential", credential["metadata"]["name"])
            await bench.hubctl("ca", "rotate")
            await until_phases(bench, "Issuing", "Distributing")
            await kill()
            await until_phases(bench, "Issuing", "Outgoing")
            await kill()
            await until_phases(bench, "Issuing", "Retiring")
            await kill()
            await until_all(crowd, on, lambda one: len(trusted_by(one)) == 1, "those that were there trust the new CA alone")
            assert [held(crowd, number) for number in off] == old
        async with crowd.running():
            await crowd.all_heard(asyncio.get_running_loop().time(), within=90 * PATIENCE)
            await until_all(crowd, range(AGENTS), lambda one: len(trusted_by(one)) == 1, "all trust the new CA alone")
            assert len({issuer_of(held(crowd, number)) for number in range(AGENTS)}) == 1
