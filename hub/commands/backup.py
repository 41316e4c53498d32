"""Runs `hub backup`: reads the keys, lets `hub.store.backup` write the rows and the file, and prints the result."""

from functools import partial
from pathlib import Path

import click
import structlog

from hub.commands import backup_keys as keys
from hub.ports import HUB_ID
from hub.replica.installation import SUFFIX
from hub.settings import HubSettings
from hub.store.backup.archive import FORMAT, PROOF, SEALED, Archive, ArchiveWriter, Manifest
from hub.store.backup.backup import note_backup, write_tables
from machinery.errors import InvalidError, MusterError
from machinery.product import version
from machinery.runtime.directory import DataDirectory

CHOICE = (
    "choose what happens to the hub's keys: --passphrase-file FILE encrypts them into the backup, --without-keys leaves them "
    "out (then keep a copy elsewhere: a hub cannot be restored without its keys)"
)

log = structlog.get_logger(__name__)


def run(settings: HubSettings, file: Path, *, passphrase_file: Path | None, without_keys: bool, records: bool) -> None:
    """Make the backup and print the result. `records`: write its time into the database, for the metric. Raises MusterError."""
    if (passphrase_file is None) is not without_keys:
        raise InvalidError(CHOICE)
    folder = DataDirectory(settings.keys_dir or settings.data_dir, "hub")
    found: dict[str, bytes] = {}
    if passphrase_file is None:
        kept = keys.read_seal(folder, settings.secrets_key_file)
        seal, place = None if kept is None else partial(keys.proof, kept), PROOF
    else:
        found |= keys.collect(folder, settings.secrets_key_file)
        seal, place = partial(keys.sealed, found, keys.read_passphrase(passphrase_file)), SEALED
    with ArchiveWriter(file) as writer:
        snapshot = write_tables(settings.store_url, writer)
        if passphrase_file is not None:
            found |= keys.collect(folder, settings.secrets_key_file)  # a CA may have been added or removed in the meantime
        manifest = Manifest(
            format=FORMAT,
            program=version(),
            made=snapshot.made,
            schema=snapshot.schema,
            revision=snapshot.revision,
            hub_id=snapshot.facts.get(HUB_ID, ""),
            group_suffix=snapshot.facts.get(SUFFIX, ""),
            tables=(),
            key_place=settings.ca_key_place,
        )
        if not manifest.hub_id:
            raise InvalidError("the database has no hub yet: there is nothing to back up")
        manifest = writer.finish(manifest, seal, place=place)
    if records:
        try:
            note_backup(settings.store_url, snapshot.made)
        except MusterError as error:  # the backup is complete without it
            log.warning("the time of the backup cannot be recorded in the database", error=error.message)
    rows = sum(entry.rows for entry in manifest.tables)
    click.echo(f"{file} is a backup of hub {manifest.hub_id} as it was at {manifest.made}")
    click.echo(f"  {rows} rows of {len(manifest.tables)} tables, schema {manifest.schema}, revision {manifest.revision}")
    if found:
        click.echo(f"  keys, encrypted with the passphrase: {', '.join(sorted(found))}")
    else:
        click.echo(f"  without keys: keep a copy of ca*.crt, ca*.key, secrets.key and token-*.key of {folder.path} elsewhere")
    if seal is None:
        click.echo("  secrets.key is not here: changes of the backup cannot be detected, and its restore needs --unverified")
    if manifest.key_place == "secret":
        click.echo(
            f"  the CA's key is in the Secret {settings.ca_key_secret}, which the backup does not contain: keep a copy of it"
        )


def record(settings: HubSettings, file: Path) -> None:
    """Write into the database when the backup `file` was made: it is the newest. Raises InvalidError, UnavailableError."""
    with Archive(file) as archive:
        archive.verify()
        note_backup(settings.store_url, archive.manifest.made)
    click.echo(f"{file} is recorded as the newest backup: it was created at {archive.manifest.made}")
