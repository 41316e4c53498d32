"""A process that is killed around any write of a slot in reserve: never a lost key, never a second certificate."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random

import pytest

from machinery.pki import key_matches, parse_certificate
from spoke.ports import SecretSnapshot
from tests.fakes.reserve import NAMES, B, C, ReserveStage, come, ready
from tests.fakes.virtual_time import in_virtual_time
from tests.trials import repeated
from tests.unit.spoke.test_agent_crashes import MortalSecrets

SLOT = "hub-kubeconfig-secret-bbbbbbbb"
WRITES = 4
"""Names with key and request; the request's name; the credential; the pending request's end."""


class MortalSlot(MortalSecrets):
    """Only the writes of one slot count."""

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        if name == SLOT:
            return await super().write(name, contents, version)
        return await self.inner.write(name, contents, version)

    async def named(self, prefix: str) -> Sequence[str]:
        return await self.inner.named(prefix)


async def killed(stage: ReserveStage, mortal: MortalSlot, fatal: int, *, before: bool) -> None:
    """One process, until it dies at the `fatal`-th write."""
    mortal.writes, mortal.fatal, mortal.before = 0, fatal, before
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # nobody reads how it died
    async with stage.running():
        await come(lambda: not mortal.fatal, within=timedelta(days=2))


async def check(stage: ReserveStage, mortal: MortalSlot, certificates: int) -> None:
    async with stage.running():
        await come(lambda: ready(stage)() and "pending.key" not in mortal.inner.contents(SLOT), within=timedelta(days=2))
        await come(lambda: len(stage.hubs[B].issued) == certificates, within=timedelta(days=2))
        await come(lambda: "pending.key" not in mortal.inner.contents(SLOT))
    hub, contents = stage.hubs[B], mortal.inner.contents(SLOT)
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert parse_certificate(contents["tls.crt"]).serial == hub.issued[-1]
    assert len(hub.requests) == len(hub.issued) == certificates
    assert len(hub.clusters) == len(stage.hubs[C].issued) == 1
    assert hub.sessions == []


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fatal", range(1, WRITES + 1))
def test_a_registration_in_reserve_survives_a_crash_around_every_write(fatal: int, *, before: bool) -> None:
    async def play() -> None:
        mortal = MortalSlot()
        stage = ReserveStage.at_once(mortal)
        await killed(stage, mortal, fatal, before=before)
        await check(stage, mortal, 1)

    in_virtual_time(play())


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fatal", range(1, WRITES + 1))
def test_a_renewal_in_reserve_survives_a_crash_around_every_write(fatal: int, *, before: bool) -> None:
    async def play() -> None:
        mortal = MortalSlot()
        stage = ReserveStage.at_once(mortal)
        stage.hubs[B].lifetime = timedelta(days=1)
        await check(stage, mortal, 1)
        await killed(stage, mortal, fatal, before=before)
        await check(stage, mortal, 2)

    in_virtual_time(play())


def test_a_registration_in_reserve_has_as_many_writes_as_the_crash_test_kills() -> None:
    async def play() -> None:
        mortal = MortalSlot()
        stage = ReserveStage.at_once(mortal)
        async with stage.running():
            await come(ready(stage))
        assert mortal.writes == WRITES

    in_virtual_time(play())


@repeated(5, 500)
async def test_any_row_of_crashes_in_reserve_costs_no_key_and_no_certificate(trial: int) -> None:
    random = Random(trial)

    async def play() -> None:
        mortal = MortalSlot()
        stage = ReserveStage.at_once(mortal)
        for _ in range(random.randrange(1, 5)):
            mortal.writes, mortal.fatal, mortal.before = 0, random.randint(1, WRITES), random.random() < 0.5
            asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
            async with stage.running():
                await asyncio.sleep(30)
        mortal.fatal = 0
        await check(stage, mortal, 1)
        assert stage.hubs[B].clusters[NAMES.cluster].epoch == stage.post.epoch

    await asyncio.to_thread(in_virtual_time, play())
