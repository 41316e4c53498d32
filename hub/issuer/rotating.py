"""The issuer of a hub: signs with the issuing CA and knows the CAs that are being introduced or retired.

A new state of the CAs replaces the old one atomically; two reads may still see two states. `hub.replica.authorities` follows
the store and sets the state.

Only the hub's own CA signs certificates of agents, add-ons, bootstrap credentials, the administrator and the doors. If another
CA signed them, API servers that trust that CA would accept them, even after the hub has revoked them. The types ensure this:
other issuers are `LoginIssuer`s, which have no `issue`. Logins are signed by the first `LoginIssuer` that can, or else by the
hub's own CA.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

import structlog

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, admitted, bundled, issuing
from hub.api.certificates import IssuedCertificate, Profile, Purpose
from hub.issuer.local import OWN, LocalIssuer
from hub.ports.identities import Issuer, ListSigner, LoginIssuer
from machinery import pki
from machinery.errors import MusterError, NotFoundError, UnavailableError
from machinery.identity import SerialNumber
from machinery.observability.metrics import Distribution

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuthoritySnapshot:
    """All CAs of the hub at one instant, and the keys available on this replica."""

    authorities: tuple[AuthorityRecord, ...] = ()
    keys: Mapping[AuthorityId, LocalIssuer] = field(default_factory=dict, repr=False)

    @property
    def issuing(self) -> AuthorityRecord | None:
        return issuing(self.authorities)

    def chain_above(self, signer: AuthorityId) -> bytes:
        """Return the CA certificates (PEM) above a serving certificate of `signer`; b"" if `signer` is not cross-signed.

        They are `signer` and earlier CAs, each cross-signed by its predecessor. The chain ends before a compromised CA.
        """
        links, current = [], next((each for each in self.authorities if each.id == signer), None)
        if current is None or current.cross_signed is None:
            return b""  # the usual case; no parsing, because this runs every two seconds
        by_name = {pki.parse_certificate(each.certificate).subject_key_id: each for each in self.authorities}
        while current is not None and current.cross_signed is not None:
            before = by_name.get(pki.parse_certificate(current.cross_signed).authority_key_id)
            if before is None or before.is_given_up:
                break
            links.append(current.cross_signed)
            current = before
        return b"".join(links)


class RotatingIssuer(Issuer, ListSigner):
    """Signs with the issuing CA. Thread-safe. `take` notifies the listeners in its caller's thread."""

    def __init__(self) -> None:
        self.snapshot = AuthoritySnapshot()
        self._others = b""
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._logins: tuple[LoginIssuer, ...] = ()
        self._lock = Lock()
        self.signed: Counter[tuple[Purpose, str]] = Counter()
        """Number of certificates signed since the start of the process, by purpose and issuer."""
        self.failed: Counter[tuple[Purpose, str]] = Counter()
        self.seconds = Distribution()
        """Duration of a signature, including the lookups before and after it."""

    def take(self, snapshot: AuthoritySnapshot) -> bool:
        """Set the state of the CAs. Returns whether the state has changed."""
        before, self.snapshot = self.snapshot, snapshot
        changed = before.authorities != snapshot.authorities or before.keys.keys() != snapshot.keys.keys()
        if changed:
            self._notify()
        return changed

    def trust_also(self, others: bytes) -> None:
        """Set the other CAs (PEM) of the trust bundle, which verify `--serving-cert-file`. Replaces earlier ones."""
        if others != self._others:
            self._others = others
            self._notify()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the CAs or of the trust bundle."""
        self._listeners = (*self._listeners, listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def trust_bundle(self) -> bytes:
        return b"".join(each.certificate for each in bundled(self.snapshot.authorities)) + self._others

    @property
    def client_trust(self) -> bytes:
        """Return the CAs (PEM) whose client certificates TLS accepts: also CAs that have left the trust bundle."""
        return b"".join(each.certificate for each in admitted(self.snapshot.authorities))

    def add_login_issuer(self, issuer: LoginIssuer) -> None:
        """Let `issuer` sign logins. Issuers are tried in the order in which they were added, and then the hub's own CA."""
        self._logins = (*self._logins, issuer)

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Sign with the issuing CA; a login with the first issuer that can. Each serial gets only one certificate.

        If all issuers fail, the error lists each failure with the issuer's name. It has the failures' common type, or is an
        UnavailableError. An issuer's unexpected error (not a MusterError) is logged with its stack trace, and becomes a
        RuntimeError if no issuer could sign.
        """
        began, purpose = time.monotonic(), profile.purpose
        failures: list[tuple[str, Exception]] = []
        others = self._logins if purpose is Purpose.LOGIN else ()
        for other in (*others, None):  # None: the hub's own CA
            name = other.name if other is not None else OWN
            try:
                sign = other.issue_login if other is not None else self.current.issue
                issued = sign(profile, serial, now)
            except Exception as error:
                failures.append((name, error))
                with self._lock:
                    self.failed[purpose, name] += 1
                if isinstance(error, MusterError):
                    log.warning("issuer could not sign", issuer=name, purpose=str(purpose), error=error.message)
                else:
                    log.exception("issuer failed", issuer=name, purpose=str(purpose))
            else:
                with self._lock:
                    self.signed[purpose, name] += 1
                    self.seconds.observe(time.monotonic() - began)
                return issued
        raise _all_failed(failures)

    def counts(self) -> Mapping[str, object]:
        """Return the numbers of signatures and failures by purpose and issuer, for the inspection page."""
        with self._lock:
            counts = (("signed", dict(self.signed)), ("failed", dict(self.failed)))
        return {f"{what} {purpose} by {name}": number for what, each in counts for (purpose, name), number in each.items()}

    @property
    def current(self) -> LocalIssuer:
        """Return the issuing CA with its key. Raises UnavailableError while this replica lacks the key."""
        snapshot = self.snapshot
        one = snapshot.issuing
        if one is None or one.id not in snapshot.keys:
            raise UnavailableError(f"this replica lacks the key of the issuing CA, {one.id if one else 'none'}")
        return snapshot.keys[one.id]

    @property
    def authorities(self) -> Sequence[str]:
        return tuple(each.signer for each in self.snapshot.authorities if each.id in self.snapshot.keys)

    def sign_list(self, authority: str, content: pki.RevocationList) -> bytes:
        for each in self.snapshot.authorities:
            if each.signer == authority and each.id in self.snapshot.keys:
                return self.snapshot.keys[each.id].sign_list(authority, content)
        raise NotFoundError(f'the hub has no CA "{authority}"')


def _all_failed(failures: Sequence[tuple[str, Exception]]) -> Exception:
    texts = [f"{name}: {error.message if isinstance(error, MusterError) else error}" for name, error in failures]
    message = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kinds = {type(error) for _, error in failures}
    if not all(issubclass(kind, MusterError) for kind in kinds):
        failed: Exception = RuntimeError(message)
    elif len(kinds) == 1 and (kind := kinds.pop()) is not MusterError:
        failed = kind(message)
    else:
        failed = UnavailableError(message)
    failed.__cause__ = failures[-1][1]
    return failed
