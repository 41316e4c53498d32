"""A CA that is not the hub's, and who has a certificate of it."""

from dataclasses import dataclass, field
from datetime import timedelta

from machinery import pki
from machinery.clock import SystemClock
from machinery.identity import Subject
from machinery.kubeconfig import Credential

DAY = timedelta(days=1)


def _authority(name: str, key: bytes) -> pki.Authority:
    now = SystemClock().now()
    return pki.create_authority(Subject(name), key, pki.random_serial(), now - DAY, now + 9 * DAY)


@dataclass(frozen=True)
class OtherCA:
    """`certificate` is its own, in PEM."""

    name: str = "other-ca"
    key: bytes = field(default_factory=pki.generate_key, repr=False)
    authority: pki.Authority = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "authority", _authority(self.name, self.key))

    @property
    def certificate(self) -> bytes:
        return self.authority.certificate

    def issue(self, user: str, *groups: str, lifetime: timedelta = DAY) -> Credential:
        now, key = SystemClock().now(), pki.generate_key()
        subject = Subject(user, frozenset(groups))
        begin = min(now, now + lifetime) - timedelta(minutes=5)
        plan = pki.Plan(subject, pki.public_key_of(key), pki.random_serial(), begin, now + lifetime)
        return Credential(self.authority.sign(plan), key)
