"""The file with the address of a running agent's probes, by which doctor and status find it on the same machine."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from spoke.agent.candidate import LEASE
from spoke.settings import SpokeSettings

log = structlog.get_logger(__name__)


def address_file(settings: SpokeSettings) -> Path:
    """One file per agent of a user, identified by its cluster's kubeconfig, its namespace and its Lease."""
    kubeconfig = str(settings.kubeconfig.absolute()) if settings.kubeconfig is not None else ""
    parts = (kubeconfig, settings.component_namespace, settings.leader_elect_resource_name or LEASE)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(folder, f"muster-spoke-{os.getuid()}", name)


@contextmanager
def published(settings: SpokeSettings, address: str) -> Iterator[None]:
    """Keep the address in the file for the length of the block, unless the settings name a port. Failures are logged."""
    if not settings.health_listen.endswith(":0"):
        yield
        return
    file = address_file(settings)
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if file.parent.is_symlink() or file.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{file.parent} belongs to another user")
        written = file.with_suffix(f".{os.getpid()}")
        written.write_text(address)
        written.replace(file)
    except OSError as error:
        log.warning("address.not_written", file=str(file), error=str(error), advice="give --health-listen a port")
    try:
        yield
    finally:
        with suppress(OSError):
            if file.read_text() == address:
                file.unlink()


def probes_of(settings: SpokeSettings) -> str:
    """`host:port` of the agent's probes; port 0 when unknown, because no agent with these settings runs here."""
    if not settings.health_listen.endswith(":0"):
        return settings.health_listen
    file = address_file(settings)
    with suppress(OSError):
        if file.parent.stat().st_uid == os.getuid():
            return file.read_text().strip() or settings.health_listen
    return settings.health_listen
