"""An agent that is killed around any write, and started again: never a lost key, never a second certificate per approval."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

import pytest

from machinery.pki import key_matches, parse_certificate
from spoke.ports import Secrets, SecretSnapshot
from tests.fakes.credentials import MemorySecrets
from tests.fakes.stage import OWNER, SLOT, Stage, nothing_pends, until
from tests.trials import repeated

BOOTSTRAP_WRITES = 5
"""Names with key and request; the request's name; the credential in the slot; in the owner's secret; the request's end."""


class KilledError(BaseException):
    """The process is gone: nothing handles this."""


@dataclass
class MortalSecrets(Secrets):
    """Kills the agent before or after its n-th write."""

    inner: MemorySecrets = field(default_factory=MemorySecrets)
    fatal: int = 0
    before: bool = True
    writes: int = 0

    async def read(self, name: str) -> SecretSnapshot:
        return await self.inner.read(name)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        self._die(before=True)
        written = await self.inner.write(name, contents, version)
        self._die(before=False)
        return written

    async def delete(self, name: str) -> None:
        self._die(before=True)
        await self.inner.delete(name)
        self._die(before=False)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self.inner.changes(name)

    def _die(self, *, before: bool) -> None:
        self.writes += before
        if self.writes == self.fatal and before is self.before:
            self.fatal = 0
            raise KilledError


async def killed(stage: Stage) -> None:
    """Runs the agent until it dies."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - groups or not
        await asyncio.wait_for(stage.agent().run(), 10)
    assert isinstance(raised.value, KilledError) or raised.group_contains(KilledError)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fatal", range(1, BOOTSTRAP_WRITES + 1))
@pytest.mark.parametrize("approve", [True, False])
async def test_bootstrap_survives_a_crash_around_every_write(stage: Stage, fatal: int, *, before: bool, approve: bool) -> None:
    mortal = MortalSecrets(fatal=fatal, before=before)
    stage.secrets = mortal
    await killed(stage)
    stage.hub.approve = approve
    async with stage.running():
        if not approve:
            await until(lambda: stage.hub.requests)
            for name in tuple(stage.hub.requests):
                stage.hub.approve_request(name)
        await until(lambda: stage.hub.sessions and stage.hub.session.beats)
    contents = (await mortal.read(OWNER)).contents
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert parse_certificate(contents["tls.crt"]).serial == stage.hub.issued[-1]
    assert await nothing_pends(mortal)
    assert (await mortal.read(SLOT)).contents["tls.crt"] == contents["tls.crt"]
    assert len(stage.hub.clusters) == 1
    assert len(stage.hub.requests) == len(stage.hub.issued) == 1


async def test_the_bootstrap_has_as_many_writes_as_the_crash_test_kills(stage: Stage) -> None:
    mortal = MortalSecrets()
    stage.secrets = mortal
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.beats)
    assert mortal.writes == BOOTSTRAP_WRITES


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fatal", range(1, BOOTSTRAP_WRITES + 1))
async def test_rotation_survives_a_crash_around_every_write(stage: Stage, fatal: int, *, before: bool) -> None:
    mortal = MortalSecrets()
    stage.secrets = mortal
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.beats)
    stage.clock.advance(timedelta(days=25))
    mortal.writes, mortal.fatal, mortal.before = 0, fatal, before
    await killed(stage)
    async with stage.running():
        await until(lambda: len(stage.hub.issued) == 2 and not stage.hub.session.over)
        await until(lambda: parse_certificate(stage.hub.session.identity.certificate).serial == stage.hub.issued[1])
        await until(lambda: stage.hub.session.beats)
    contents = (await mortal.read(OWNER)).contents
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert parse_certificate(contents["tls.crt"]).serial == stage.hub.issued[1]
    assert await nothing_pends(mortal)
    assert (await mortal.read(SLOT)).contents["tls.crt"] == contents["tls.crt"]
    assert len(stage.hub.requests) == len(stage.hub.issued) == 2


def pending(mortal: MortalSecrets) -> bool:
    return "pending.key" in mortal.inner.contents(SLOT)


async def lives_until(stage: Stage, arrived: Callable[[], object]) -> None:
    """One life of the agent: until it is killed or has arrived."""
    life = asyncio.create_task(stage.agent().run())
    await until(lambda: life.done() or arrived())
    life.cancel()
    await asyncio.wait([life])
    if not life.cancelled() and (error := life.exception()):
        assert isinstance(error, KilledError) or (isinstance(error, BaseExceptionGroup) and error.subgroup(KilledError))


async def many_lives(stage: Stage, mortal: MortalSecrets, random: Random, arrived: Callable[[], object]) -> None:
    """Killed around drawn writes, up to six times in a row, then left alone."""
    for _ in range(random.randrange(1, 7)):
        mortal.writes, mortal.fatal, mortal.before = 0, random.randint(1, BOOTSTRAP_WRITES), random.random() < 0.5
        await lives_until(stage, arrived)
    mortal.fatal = 0
    await lives_until(stage, arrived)


@repeated(10, 1000)
async def test_any_row_of_crashes_costs_no_key_and_no_certificate(stage: Stage, trial: int) -> None:
    random = Random(trial)
    mortal = MortalSecrets()
    stage.secrets = mortal

    def at_work(certificates: int) -> bool:
        """The newest session is of the newest certificate, and nothing is pending."""
        if len(stage.hub.issued) != certificates or not stage.hub.sessions or stage.hub.session.over:
            return False
        current = parse_certificate(stage.hub.session.identity.certificate).serial
        return bool(stage.hub.session.beats) and current == stage.hub.issued[-1] and not pending(mortal)

    await many_lives(stage, mortal, random, lambda: at_work(1))
    stage.clock.advance(timedelta(days=25))
    await many_lives(stage, mortal, random, lambda: at_work(2))
    contents = (await mortal.read(OWNER)).contents
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert parse_certificate(contents["tls.crt"]).serial == stage.hub.issued[1]
    assert len(stage.hub.clusters) == 1
    assert len(stage.hub.requests) == len(stage.hub.issued) == 2
