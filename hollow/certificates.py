"""Certificates of a hollow cluster: its CA, its serving certificate and its administrator's certificate."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from machinery.identity import OPERATOR_GROUP, CertificateSubject
from machinery.pki import CertificateAuthority, Plan, Usage, create_authority, generate_key, public_key_of, random_serial

LIFETIME = timedelta(days=365)
BACKDATED = timedelta(hours=48)
ADMINISTRATOR = CertificateSubject(common_name="kubernetes-admin", organizations=frozenset((OPERATOR_GROUP,)))
_SERVER = CertificateSubject(common_name="kube-apiserver")
_HOSTS = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def is_address(host: str) -> bool:
    """Whether `host` is an IP address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CertificateWithKey:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "CertificateWithKey(...)"


class ClusterAuthority:
    """The CA of the cluster `name`, new in every process."""

    def __init__(self, name: str, now: datetime) -> None:
        now = now.replace(microsecond=0)  # certificates have whole seconds
        self.key = generate_key()
        self._not_before = now - BACKDATED
        self._not_after = now + LIFETIME
        self._authority: CertificateAuthority = create_authority(
            CertificateSubject(common_name=f"hollow {name} CA"), self.key, random_serial(), self._not_before, self._not_after
        )

    @property
    def certificate(self) -> bytes:
        """PEM."""
        return self._authority.certificate

    def serving(self, *hosts: str) -> CertificateWithKey:
        """Serving certificate for `hosts`, addresses or names, and for the names that pods use."""
        told = dict.fromkeys((*_HOSTS, *hosts))
        return self._pair(
            _SERVER,
            Usage.SERVER,
            dns_names=tuple(host for host in told if not is_address(host)),
            ip_addresses=tuple(host for host in told if is_address(host)),
        )

    def administrator(self) -> CertificateWithKey:
        """Client certificate of the administrator."""
        return self._pair(ADMINISTRATOR, Usage.CLIENT)

    def _pair(
        self, subject: CertificateSubject, usage: Usage, *, dns_names: tuple[str, ...] = (), ip_addresses: tuple[str, ...] = ()
    ) -> CertificateWithKey:
        key = generate_key()
        plan = Plan(
            subject=subject,
            public_key=public_key_of(key),
            serial=random_serial(),
            not_before=self._not_before,
            not_after=self._not_after,
            usage=usage,
            dns_names=dns_names,
            ip_addresses=ip_addresses,
        )
        return CertificateWithKey(self._authority.sign(plan), key)
