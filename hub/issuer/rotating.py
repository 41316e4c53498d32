"""The issuer of a hub: signs with the CA that issues now, and knows the others that are on their way in or out.

A new state of the CAs replaces the old one as a whole: one read never sees half of it, two reads within one answer may see two
states. `hub.replica.authorities` follows the store and sets the state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, admitted, bundled, issuing
from hub.api.certificates.certificate import IssuedCertificate, Profile
from hub.issuer.callbacks import Listeners
from hub.issuer.local import LocalIssuer
from hub.ports import Issuer, ListSigner
from machinery import pki
from machinery.errors import NotFoundError, UnavailableError
from machinery.identity import SerialNumber


@dataclass(frozen=True, slots=True)
class AuthoritySnapshot:
    """All the hub's CAs at one instant, and those keys of them that are here."""

    authorities: tuple[AuthorityRecord, ...] = ()
    keys: Mapping[AuthorityId, LocalIssuer] = field(default_factory=dict, repr=False)

    @property
    def issuing(self) -> AuthorityRecord | None:
        return issuing(self.authorities)

    @property
    def trust_bundle(self) -> bytes:
        return b"".join(each.certificate for each in bundled(self.authorities))

    @property
    def admitted(self) -> bytes:
        return b"".join(each.certificate for each in admitted(self.authorities))

    def chain_above(self, signer: AuthorityId) -> bytes:
        """What is shown after a serving certificate of this CA: the CA itself as each one before it has signed it.

        So who trusts only one of those believes it. It ends at one that is compromised: by that, nobody shall believe anything.
        """
        links, current = [], next((each for each in self.authorities if each.id == signer), None)
        if current is None or current.cross_signed is None:
            return b""  # as nearly always, and this is asked every two seconds: nothing needs to be parsed
        by_name = {pki.parse_certificate(each.certificate).subject_key_id: each for each in self.authorities}
        while current is not None and current.cross_signed is not None:
            before = by_name.get(pki.parse_certificate(current.cross_signed).authority_key_id)
            if before is None or before.is_given_up:
                break
            links.append(current.cross_signed)
            current = before
        return b"".join(links)


class RotatingIssuer(Issuer, ListSigner):
    """Safe to call from several threads. `take` tells listeners, in the thread that calls it."""

    def __init__(self) -> None:
        self._standing = AuthoritySnapshot()
        self._others = b""
        self._listeners = Listeners()

    def __repr__(self) -> str:
        return "RotatingIssuer(...)"

    @property
    def standing(self) -> AuthoritySnapshot:
        return self._standing

    def take(self, standing: AuthoritySnapshot) -> bool:
        """Acts upon it from now on; whether that changed anything."""
        before, self._standing = self._standing, standing
        changed = before.authorities != standing.authorities or before.keys.keys() != standing.keys.keys()
        if changed:
            self._listeners.tell()
        return changed

    def trust_also(self, others: bytes) -> None:
        """Peers are told to trust these too (PEM): others' CAs, by which the doors' certificate is believed."""
        if others != self._others:
            self._others = others
            self._listeners.tell()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called after each change. Returns what ends that."""
        return self._listeners.listen(listener)

    @property
    def trust_bundle(self) -> bytes:
        return self._standing.trust_bundle + self._others

    @property
    def client_trust(self) -> bytes:
        """PEM of the CAs whose certificates the doors' TLS lets in: more than peers are told to trust."""
        return self._standing.admitted

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Raises what `LocalIssuer.issue` raises, and UnavailableError while the key is not here."""
        return self.current.issue(profile, serial, now)

    @property
    def current(self) -> LocalIssuer:
        """The CA that issues, with its key. Raises UnavailableError while the key has not come to this replica."""
        standing = self._standing
        one = standing.issuing
        if one is None or one.id not in standing.keys:
            raise UnavailableError(f"the key of the CA that issues, {one.id if one else 'none'}, is not on this replica")
        return standing.keys[one.id]

    @property
    def authorities(self) -> Sequence[str]:
        return tuple(each.signer for each in self._standing.authorities if each.id in self._standing.keys)

    def sign_list(self, authority: str, content: pki.RevocationList) -> bytes:
        for each in self._standing.authorities:
            if each.signer == authority and each.id in self._standing.keys:
                return self._standing.keys[each.id].sign_list(authority, content)
        raise NotFoundError(f'the hub has no CA "{authority}"')
