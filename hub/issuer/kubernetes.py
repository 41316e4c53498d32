"""Signs operators' logins with the CA of the hub's own Kubernetes cluster, so that they are valid there too.

Its API server accepts such a certificate until it expires; there is no revocation. So the issuer signs only logins, which last
for minutes, and no name with the prefix `system:`: a token for `system:masters` does not make its bearer an administrator of
that cluster.
"""

from datetime import datetime

from hub.api.certificates import IssuedCertificate, Profile, Purpose
from hub.issuer.provider import NAME, AuthorityProvider, signer
from hub.ports import LoginIssuer
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import SerialNumber

RESERVED = "system:"


class KubernetesIssuer(LoginIssuer):
    """Signs with the CA that `provider` holds at each call."""

    def __init__(self, provider: AuthorityProvider) -> None:
        self._provider = provider

    @property
    def name(self) -> str:
        return NAME

    def issue_login(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """`signed_by` is `kubernetes/<beginning of the hex SHA-256 of the CA's public key>`."""
        if profile.purpose is not Purpose.LOGIN:
            raise InvalidError(f"it signs operators' logins and nothing else, and this is for: {profile.purpose}")
        names = (profile.subject.common_name, *profile.subject.organizations)
        if any(name.startswith(RESERVED) for name in names):
            raise InvalidError(f'it signs no name that begins with "{RESERVED}": Kubernetes gives those itself')
        authority = self._provider.current
        if authority is None:
            raise UnavailableError("the cluster's CA is not known here now")
        facts = authority.facts
        if not facts.not_before <= now < profile.not_after <= facts.not_after:
            raise UnavailableError("the cluster's CA ends before this certificate would, or has not begun")
        plan = pki.Plan(
            subject=profile.subject,
            public_key=profile.public_key,
            serial=serial,
            not_before=max(profile.not_before, facts.not_before),
            not_after=profile.not_after,
        )
        return IssuedCertificate(serial, authority.sign(plan), signed_by=signer(authority))
