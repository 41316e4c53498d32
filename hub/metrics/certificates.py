"""Metrics of certificates: signatures, certificate requests, and the ends of the hub's own certificates."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache

from hub.issuer import IssuerChain, RotatingIssuer
from hub.replica.leader_election import Leading
from hub.replica.serving_certificate import DoorsCertificate
from machinery import pki
from machinery.observability.metrics import Registry, counter, gauge, histogram

SIGNED = counter("hub_certificates_signed_total", "Certificates signed by this replica.", "purpose", "issuer")
FAILED = counter("hub_certificates_failed_total", "Signatures that an issuer could not make.", "purpose", "issuer")
SECONDS = histogram("hub_csr_sign_seconds", "How long a signature took, with the looks at it before and after.")
PHASES = counter("hub_csr_total", "Certificate requests that came into a phase; told by the leader.", "phase")
STANDING = gauge("hub_csr_standing", "Certificate requests in each phase now; told by the leader.", "phase")
CA = gauge(
    "hub_ca_certificate_expiry_timestamp_seconds", "When the hub's CAs end, since 1970: the first of each phase.", "phase"
)
SERVING = gauge(
    "hub_serving_certificate_expiry_timestamp_seconds", "When the certificate ends that both doors show, since 1970."
)
METRICS = (SIGNED, FAILED, SECONDS, PHASES, STANDING, CA, SERVING)


def add_certificates(
    registry: Registry, issuer: RotatingIssuer, signing: IssuerChain, shown: DoorsCertificate, leading: Leading
) -> None:
    registry.bind(SIGNED, lambda: {(purpose.value, name): count for (purpose, name), count in tuple(signing.signed.items())})
    registry.bind(FAILED, lambda: _failed(signing))
    registry.bind(SECONDS, lambda: signing.seconds)
    registry.bind(PHASES, lambda: leading.chronicle.phases if leading.chronicle else None)
    registry.bind(STANDING, lambda: leading.chronicle.standing() if leading.chronicle else None)
    registry.bind(CA, lambda: _ends(issuer, _end))
    registry.bind(SERVING, lambda: _end(shown.serving.material.chain).timestamp())


def _failed(signing: IssuerChain) -> Mapping[tuple[str, str], int]:
    """Includes issuers without failures, because a query cannot see the increase of a series that did not exist before."""
    return {(purpose.value, name): signing.failed[purpose, name] for purpose, name in {*signing.signed, *signing.failed}}


def _ends(issuer: RotatingIssuer, end: Callable[[bytes], datetime]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for each in issuer.standing.authorities:
        ends = end(each.certificate).timestamp()
        found[each.phase.value] = min(ends, found.get(each.phase.value, ends))
    return found


@lru_cache(maxsize=16)
def _end(chain: bytes) -> datetime:
    return pki.parse_certificate(chain).not_after
