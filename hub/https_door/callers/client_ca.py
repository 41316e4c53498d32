"""Client CAs from a file (`--client-ca-file`), in addition to the hub's own CA: read at the start and when the file changes.

If the file is missing or cannot be read, the previous CAs stay, and a line is logged.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import structlog

from hub.https_door.callers.authentication import ExternalAuthenticator
from machinery import pki
from machinery.apiserver.authn.authorities import ForeignCertificates, TrustedAuthorities
from machinery.errors import InvalidError
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.tls import Serving

RELOAD_PERIOD = timedelta(seconds=2)
SOURCE = "client-ca-file"

log = structlog.get_logger(__name__)


class ClientAuthorityFile(ExternalAuthenticator):
    """Reads client CAs from a file, at the start and after each change. Sets `authorities` and the client CAs of `serving`."""

    def __init__(self, path: Path, groups: Iterable[str], serving: Serving, clock: Clock) -> None:
        """`groups`: the hub ignores all other groups in certificates of these CAs. Raises InvalidError with the file's name."""
        self._path = path
        self._serving = serving
        self._failure = LogOnce(log)
        self.authorities = TrustedAuthorities()
        self.authenticator = ForeignCertificates(self.authorities, groups, clock)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidError(f"client_ca_file: {path} cannot be read: {error.strerror}") from None
        self._take(content)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_PERIOD.total_seconds())
            await self.look()

    async def look(self) -> None:
        try:
            content = await asyncio.to_thread(self._path.read_bytes)
            if content == self.authorities.bundle:
                return
            self._take(content)
        except (OSError, InvalidError) as error:
            self._failure.warning("CAs of clients cannot be read: the previous CAs stay in use", error, file=str(self._path))
        else:
            self._failure.reset()
            log.info("CAs of clients exchanged", file=str(self._path))

    def _check(self, content: bytes) -> None:
        new, own = [
            {pki.parse_certificate(each).fingerprint for each in pki.split_bundle(pem)}
            for pem in (content, self._serving.material.trust)
        ]
        if new & own:
            raise InvalidError("it contains the hub's own CA, whose certificates are accepted only if the hub has issued them")

    def _take(self, content: bytes) -> None:
        """Applies the content. Raises InvalidError; then nothing has changed."""
        try:
            self._check(content)
            self._serving.trust_clients(SOURCE, content)
            self.end_requests_under(self.authorities.replace(content))
        except InvalidError as error:
            self._serving.trust_clients(SOURCE, self.authorities.bundle)
            raise InvalidError(f"client_ca_file: {self._path}: {error.message}") from None
