"""Checks the machine: data directory, disk, and keys as far as possible without the database."""

import shutil
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from hub.commands.doctor.findings import DoctorFinding, broken, warning, well
from hub.issuer.local import CA_CERTIFICATE, CA_KEY
from hub.replica.installation import ADMIN_FILE
from hub.replica.keys import SEAL_FILE
from hub.settings import HubSettings
from machinery import pki
from machinery.errors import InvalidError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
GIBIBYTE = 2**30
_RUN = "run this as the hub's user, with the hub's settings (--data-dir, --config, or its environment)"


def folder(settings: HubSettings) -> Iterator[DoctorFinding]:
    """Check the data directory and its permissions."""
    path, name = settings.data_dir, "data directory"
    if not path.is_dir():
        yield broken(name, f"{path} is not there: no hub was ever started with it", _RUN)
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    open_files = [file.name for file in (path / CA_KEY, path / SEAL_FILE, path / ADMIN_FILE) if _is_open(file)]
    if mode & OTHERS and open_files:
        yield broken(name, f"others than its user can read {', '.join(open_files)} in {path}", f"chmod -R go-rwx {path}")
    elif mode & OTHERS:
        yield warning(name, f"{path} can be entered by others than its user", f"chmod go-rwx {path}")
    else:
        yield well(name, f"{path}, its user's alone")
    yield _disk(path, settings.disk_reserve)


def _is_open(file: Path) -> bool:
    return file.exists() and bool(stat.S_IMODE(file.stat().st_mode) & OTHERS)


def _disk(path: Path, reserve: int) -> DoctorFinding:
    """Check the free space of the data directory, in which an SQLite database and an audit log grow."""
    usage = shutil.disk_usage(path)
    said = f"{usage.free / GIBIBYTE:.1f} GiB of {usage.total / GIBIBYTE:.1f} GiB are free"
    advice = "make room, or shorten what is kept (--history-retention, --history-size); a database on a full disk takes no beat"
    if usage.free < reserve:
        return broken("disk", f"{said}, less than --disk-reserve: history goes before its time", advice)
    return warning("disk", said, advice) if usage.free < 2 * reserve else well("disk", said)


def keys(settings: HubSettings, now: datetime) -> Iterator[DoctorFinding]:
    """Check the key files. If the CA's key is stored elsewhere, its certificate need not be here."""
    path = settings.keys_dir or settings.data_dir
    name, ca = "keys", path / CA_CERTIFICATE
    advice = f"restore {path} from a backup (hub restore); without its keys a hub is lost"
    if settings.ca_key_place == "file" and not (ca.exists() and (path / CA_KEY).exists()):
        yield broken(name, f"the CA ({CA_CERTIFICATE}, {CA_KEY}) is not in {path}", advice)
        return
    if settings.secrets_key_file is None and not (path / SEAL_FILE).exists():
        yield broken(name, f"the key of Secrets ({SEAL_FILE}) is not in {path}", advice)
        return
    if not ca.exists():
        yield well(name, f"in {path}; the CA's key is kept in the {settings.ca_key_place}")
        return
    try:
        facts = pki.parse_certificate(ca.read_bytes())
    except InvalidError as error:
        yield broken(name, f"{ca}: {error.message}", advice)
        return
    ends = f"the CA ends at {facts.not_after:%Y-%m-%d}"
    if facts.not_after <= now:
        yield broken(name, f"{ends}: it signs nothing any more", "hubctl ca rotate, on a hub whose clock is right")
    else:
        yield well(name, f"in {path}; {ends}")
