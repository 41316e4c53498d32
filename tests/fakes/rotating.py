"""CAs of a hub in whatever phases a test needs, without a database."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from hub.domain.authority import Authority, AuthorityId, Phase
from hub.domain.certificate import Lifetimes
from hub.issuer import RotatingIssuer
from hub.issuer.local import LocalIssuer, make_authority
from hub.issuer.rotating import Standing
from hub.services.authorities import authority_id
from machinery import pki
from machinery.clock import SystemClock


@dataclass
class Generations:
    """`issuer` knows the CAs that were made; each is signed across by the one before it."""

    issuer: RotatingIssuer = field(default_factory=RotatingIssuer)
    authorities: list[Authority] = field(default_factory=list)
    keys: dict[AuthorityId, LocalIssuer] = field(default_factory=dict)

    def add(self, phase: Phase) -> Authority:
        now = SystemClock().now()
        made, key = make_authority(Lifetimes(), now)
        crossed = self.keys[self.authorities[-1].id].cross_sign(made.certificate) if self.authorities else None
        one = authority_id(made.certificate)
        begun = now + len(self.authorities) * timedelta(seconds=1)
        self.authorities.append(Authority(one, made.certificate, phase, begun, now, cross_signed=crossed))
        self.keys[one] = LocalIssuer(pki.Authority(made.certificate, key))
        self.take()
        return self.authorities[-1]

    def turn(self, index: int, phase: Phase, **more: Any) -> None:
        """Another phase for the CA that was made at this place."""
        self.authorities[index] = replace(self.authorities[index], phase=phase, **more)

    def take(self) -> None:
        self.issuer.take(Standing(tuple(self.authorities), dict(self.keys)))
