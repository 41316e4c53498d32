"""Authentication of client certificates: finds the record of a certificate and notifies listeners of revocations.

TLS has verified the key and the CA's signature. Only the record of the serial number defines what a certificate permits. Every
call needs a record, so records are cached by the certificate's bytes. `run` reads revocations after each notification and every
five seconds; while notifications do not work, every half second. If the last read is too old (`FRESH`), requests read the
database.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.access.revocation_poller import FAR, OVERLAP, POLL, RARELY, RevocationPoller
from hub.api.certificateauthorities.authority import BUNDLED, RECOVERING, AuthorityRecord, signer_of
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.revocations import denial_of
from hub.ports import Store, Transaction
from hub.registry import recovery
from machinery import pki
from machinery.errors import DenialCause, InvalidError, UnauthorizedError
from machinery.identity import SerialNumber
from machinery.pki import CertificateFacts
from machinery.runtime.clock import Clock

FRESH = timedelta(seconds=2)
"""Time for which cached records are valid after a read of revocations. While notifications work, `RARELY` is added."""
BLIND = timedelta(seconds=60)
"""Longest time without a read of revocations. After this time, listeners are called with None: no certificate counts as
valid."""
MAX_KEPT = 50_000
KEPT_FOR = timedelta(minutes=10)
"""A cached record is removed this long after its last use, because agents do not use a certificate after its renewal."""
TIDY = timedelta(minutes=1)
UNKNOWN = "this certificate is not known to the hub: register again with a bootstrap kubeconfig"


@dataclass(slots=True)
class _Known:
    record: CertificateRecord
    read_at: float
    asked_at: float


class Peers:
    """Finds and caches the records of client certificates. One per process, used by both doors."""

    def __init__(
        self, store: Store, clock: Clock, *, poll: timedelta = POLL, signers: Callable[[], Sequence[AuthorityRecord]] = tuple
    ) -> None:
        """`signers` returns the hub's CAs in their current phases. Without any CA, signers of certificates are not checked."""
        self._signers = signers
        self._store = store
        self._clock = clock
        self._poller = RevocationPoller(store, "revocations cannot be read", "revocations are read again", poll=poll)
        self._read_at = clock.monotonic()
        self._known: dict[bytes, _Known] = {}
        self._unknown: dict[bytes, float] = {}
        """For each certificate without a record, the time until which it is refused without a database read."""
        self._polled_at = -FRESH.total_seconds()
        self._tidied_at = clock.monotonic()
        self._seen: Mapping[SerialNumber, str] = {}
        self._since: datetime | None = None
        """Database time from which the next read starts, unless it is a far read."""
        self._listeners: set[Callable[[frozenset[SerialNumber] | None], None]] = set()

    def __len__(self) -> int:
        return len(self._known)

    async def identify(self, certificate: bytes) -> CertificateRecord:
        """Returns the record of a certificate (PEM or DER) that TLS has verified.

        Raises UnauthorizedError if the certificate has no record, is revoked or is not valid now. Raises UnavailableError.
        """
        known = self._known.get(certificate)
        if known is None or not self._is_fresh(known):
            record = await self._read(certificate)
            if record.revoked_at is None and record.serial in self._seen:  # revoked while the record was read
                raise self.refusal(record.serial)
            known = _Known(record, read_at=self._clock.monotonic(), asked_at=0.0)
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[certificate] = known
        known.asked_at = self._clock.monotonic()
        self._check(known.record)
        return known.record

    async def former(self, certificate: bytes) -> CertificateRecord:
        """Returns the record of any certificate, even a revoked one. Raises UnauthorizedError (no record), UnavailableError."""
        return await self._read(certificate)

    def refusal(self, serial: SerialNumber) -> UnauthorizedError:
        """Returns the error for the holder of a certificate whose serial number was passed to listeners."""
        return revoked_error(self._seen.get(serial))

    def listen(self, listener: Callable[[frozenset[SerialNumber] | None], None]) -> Callable[[], None]:
        """Calls `listener` once per read with the newly revoked serial numbers, if there are any.

        Calls it with None when the replica can no longer read revocations. Returns a function that removes the listener.
        """
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    async def run(self) -> None:
        self._read_at = self._clock.monotonic()
        await self._poller.run(self.poll, self._notify_if_blind)

    def _notify_if_blind(self) -> None:
        if self._clock.monotonic() - self._read_at > BLIND.total_seconds():
            self._notify(None)

    async def poll(self, *, far: bool = False) -> None:
        """Reads the revocations since the last read; with `far`, those of the last 7 days (`FAR`). Raises UnavailableError."""
        began, since = self._clock.monotonic(), None if far else self._since
        now, revoked = await self._store.look(_revoked_since, since)
        self._since = now - OVERLAP
        new = [serial for serial in revoked if serial not in self._seen]
        if since is None:
            self._seen = revoked
        elif new:
            self._seen = {**self._seen, **revoked}
        self._polled_at, self._read_at = began, self._clock.monotonic()
        if new:
            revoked_now = frozenset(new)
            self._known = {key: known for key, known in self._known.items() if known.record.serial not in revoked_now}
            self._notify(revoked_now)
        if began >= self._tidied_at + TIDY.total_seconds():
            self._tidied_at, oldest = began, began - KEPT_FOR.total_seconds()
            self._known = {key: known for key, known in self._known.items() if known.asked_at >= oldest}
            self._unknown = {key: until for key, until in self._unknown.items() if until > began}

    def _is_fresh(self, known: _Known) -> bool:
        most = FRESH + RARELY if self._poller.is_notified else FRESH
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
            raise revoked_error(record.revoked_reason)
        if not record.is_open(self._clock.now()):
            message = (
                f"this certificate is valid from {record.not_before:%Y-%m-%dT%H:%M:%SZ} "
                f"to {record.not_after:%Y-%m-%dT%H:%M:%SZ}, and not now"
            )
            raise UnauthorizedError(message, causes=DenialCause.CERTIFICATE_EXPIRED.because(message))
        self._check_signer(record)

    def _check_signer(self, record: CertificateRecord) -> None:
        """Certificates of a Retiring CA are valid only for recovery, certificates of a Retired CA not at all."""
        signer = signer_of(record.signed_by, self._signers())
        if signer is None or signer.phase in BUNDLED or (signer.phase in RECOVERING and record.purpose is Purpose.RECOVERY):
            return
        phase = signer.phase.value
        message = f"the CA that signed this certificate, {signer.id}, is {phase}: use the agent's recovery certificate"
        raise UnauthorizedError(message, causes=DenialCause.AUTHORITY_RETIRED.because(message))

    def _notify(self, serials: frozenset[SerialNumber] | None) -> None:
        for listener in tuple(self._listeners):
            listener(serials)


def revoked_error(reason: str | None) -> UnauthorizedError:
    cause, message = denial_of(reason)
    return UnauthorizedError(message, causes=cause.because(message))


def _record_of(tx: Transaction, facts: CertificateFacts) -> tuple[CertificateRecord | None, UnauthorizedError | None]:
    """Returns the record. If there is none, returns the error for a certificate whose record a restore has lost."""
    record = tx.certificates.by_serial(facts.serial)
    return record, recovery.lost_record_error(tx, facts) if record is None else None


def _revoked_since(tx: Transaction, since: datetime | None) -> tuple[datetime, Mapping[SerialNumber, str]]:
    return tx.now, tx.certificates.revoked_since(tx.now - FAR if since is None else since)
