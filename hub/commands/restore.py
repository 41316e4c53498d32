"""Runs `hub restore`. Prints what was restored, and which decisions after the backup the operator must check."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from hub.api.restorations import Readopts
from hub.commands import backup_keys as keys
from hub.registry.recovery import RestoreOrder, RestoreOutcome, restored
from hub.replica.admin_kubeconfig import ADMIN_FILE
from hub.settings import HubSettings
from hub.store.backup.archive import Archive, Manifest
from hub.store.backup.restore import Restored, RestoreTarget, restore_tables
from hub.store.engine.file_lock import database_lock
from machinery.errors import InvalidError, UnavailableError
from machinery.meta.timestamps import format_time, parse_time
from machinery.observability import logs
from machinery.runtime.directory import DataDirectory

PRIVATE = 0o077
SHOWN = 20


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """The options of `hub restore`. `lists`: files with revocation lists (`--crl`). `above`: see `RestoreTarget`."""

    file: Path
    passphrase_file: Path | None
    lists: tuple[Path, ...]
    readopts: Readopts
    replaces: bool
    above: int
    unverified: bool


def run(options: RestoreOptions, settings: HubSettings) -> None:
    """Restore and print the result. Raises MusterError."""
    logs.configure(settings.log_level, settings.log_format)
    os.umask(PRIVATE)
    # Everything is checked before anything is written. Keys are written first, because without rows they do no harm.
    with ExitStack() as stack:
        archive = stack.enter_context(Archive(options.file))
        manifest = archive.manifest
        if manifest.group_suffix != settings.api_group_suffix:
            raise InvalidError(
                f'the API groups of the backup\'s hub end in "{manifest.group_suffix}": restore it, and start it, with '
                f"--api-group-suffix {manifest.group_suffix} (HUB_API_GROUP_SUFFIX)"
            )
        archive.verify()
        lists = tuple(each for file in options.lists for each in _read(file))
        found = _keys(archive, options)
        directory = stack.enter_context(DataDirectory(settings.data_dir, "hub"))
        stack.enter_context(database_lock(settings.store_url))
        folder = directory if settings.keys_dir is None else DataDirectory(settings.keys_dir, "hub")
        if archive.sealed is None and not options.unverified:
            keys.check_proof(archive.proof, keys.read_seal(folder, settings.secrets_key_file), archive.digest, folder)
        keys.check_place(found, folder)
        keys.put(found, folder)
        order = RestoreOrder(parse_time(manifest.made), options.readopts, lists)
        target = RestoreTarget(settings.store_url, options.replaces, options.above)
        done, outcome = restore_tables(archive, target, partial(restored, order=order))
        directory.remove(ADMIN_FILE)  # the next start makes one with a recorded certificate
        for line in (*_restored(manifest, done, outcome), *_lost(manifest, order, outcome)):
            click.echo(line)
        if not any(folder.path.glob("ca*.key")):
            where = "put them there before the start, unless the CA's key is stored elsewhere"
            click.echo(f"the hub's keys are not in {folder.path}: {where}")
        click.echo("start it with `hub serve`, and make a backup of it soon")


def _keys(archive: Archive, options: RestoreOptions) -> dict[str, bytes]:
    content = archive.sealed
    if content is None:
        if options.passphrase_file is not None:
            raise InvalidError("the backup has no keys: restore it without --passphrase-file, and copy the keys yourself")
        return {}
    if options.passphrase_file is None:
        raise InvalidError("the backup has the hub's keys: give the passphrase that encrypts them (--passphrase-file)")
    return keys.opened(content, keys.read_passphrase(options.passphrase_file), archive.digest)


def _read(file: Path) -> list[bytes]:
    try:
        return re.split(rb"(?<=-----END X509 CRL-----)\s+(?=\S)", file.read_bytes())  # `hubctl get crl` prints one list per CA
    except OSError as error:
        raise UnavailableError(f"the revocation list {file} cannot be read: {error.strerror or error}") from error


def _restored(manifest: Manifest, done: Restored, outcome: RestoreOutcome) -> Iterator[str]:
    yield f"hub {manifest.hub_id} is restored as it was at {manifest.made}"
    if done.former is not None:
        yield f"  the previous database is kept as {done.former}"
    yield f"  {outcome.agents} agents with a valid certificate, {outcome.credentials} valid bootstrap credentials"
    yield f"  the change log continues at revision {done.revision}: watches and paged lists must start again"
    for each in outcome.lists:
        yield (
            f"  list {each.number} of {each.authority}, of {format_time(each.at)}: {each.revoked} revoked, "
            f"{each.unknown} issued after the backup will not be readopted"
        )


def _lost(manifest: Manifest, order: RestoreOrder, outcome: RestoreOutcome) -> Iterator[str]:
    yield f"decisions made after {manifest.made} are lost; check them:"
    until = max((each.at for each in outcome.lists), default=order.made)
    yield (
        f"  revocations of certificates after {format_time(until)} may be lost"
        + ("" if outcome.lists else ": give the newest list of each CA with --crl, if there is a copy")
        + "; revoke again what was revoked (hubctl revoke)"
    )
    if outcome.credentials:
        yield "  bootstrap credentials and tokens that were revoked are valid again: hubctl get bootstrapcredentials"
    yield "  clusters that were denied or deleted, and roles that were withdrawn, are restored: hubctl get clusters"
    if outcome.spent:
        shown = ", ".join(outcome.spent[:SHOWN]) + (" ..." if len(outcome.spent) > SHOWN else "")
        yield f"  the lists revoke all certificates of these clusters, which may have been deleted: {shown}"
    yield f"  {_AGENTS[order.readopts]}"


_AGENTS = {
    Readopts.AUTOMATIC: "agents with newer certificates reconnect by themselves; clusters that joined since await acceptance",
    Readopts.APPROVAL: "agents with a newer certificate request a new one: hubctl get csr, hubctl certificate approve NAME",
    Readopts.NEVER: "agents with a newer certificate need a new bootstrap kubeconfig",
}
