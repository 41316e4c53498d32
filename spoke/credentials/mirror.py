"""Retries writes to the directory of the hub kubeconfig that fail, for example on a full disk.

The secret is authoritative, so nothing waits for the directory. But its readers must not keep an old certificate until the next
renewal, which may be weeks away: a failed write is retried every minute.
"""

from collections.abc import Mapping
from datetime import timedelta

import structlog

from machinery.errors import MusterError
from spoke.ports import CredentialDirectory

AGAIN = timedelta(minutes=1)

log = structlog.get_logger(__name__)


class PatientDirectory(CredentialDirectory):
    """Remembers contents that `inner` cannot write now, until `again` succeeds."""

    def __init__(self, inner: CredentialDirectory) -> None:
        self._inner = inner
        self._owed: Mapping[str, bytes] | None = None

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Raises InvalidError as the directory does; never OSError."""
        self._owed = None
        try:
            self._inner.replace(contents)
        except OSError as error:
            self._owed = dict(contents)
            next_try = f"trying again every {AGAIN.total_seconds():g} s; the secret holds the credential"
            log.warning("credential.not_mirrored", error=str(error), next=next_try)

    def read(self) -> Mapping[str, bytes]:
        return self._inner.read()

    def again(self) -> None:
        """Retry the failed write, if there is one."""
        if self._owed is None:
            return
        try:
            self._inner.replace(self._owed)
        except (OSError, MusterError) as error:
            log.debug("credential.not_mirrored", error=str(error))
            return
        self._owed = None
        log.info("credential.mirrored")
