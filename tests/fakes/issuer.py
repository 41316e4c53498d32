"""An issuer whose certificates are readable words."""

from hub.domain.certificate import IssuedCertificate, Profile
from hub.ports import Issuer
from machinery.identity import SerialNumber


class WordIssuer(Issuer):
    """Signs by writing down what it was told, and remembers it; `failure` is raised instead."""

    def __init__(self) -> None:
        self.issued: list[tuple[Profile, SerialNumber]] = []
        self.failure: Exception | None = None

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:  # noqa: ARG002 - signs at once
        if self.failure is not None:
            raise self.failure
        self.issued.append((profile, serial))
        return IssuedCertificate(serial, f"{profile.purpose} {profile.subject.common_name}\n".encode())

    @property
    def trust_bundle(self) -> bytes:
        return b"trust\n"
