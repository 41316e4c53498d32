"""Runs `hub doctor`."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from hub.commands.doctor import database, doors
from hub.commands.doctor import machine as ground
from hub.commands.doctor.findings import DoctorFinding, DoctorState, Look, broken, looked
from hub.settings import HubSettings, load
from hub.store import SqlStore
from machinery.errors import InvalidError
from machinery.runtime.clock import Clock, SystemClock

WELL, NOT_WELL, FAILED = 0, 1, 2
WIDTH = 15
_RIGHTS = "run this on the hub's machine, as its user, with its settings (--data-dir, --config, or its environment)"
_DATABASE = "is the database there, does HUB_DATABASE_URL lead to it, does its user have the rights?"


def run(config: Path | None, flags: Mapping[str, Any]) -> int:
    """Return the exit code. Findings go to standard output, errors in the settings to standard error."""
    try:
        settings = load(flags, config)
    except InvalidError as error:
        click.echo(f"hub: {error}", err=True)
        return FAILED
    return asyncio.run(_printed(settings))


async def _printed(settings: HubSettings) -> int:
    worst = WELL
    async for finding in examined(settings, SystemClock()):
        click.echo(f"{finding.state:<8} {finding.name:<{WIDTH}} {finding.said}")
        if finding.state is not DoctorState.WELL:
            click.echo(f"{'':<8} {'':<{WIDTH}} -> {finding.advice}")
        worst = max(worst, NOT_WELL if finding.state is DoctorState.BROKEN else WELL)
    return worst


async def examined(settings: HubSettings, clock: Clock) -> AsyncIterator[DoctorFinding]:
    """Run all checks in the order of dependency; a broken one does not stop the rest."""
    looks: list[tuple[str, Look, str]] = [("data directory", partial(_folder, settings), _RIGHTS)]
    if settings.data_dir.is_dir():
        looks += [
            ("keys", partial(_keys, settings, clock), _RIGHTS),
            ("database", partial(_database, settings, clock), _DATABASE),
            ("doors", partial(_doors, settings), _RIGHTS),
            ("operators", partial(_operators, settings, clock), "see what is said of the HTTPS door"),
        ]
    for name, look, advice in looks:
        for finding in await looked(name, look, advice):
            yield finding


async def _folder(settings: HubSettings) -> list[DoctorFinding]:
    return list(ground.folder(settings))


async def _keys(settings: HubSettings, clock: Clock) -> list[DoctorFinding]:
    return list(ground.keys(settings, clock.now()))


async def _database(settings: HubSettings, clock: Clock) -> list[DoctorFinding]:
    url = settings.store_url
    schema = await asyncio.to_thread(database.schema, url)
    if schema.state is DoctorState.BROKEN:
        return [schema]
    store = SqlStore(url)
    try:
        began = time.monotonic()
        seen = await database.look(store)
        return [schema, *database.judged(seen, settings, clock, timedelta(seconds=time.monotonic() - began))]
    finally:
        await store.close()


async def _doors(settings: HubSettings) -> list[DoctorFinding]:
    trust = doors.trust_of(settings)
    if trust is None:
        return [broken("doors", f"there is no CA in {settings.data_dir} to know the hub by", _RIGHTS)]
    return [finding for door in doors.doors_of(settings) for finding in await doors.reached(door, trust)]


async def _operators(settings: HubSettings, clock: Clock) -> list[DoctorFinding]:
    return await asyncio.to_thread(doors.asked, settings, clock)
