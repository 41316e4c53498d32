"""Runs `hub doctor`."""

import asyncio
import shutil
import stat
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import click

from hub.commands.doctor import Check, DoctorFinding, DoctorState, broken, database, doors, findings_of, warning, well
from hub.issuer.key_storage import read_pairs
from hub.replica.admin_kubeconfig import ADMIN_FILE
from hub.replica.keys import SEAL_FILE
from hub.settings import HubSettings
from hub.store import SqlStore
from machinery import pki
from machinery.runtime.clock import Clock, SystemClock

WELL, NOT_WELL = 0, 1
OTHERS = stat.S_IRWXG | stat.S_IRWXO
GIBIBYTE = 2**30
_RUN = "run this as the hub's user, with the hub's settings (--data-dir, --config, or its environment)"
WIDTH = 15
_RIGHTS = "run this on the hub's machine, as its user, with its settings (--data-dir, --config, or its environment)"
_DATABASE = "check that the database runs, that HUB_DATABASE_URL is right, and that its user has the rights"


def run(settings: HubSettings) -> int:
    return asyncio.run(_printed(settings))


async def _printed(settings: HubSettings) -> int:
    worst = WELL
    async for finding in examined(settings, SystemClock()):
        click.echo(f"{finding.state:<8} {finding.name:<{WIDTH}} {finding.message}")
        if finding.state is not DoctorState.WELL:
            click.echo(f"{'':<8} {'':<{WIDTH}} -> {finding.advice}")
        worst = max(worst, NOT_WELL if finding.state is DoctorState.BROKEN else WELL)
    return worst


async def examined(settings: HubSettings, clock: Clock) -> AsyncIterator[DoctorFinding]:
    """Run all checks in order, also after a failed check. Without a data directory, only the first check runs."""
    checks: list[tuple[str, Check, str]] = [("data directory", partial(_folder, settings), _RIGHTS)]
    if settings.data_dir.is_dir():
        checks += [
            ("keys", partial(_keys, settings, clock.now()), _RIGHTS),
            ("database", partial(_database, settings, clock), _DATABASE),
            ("doors", partial(_doors, settings), _RIGHTS),
            ("operators", partial(doors.query_door, settings, clock), "see the findings about the HTTPS door"),
        ]
    for name, check, advice in checks:
        for finding in await findings_of(name, check, advice):
            yield finding


async def _database(settings: HubSettings, clock: Clock) -> AsyncIterator[DoctorFinding]:
    url = settings.store_url
    schema = await asyncio.to_thread(database.schema, url)
    yield schema
    if schema.state is DoctorState.BROKEN:
        return
    store = SqlStore(url)
    try:
        began = time.monotonic()
        seen = await store.read(database.read_state)
        for finding in database.judged(seen, settings, clock, timedelta(seconds=time.monotonic() - began)):
            yield finding
    finally:
        await store.close()


async def _doors(settings: HubSettings) -> AsyncIterator[DoctorFinding]:
    trust = doors.trust_of(settings)
    if trust is None:
        yield broken("doors", f"there is no CA in {settings.data_dir} with which to verify the hub", _RIGHTS)
        return
    for door in doors.doors_of(settings):
        for finding in await doors.reached(door, trust):
            yield finding


async def _folder(settings: HubSettings) -> AsyncIterator[DoctorFinding]:
    path, name = settings.data_dir, "data directory"
    if not path.is_dir():
        yield broken(name, f"{path} does not exist: no hub was ever started with it", _RUN)
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    open_files = [file.name for file in (*path.glob("ca*.key"), path / SEAL_FILE, path / ADMIN_FILE) if _is_open(file)]
    if mode & OTHERS and open_files:
        yield broken(name, f"other users can read {', '.join(open_files)} in {path}", f"chmod -R go-rwx {path}")
    elif mode & OTHERS:
        yield warning(name, f"other users can enter {path}", f"chmod go-rwx {path}")
    else:
        yield well(name, f"{path} is private")
    yield _disk(path, settings.disk_reserve)


def _is_open(file: Path) -> bool:
    return file.exists() and bool(stat.S_IMODE(file.stat().st_mode) & OTHERS)


def _disk(path: Path, reserve: int) -> DoctorFinding:
    """Check the free space of the data directory, in which an SQLite database and an audit log grow."""
    usage = shutil.disk_usage(path)
    message = f"{usage.free / GIBIBYTE:.1f} GiB of {usage.total / GIBIBYTE:.1f} GiB are free"
    advice = "free space, or keep less (--history-retention, --history-size); a database on a full disk cannot store heartbeats"
    if usage.free < reserve:
        return broken("disk", f"{message}, less than --disk-reserve: history is removed early", advice)
    return warning("disk", message, advice) if usage.free < 2 * reserve else well("disk", message)


async def _keys(settings: HubSettings, now: datetime) -> AsyncIterator[DoctorFinding]:
    """Check the key files. If the CA's key is stored elsewhere, the CA's certificate need not be in this folder."""
    path, name = settings.keys_dir or settings.data_dir, "keys"
    pairs = read_pairs(path).values()
    advice = f"restore {path} from a backup (hub restore); a hub cannot run without its keys"
    if settings.ca_key_place == "file" and not pairs:
        yield broken(name, f"the CA (ca*.crt, ca*.key) is not in {path}", advice)
        return
    if settings.secrets_key_file is None and not (path / SEAL_FILE).exists():
        yield broken(name, f"the key of Secrets ({SEAL_FILE}) is not in {path}", advice)
        return
    if not pairs:
        yield well(name, f"in {path}; the CA's key is kept in the {settings.ca_key_place}")
        return
    not_after = max(pki.parse_certificate(pair.certificate).not_after for pair in pairs)
    ends = f"the CA ends at {not_after:%Y-%m-%d}"
    if not_after <= now:
        yield broken(name, f"{ends}: it has expired", "hubctl ca rotate, on a hub whose clock is right")
    else:
        yield well(name, f"in {path}; {ends}")
