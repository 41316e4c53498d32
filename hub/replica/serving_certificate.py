"""The serving certificate of both doors: from the hub's own CA or from an operator's files, replaced while they serve.

The doors' material also contains the CAs that they accept for client certificates. Invalid files never replace valid material:
the last valid material stays in use, and the log and `/readyz` report the problem.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

import structlog

from hub.api.certificates import Lifetimes
from hub.issuer.local import ServingNames
from hub.issuer.rotating import RotatingIssuer
from hub.settings import HubSettings
from machinery import pki
from machinery.errors import InvalidError, UnavailableError
from machinery.observability.logs import LogOnce
from machinery.pki import CertificateFacts
from machinery.runtime.clock import Clock
from machinery.runtime.event_loop import until_tick
from machinery.runtime.tls import Material, Serving, server_context

LOOK_EVERY = timedelta(seconds=2)
SOON = timedelta(days=30)
"""Time before the end of a CA at which the hub usually warns (`ahead`). For a serving certificate: a third of this time."""

log = structlog.get_logger(__name__)

Source = Callable[[], Material]
"""Returns the material to serve now. Raises InvalidError, UnavailableError."""


def own_certificate(folder: Path, names: ServingNames, issuer: RotatingIssuer, lifetimes: Lifetimes, clock: Clock) -> Source:
    """Return the source of a certificate of the issuing CA. It is renewed near its end and after a change of the CA."""

    def current() -> Material:
        one = issuer.current
        signer = next(each.id for each in issuer.snapshot.authorities if issuer.snapshot.keys.get(each.id) is one)
        made = one.serving(folder, names, lifetimes, clock.now())
        return Material(made.chain + issuer.snapshot.chain_above(signer), made.key, issuer.client_trust)

    return current


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a certificate with its chain, its key, and optionally the CAs that verify it."""

    chain: Path
    key: Path
    authorities: Path | None = None


def given_certificate(files: Files, names: ServingNames, issuer: RotatingIssuer, clock: Clock) -> Source:
    chain, key = files.chain, files.key

    def current() -> Material:
        content, secret = _read(chain), _read(key)
        check_serving(content, names, clock.now(), str(chain))
        if files.authorities is not None:
            issuer.trust_also(_authorities(files.authorities))
        material = Material(content, secret, issuer.client_trust)
        try:
            server_context(material)
        except InvalidError as error:
            raise InvalidError(f"{chain} and {key}: {error.message}") from None
        return material

    return current


def check_serving(chain: bytes, names: ServingNames, now: datetime, source: str) -> CertificateFacts:
    """Return the leaf's facts. Raises InvalidError if it is unreadable, a CA's, not for servers, not valid, or lacks a name."""
    try:
        facts = pki.parse_chain(chain)[0]
    except InvalidError as error:
        raise InvalidError(f"{source}: {error.message}") from None
    missing = sorted({*names.dns_names, *names.ip_addresses} - {*facts.dns_names, *facts.ip_addresses} - set(LOCAL))
    rules = (
        (not facts.is_ca, "it is a CA's own certificate, and not one for a server"),
        (facts.server_auth, "it is not for servers (extended key usage serverAuth)"),
        (facts.not_before <= now <= facts.not_after, f"it is valid from {facts.not_before} to {facts.not_after}, and not now"),
        (
            not any(f"*.{name.partition('.')[2]}" not in facts.dns_names for name in missing),
            f"it is not for {', '.join(missing)}, where the doors are reached",
        ),
    )
    wrong = [finding for fine, finding in rules if not fine]
    if wrong:
        raise InvalidError(f"{source} cannot be served: {'; '.join(wrong)}")
    return facts


LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names that an operator's certificate may lack. The hub's own certificate has them."""


def doors_certificate(
    settings: HubSettings, folder: Path, names: ServingNames, issuer: RotatingIssuer, *, lifetimes: Lifetimes, clock: Clock
) -> "DoorsCertificate":
    """Return the serving certificate that `settings` choose. Raises InvalidError, UnavailableError if it cannot be served."""
    if settings.serving_cert_file is None or settings.serving_key_file is None:
        return DoorsCertificate(own_certificate(folder, names, issuer, lifetimes, clock), issuer, clock)
    files = Files(settings.serving_cert_file, settings.serving_key_file, settings.serving_ca_file)
    return DoorsCertificate(given_certificate(files, names, issuer, clock), issuer, clock)


class DoorsCertificate:
    """Keeps `serving` in line with `source`. `run` polls files; `renew` is called after known changes."""

    def __init__(self, source: Source, issuer: RotatingIssuer, clock: Clock) -> None:
        """Raises InvalidError when the first material cannot be used."""
        self._source = source
        self._issuer = issuer
        self._clock = clock
        self._failure = LogOnce(log)
        self._warned = ""
        self.serving = Serving(source())
        issuer.listen(self.renew)

    def renew(self) -> None:
        """Apply the current material. Unusable material changes only the accepted CAs."""
        before = self.serving.material
        try:
            material = self._source()
            if material != before:
                self.serving.replace(material)
                if material.chain != before.chain:
                    log.info("serving certificate replaced", until=_end(material).isoformat())
        except (InvalidError, UnavailableError) as error:
            self._failure.error("serving certificate cannot be replaced", error)
            trust = self._issuer.client_trust
            if trust != before.trust:
                self.serving.replace(Material(before.chain, before.key, trust))
        else:
            self._failure.reset()
        self._warn()

    def _warn(self) -> None:
        ending = self.ending()
        if ending != self._warned and ending:
            log.warning(ending)
        self._warned = ending

    def ending(self) -> str:
        """A warning about the issuing CA or the certificate if it ends soon; "" otherwise."""
        now, one = self._clock.now(), self._issuer.snapshot.issuing
        if one is not None and (facts := _facts(one.certificate)).not_after - now < ahead(facts):
            return (
                f"the hub's CA {one.id} ends at {facts.not_after:%Y-%m-%dT%H:%M:%SZ}, and no certificate outlives it: "
                "begin with `hubctl ca rotate`"
            )
        if (left := _end(self.serving.material) - now) < SOON / 3:
            return f"the serving certificate ends in {left.days} days"
        return ""

    async def check(self) -> None:
        """Readiness check. Raises UnavailableError if the configured material is unusable or the served one has expired."""
        if self._failure.text:
            raise UnavailableError(self._failure.text)
        if self._clock.now() > _end(self.serving.material):
            raise UnavailableError("the serving certificate has expired")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(until_tick(LOOK_EVERY))
            self.renew()


def ahead(facts: CertificateFacts) -> timedelta:
    """Return how long before the end of a CA the hub warns: 1/10 of its validity, at least 30 days; below 90 days 1/3."""
    life = facts.not_after - facts.not_before
    return max(life / 10, min(SOON, life / 3))


def _end(material: Material) -> datetime:
    return _facts(material.chain).not_after


@lru_cache(maxsize=8)
def _facts(certificate: bytes) -> CertificateFacts:
    """Parse a certificate. Cached, because it is called every two seconds with the same certificates. Raises InvalidError."""
    return pki.parse_certificate(certificate)


def _authorities(path: Path) -> bytes:
    content = _read(path)
    try:
        leaves = [facts for facts in pki.parse_chain(content) if not facts.is_ca]
    except InvalidError as error:
        raise InvalidError(f"{path}: {error.message}") from None
    if leaves:
        raise InvalidError(f"{path} contains a certificate that is not a CA's")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror or error}") from error
