"""The directory of the hub kubeconfig when it cannot be written: a full disk is told, outlived, and made good.

The secret is what counts, so nothing waits for the directory. Whoever reads it must not be left with an old certificate until
the next renewal, which may be weeks away: what could not be written is tried again, every minute.
"""

from collections.abc import Mapping
from datetime import timedelta

import structlog

from machinery.errors import MusterError
from spoke.ports import CredentialDirectory

AGAIN = timedelta(minutes=1)

log = structlog.get_logger(__name__)


class PatientDirectory(CredentialDirectory):
    """Takes what `inner` cannot write now, until `again` is called with more luck."""

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
        """Writes what is owed, if anything is."""
        if self._owed is None:
            return
        try:
            self._inner.replace(self._owed)
        except (OSError, MusterError) as error:
            log.debug("credential.not_mirrored", error=str(error))
            return
        self._owed = None
        log.info("credential.mirrored")
