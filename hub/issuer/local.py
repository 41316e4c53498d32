"""A CA of the hub with its key in memory. The first start of a hub makes the first CA in the data directory.

Existing files are never replaced, because a new CA would lock out every agent. With an incomplete, unreadable or mismatched
pair, the hub does not start.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Self

import structlog

from hub.api.certificates import IssuedCertificate, Lifetimes, Profile, Purpose
from hub.ports.identities import Issuer, ListSigner
from machinery import pki
from machinery.errors import InvalidError, NotFoundError, UnavailableError
from machinery.identity import CertificateSubject, SerialNumber
from machinery.product import NAME
from machinery.runtime.directory import DataDirectory, read_file, sync, write_private
from machinery.runtime.tls import Material

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVING_CERTIFICATE, SERVING_KEY = "serving.crt", "serving.key"
OWN, SHORT = "hub", 16

log = structlog.get_logger(__name__)

RENEW_AT = 1 / 3
"""Remaining share of its lifetime at which a serving certificate is replaced."""
EMPTY = (datetime.min.replace(tzinfo=UTC),) * 2


@dataclass(frozen=True, slots=True)
class ServingNames:
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


class LocalIssuer(Issuer, ListSigner):
    """A CA with its key in memory. Thread-safe."""

    def __init__(self, authority: pki.CertificateAuthority, *, created: bool = False) -> None:
        self._authority = authority
        self.created = created
        """Whether the CA is new, because this is the hub's first start."""

    @classmethod
    def open(cls, folder: Path, lifetimes: Lifetimes, now: datetime) -> Self:
        """Return the CA in `folder`. Make it if neither `ca.crt` nor `ca.key` exists. Raises InvalidError, UnavailableError."""
        certificate, key = read_file(folder / CA_CERTIFICATE), read_file(folder / CA_KEY)
        if certificate is None and key is None:
            authority, key = make_authority(lifetimes, now)
            write_new(folder / CA_KEY, key)
            write_new(folder / CA_CERTIFICATE, authority.certificate)
            return cls(authority, created=True)
        if certificate is None or key is None:
            missing, there = (CA_CERTIFICATE, CA_KEY) if certificate is None else (CA_KEY, CA_CERTIFICATE)
            raise InvalidError(
                f"{folder / there} is there and {folder / missing} is missing: restore it from a backup, "
                "or, if this hub never served an agent, delete what is there and start again"
            )
        try:
            return cls(pki.CertificateAuthority(certificate, key))
        except InvalidError as error:
            raise InvalidError(
                f"{folder / CA_CERTIFICATE} and {folder / CA_KEY} cannot be used: {error.message}. "
                "Restore both from one backup: a new CA would lock every agent out"
            ) from None

    @property
    def trust_bundle(self) -> bytes:
        return self._authority.certificate

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Sign a certificate. Raises InvalidError for an unusable key or an expired CA, RuntimeError for an invalid profile.

        A certificate expires no later than the CA.
        """
        if now > self._authority.facts.not_after:
            raise InvalidError("the hub's CA has expired: it cannot sign")
        ends = min(profile.not_after, self._authority.facts.not_after)
        plan = pki.Plan(
            subject=profile.subject,
            public_key=profile.public_key,
            serial=serial,
            not_before=max(profile.not_before, self._authority.facts.not_before),
            not_after=ends,
            usage=pki.Usage.SERVER if profile.purpose is Purpose.SERVING else pki.Usage.CLIENT,
            dns_names=profile.dns_names,
            ip_addresses=profile.ip_addresses,
        )
        if ends < profile.not_after:
            log.warning("certificate shortened: the hub's CA expires first", ca=self.name, ends=ends.isoformat())
        return IssuedCertificate(serial, self._authority.sign(plan), self.name, ends)

    @property
    def name(self) -> str:
        """Name of the CA: `hub/<beginning of the hex SHA-256 of the CA's public key>`."""
        return f"{OWN}/{self._authority.facts.key_hash[:SHORT]}"

    @property
    def facts(self) -> pki.CertificateFacts:
        return self._authority.facts

    def cross_sign(self, other: bytes) -> bytes:
        """Sign another CA (PEM) for peers that trust only this CA. Raises InvalidError."""
        return self._authority.cross_sign(other, pki.random_serial())

    @property
    def authorities(self) -> Sequence[str]:
        return (self.name,)

    def sign_list(self, authority: str, content: pki.RevocationList) -> bytes:
        if authority != self.name:
            raise NotFoundError(f'the hub has no CA "{authority}"')
        return self._authority.sign_list(content)

    def serving(self, folder: Path, names: ServingNames, lifetimes: Lifetimes, now: datetime) -> Material:
        """Return the serving certificate in `folder`.

        Replace it first if names, CA or key do not match, it is not valid yet, or less than a third of its lifetime is left and
        a new one could end later.
        """
        chain, key = read_file(folder / SERVING_CERTIFICATE), read_file(folder / SERVING_KEY)
        shown = Material(chain, key, self.trust_bundle) if chain is not None and key is not None else None
        begins, ends = _serving_period(shown, names) if shown is not None else EMPTY
        if shown is None or begins > max(now, self.facts.not_before) or now >= ends:  # no certificate begins before its CA
            key = pki.generate_key()
            chain = self.issue(_serving_profile(names, key, lifetimes, now), pki.random_serial(), now).chain
            directory = DataDirectory(folder, "hub")
            directory.write(SERVING_KEY, key)
            directory.write(SERVING_CERTIFICATE, chain)
            shown = Material(chain, key, self.trust_bundle)
        return shown


@lru_cache(maxsize=4)
def _serving_period(shown: Material, names: ServingNames) -> tuple[datetime, datetime]:
    """Return from when until when to serve: EMPTY if names, CA or key do not match. Cached for the frequent calls."""
    try:
        facts = pki.parse_certificate(shown.chain)
        is_ours = pki.key_matches(shown.chain, shown.key) and pki.is_issued_by(shown.chain, shown.trust)
    except InvalidError:
        return EMPTY
    shown_names = sorted(facts.dns_names), sorted(facts.ip_addresses)
    if not is_ours or shown_names != (sorted(names.dns_names), sorted(names.ip_addresses)):
        return EMPTY
    is_last = facts.not_after >= pki.parse_certificate(shown.trust).not_after  # no other certificate of this CA ends later
    return facts.not_before, facts.not_after if is_last else facts.not_after - (facts.not_after - facts.not_before) * RENEW_AT


def write_new(path: Path, content: bytes) -> None:
    """Create a file with mode 0600 atomically. Raises FileExistsError, UnavailableError."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write_private(staged, content)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from error
    try:
        os.link(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    sync(path.parent)


def make_authority(lifetimes: Lifetimes, now: datetime) -> tuple[pki.CertificateAuthority, bytes]:
    """Return a new CA and its key (PEM)."""
    key = pki.generate_key()
    # CAs of different hubs need different names: a peer that trusts both would check a signature with the wrong key.
    subject = CertificateSubject(common_name=f"{NAME}-ca-{secrets.token_hex(4)}")
    return pki.create_authority(subject, key, pki.random_serial(), now - lifetimes.backdate_serving, now + lifetimes.ca), key


def _serving_profile(names: ServingNames, key: bytes, lifetimes: Lifetimes, now: datetime) -> Profile:
    return Profile(
        purpose=Purpose.SERVING,
        subject=CertificateSubject(common_name=f"{NAME}-hub"),
        public_key=pki.public_key_of(key),
        not_before=now - min(lifetimes.backdate_serving, lifetimes.serving),
        not_after=now + lifetimes.serving,
        dns_names=names.dns_names,
        ip_addresses=names.ip_addresses,
    )
