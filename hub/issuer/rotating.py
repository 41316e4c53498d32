"""The issuer of a hub: signs with the issuing CA and knows the CAs that are being introduced or retired.

A new state of the CAs replaces the old one atomically; two reads may still see two states. `hub.replica.authorities` follows
the store and sets the state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, admitted, bundled, issuing
from hub.api.certificates import IssuedCertificate, Profile
from hub.issuer.local import LocalIssuer
from hub.ports.identities import Issuer, ListSigner
from machinery import pki
from machinery.errors import NotFoundError, UnavailableError
from machinery.identity import SerialNumber


@dataclass(frozen=True, slots=True)
class AuthoritySnapshot:
    """All CAs of the hub at one instant, and the keys available on this replica."""

    authorities: tuple[AuthorityRecord, ...] = ()
    keys: Mapping[AuthorityId, LocalIssuer] = field(default_factory=dict, repr=False)

    @property
    def issuing(self) -> AuthorityRecord | None:
        return issuing(self.authorities)

    def chain_above(self, signer: AuthorityId) -> bytes:
        """Return the chain above a serving certificate of this CA: the CA cross-signed by each of its predecessors.

        A peer that trusts any of these can verify the chain, which ends at a compromised CA.
        """
        links, current = [], next((each for each in self.authorities if each.id == signer), None)
        if current is None or current.cross_signed is None:
            return b""  # the usual case, and called every two seconds: avoid parsing
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

    def take(self, snapshot: AuthoritySnapshot) -> bool:
        """Set the state. Returns whether it changed."""
        before, self.snapshot = self.snapshot, snapshot
        changed = before.authorities != snapshot.authorities or before.keys.keys() != snapshot.keys.keys()
        if changed:
            self._notify()
        return changed

    def trust_also(self, others: bytes) -> None:
        """Add other CAs (PEM), which verify a given serving certificate, to the trust bundle."""
        if others != self._others:
            self._others = others
            self._notify()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners = (*self._listeners, listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def trust_bundle(self) -> bytes:
        return b"".join(each.certificate for each in bundled(self.snapshot.authorities)) + self._others

    @property
    def client_trust(self) -> bytes:
        """Return the CAs (PEM) whose client certificates TLS accepts: those of the trust bundle and others."""
        return b"".join(each.certificate for each in admitted(self.snapshot.authorities))

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Raises the errors of `LocalIssuer.issue`, and UnavailableError while this replica lacks the key."""
        return self.current.issue(profile, serial, now)

    @property
    def current(self) -> LocalIssuer:
        """Return the issuing CA with its key. Raises UnavailableError while this replica lacks the key."""
        snapshot = self.snapshot
        one = snapshot.issuing
        if one is None or one.id not in snapshot.keys:
            raise UnavailableError(f"the key of the CA that issues, {one.id if one else 'none'}, is not on this replica")
        return snapshot.keys[one.id]

    @property
    def authorities(self) -> Sequence[str]:
        return tuple(each.signer for each in self.snapshot.authorities if each.id in self.snapshot.keys)

    def sign_list(self, authority: str, content: pki.RevocationList) -> bytes:
        for each in self.snapshot.authorities:
            if each.signer == authority and each.id in self.snapshot.keys:
                return self.snapshot.keys[each.id].sign_list(authority, content)
        raise NotFoundError(f'the hub has no CA "{authority}"')
