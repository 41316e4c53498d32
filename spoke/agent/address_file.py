"""Where the agent of these settings answers on this machine: the file by which doctor and status find it."""

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
    """One for each agent: its cluster's kubeconfig, its namespace and its Lease tell agents of a user apart."""
    kubeconfig = str(settings.kubeconfig.absolute()) if settings.kubeconfig is not None else ""
    parts = (kubeconfig, settings.component_namespace, settings.leader_elect_resource_name or LEASE)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(folder, f"muster-spoke-{os.getuid()}", name)


@contextmanager
def published(settings: SpokeSettings, address: str) -> Iterator[None]:
    """The address stands in the file for the length of the block, unless the settings name it. Failures are logged."""
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
    """`host:port` where the agent's probes answer; port 0: not known, since no agent of these settings runs here."""
    if not settings.health_listen.endswith(":0"):
        return settings.health_listen
    file = address_file(settings)
    with suppress(OSError):
        if file.parent.stat().st_uid == os.getuid():
            return file.read_text().strip() or settings.health_listen
    return settings.health_listen
