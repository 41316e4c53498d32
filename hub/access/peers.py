"""From a peer's certificate to its record, and word of revocations at once, or within half a second.

TLS has proven that the peer holds the key and that our CA signed; what the certificate opens stands only in the record of its
serial. Records are kept in memory by the certificate's bytes, since every call and every stream asks. `run` looks for what was
revoked; while it has not succeeded for a moment, every question goes to the database again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from hub.access.revocation_poller import FAR, POLL, RARELY, ReadWindow, RevocationPoller
from hub.api.certificateauthorities.authority import BUNDLED, RECOVERING, AuthorityRecord, signer_of
from hub.api.certificates.certificate import CertificateRecord, Purpose
from hub.api.certificates.revocation import verdict_on
from hub.ports import Store, Transaction
from hub.registry.certificates import service as certificates
from hub.registry.recovery import readoption
from machinery import pki
from machinery.errors import DenialCause, InvalidError, MusterError, UnauthorizedError
from machinery.identity import SerialNumber
from machinery.pki import CertificateFacts
from machinery.runtime.clock import Clock

FRESH = timedelta(seconds=2)
"""Longer than a look may be late."""
BLIND = timedelta(seconds=60)
"""Without a look at revocations for this long, nobody is known any more."""
MAX_KEPT = 50_000
KEPT_FOR = timedelta(minutes=10)
"""Since somebody last came with it: certificates are renewed, and the ones before never come again."""
TIDY = timedelta(minutes=1)
UNKNOWN = "this certificate is not known to the hub: register again with a bootstrap kubeconfig"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Known:
    record: CertificateRecord
    read_at: float
    asked_at: float


class Peers:
    """Identities by certificate. One per process, used by both doors."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        poll: timedelta = POLL,
        signers: Callable[[], Sequence[AuthorityRecord]] = tuple,
    ) -> None:
        """`signers`: the hub's CAs as they stand; none: whatever is on record counts, whoever signed it."""
        self._signers = signers
        self._store = store
        self._clock = clock
        self._looking = RevocationPoller(store, poll)
        self._trouble = ""
        self._looked_at = clock.monotonic()
        self._known: dict[bytes, _Known] = {}
        self._unknown: dict[bytes, float] = {}
        """Until when certificates without a record are refused without a look into the database."""
        self._polled_at = -FRESH.total_seconds()
        self._tidied_at = clock.monotonic()
        self._seen: Mapping[SerialNumber, str] = {}
        self._stretch = ReadWindow()
        self._listeners: set[Callable[[SerialNumber | None], None]] = set()

    def __len__(self) -> int:
        """How many certificates are remembered."""
        return len(self._known)

    async def identify(self, certificate: bytes) -> CertificateRecord:
        """The record behind a certificate (PEM or DER) that TLS has verified.

        Raises UnauthorizedError when there is none, or it is revoked or not valid now; UnavailableError.
        """
        known = self._known.get(certificate)
        if known is None or not self._is_fresh(known):
            record = await self._read(certificate)
            if record.revoked_at is None and record.serial in self._seen:  # by a look that ended while we read
                raise self.refusal(record.serial)
            known = _Known(record, read_at=self._clock.monotonic(), asked_at=0.0)
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[certificate] = known
        known.asked_at = self._clock.monotonic()
        self._check(known.record)
        return known.record

    async def former(self, certificate: bytes) -> CertificateRecord:
        """The same, also where it is revoked or not valid now. Raises UnauthorizedError (there is none), UnavailableError."""
        return await self._read(certificate)

    def refusal(self, serial: SerialNumber) -> UnauthorizedError:
        """What the holder of a serial is told that listeners were called with."""
        return refusal_of(self._seen.get(serial))

    def listen(self, listener: Callable[[SerialNumber | None], None]) -> Callable[[], None]:
        """Calls `listener` with each serial found revoked; None: revocations cannot be read any more, so nobody is known.

        Returns what ends that.
        """
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    async def run(self) -> None:
        """Looks for ever."""
        self._looked_at = self._clock.monotonic()
        await self._looking.run(self._look)

    async def _look(self, *, far: bool = False) -> bool:
        try:
            await self.poll(far=far)
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("revocations cannot be read", error=error.message)
            self._trouble = error.message
            if self._clock.monotonic() - self._looked_at > BLIND.total_seconds():
                self._tell(None)
            return False
        self._looked_at = self._clock.monotonic()
        if self._trouble:
            log.info("revocations are read again")
        self._trouble = ""
        return True

    async def poll(self, *, far: bool = False) -> None:
        """One look at what was revoked since the look before; `far`: at all that may be news. Raises UnavailableError."""
        began, since = self._clock.monotonic(), self._stretch.begin(far=far)
        now, revoked = await self._store.look(_revoked_since, since)
        self._stretch.end(now)
        new = [serial for serial in revoked if serial not in self._seen]
        if since is None:
            self._seen = revoked
        elif new:
            self._seen = {**self._seen, **revoked}
        self._polled_at = began
        if new:
            gone = frozenset(new)
            self._known = {key: known for key, known in self._known.items() if known.record.serial not in gone}
            for serial in new:
                self._tell(serial)
        self._tidy(began)

    def _tidy(self, now: float) -> None:
        if now >= self._tidied_at + TIDY.total_seconds():
            self._tidied_at = now
            oldest = now - KEPT_FOR.total_seconds()
            self._known = {key: known for key, known in self._known.items() if known.asked_at >= oldest}
            self._unknown = {key: until for key, until in self._unknown.items() if until > now}

    def _is_fresh(self, known: _Known) -> bool:
        most = FRESH + RARELY if self._looking.is_told and not self._trouble else FRESH
        return self._clock.monotonic() - max(known.read_at, self._polled_at) < most.total_seconds()

    async def _read(self, certificate: bytes) -> CertificateRecord:
        if self._unknown.get(certificate, 0.0) > self._clock.monotonic():
            raise UnauthorizedError(UNKNOWN)
        try:
            facts = pki.parse_certificate(certificate)
        except InvalidError as error:
            raise UnauthorizedError(error.message) from error
        record, lost = await self._store.read(_record_of, facts)
        if lost is not None:
            raise lost
        if record is None or record.key_hash != facts.key_hash:
            if len(self._unknown) >= MAX_KEPT:
                self._unknown.clear()
            self._unknown[certificate] = self._clock.monotonic() + FRESH.total_seconds()
            raise UnauthorizedError(UNKNOWN)
        return record

    def _check(self, record: CertificateRecord) -> None:
        if record.revoked_at is not None:
            raise refusal_of(record.revoked_reason)
        if not record.is_open(self._clock.now()):
            message = (
                f"this certificate is valid from {record.not_before:%Y-%m-%dT%H:%M:%SZ} "
                f"to {record.not_after:%Y-%m-%dT%H:%M:%SZ}, and not now"
            )
            raise UnauthorizedError(message, causes=DenialCause.CERTIFICATE_EXPIRED.because(message))
        self._check_signer(record)

    def _check_signer(self, record: CertificateRecord) -> None:
        """What a CA signed that is on its way out recovers its agent and does nothing else; of a retired one nothing counts."""
        signer = signer_of(record.signed_by, self._signers())
        if signer is None or signer.phase in BUNDLED or (signer.phase in RECOVERING and record.purpose is Purpose.RECOVERY):
            return
        phase = signer.phase.value
        message = (
            f"the CA that signed this certificate, {signer.id}, is {phase}: the recovery certificate beside it may still do"
        )
        raise UnauthorizedError(message, causes=DenialCause.AUTHORITY_RETIRED.because(message))

    def _tell(self, serial: SerialNumber | None) -> None:
        for listener in tuple(self._listeners):
            listener(serial)


def refusal_of(reason: str | None) -> UnauthorizedError:
    """What the holder of a certificate is told that was revoked for this reason."""
    verdict, message = verdict_on(reason)
    return UnauthorizedError(message, causes=verdict.because(message))


def _record_of(tx: Transaction, facts: CertificateFacts) -> tuple[CertificateRecord | None, UnauthorizedError | None]:
    """The record; where there is none, what its holder is told when a restore has lost it."""
    record = certificates.resolve(tx, facts.serial)
    return record, readoption.refusal_of(tx, facts) if record is None else None


def _revoked_since(tx: Transaction, since: datetime | None) -> tuple[datetime, Mapping[SerialNumber, str]]:
    return tx.now, tx.certificates.revoked_since(tx.now - FAR if since is None else since)
