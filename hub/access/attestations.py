"""Attestation of a registering cluster: verifies its ServiceAccount token with the keys of the cluster's issuer.

A refusal raises AttestationError. Only the audit log shows the reason of a refusal. Keys come from the bootstrap credential,
the hub's own issuer list or the issuer's discovery document. Discovered keys are cached and refreshed (`IssuerKeys`).
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from hub.api.bootstrapcredentials import AttestationError, AttestationRequirement, Attested, matches_names
from hub.api.certificates import CertificateRecord, Purpose
from hub.ports import Store
from machinery.apiserver.authn.issuer_keys import IssuerKeys, JsonDocuments
from machinery.errors import InvalidError, MusterError
from machinery.identity import ClusterName, CredentialId, HubId
from machinery.meta.urls import AllowedUrls, https_url_error
from machinery.pki import KeySet, parse_certificate, read_header, unverified_claims
from machinery.runtime.clock import Clock

K = TypeVar("K")
V = TypeVar("V")
SKEW = timedelta(minutes=1)
"""Tolerance for `nbf` and `iat`, because clocks of clusters differ. There is no tolerance for `exp`."""
MAX_KEPT = 1000
FAMILIES = ("RS", "ES")
PREFIX = "system:serviceaccount:"
NOT_ALLOWED = "the hub fetches no keys from it: --attestation-allowed-issuers does not list it, and no keys are given"

Connect = Callable[[bytes], JsonDocuments]
"""Returns a client that verifies servers with these CA certificates (PEM; b"": the system's CAs). Raises InvalidError."""


@dataclass(frozen=True, slots=True)
class KnownIssuer:
    """An issuer of the hub's own list. `demand`: what its tokens must satisfy.

    `patterns`: shell patterns for the names of clusters that it may attest; empty: any name.
    """

    demand: AttestationRequirement
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttestationPolicy:
    """Attestation settings of the hub. `required`: a token is required even if the bootstrap credential does not demand one.

    `audience`: audience of tokens if their AttestationRequirement names none; "": `urn:uuid:<hub id>`. `issuers` reads the
    hub's own issuer list; it blocks and may raise InvalidError. `allowed`: URLs from which the hub may fetch keys of issuers
    that a credential names. Issuers of the hub's own list need no entry.
    """

    required: bool = False
    audience: str = ""
    issuers: Callable[[], Sequence[KnownIssuer]] = tuple
    allowed: AllowedUrls = field(default_factory=AllowedUrls)


class Attestor:
    """Verifies attestation tokens. One per process."""

    def __init__(
        self, store: Store, hub: HubId, connect: Connect, clock: Clock, policy: AttestationPolicy | None = None
    ) -> None:
        self._store = store
        self._connect = connect
        self._clock = clock
        self._policy = policy or AttestationPolicy()
        self._audience = self._policy.audience or f"urn:uuid:{hub}"
        self._kept: dict[tuple[str, str], IssuerKeys] = {}
        self._demands: dict[CredentialId, AttestationRequirement | None] = {}
        """Demands by bootstrap credential; cached, because the bounds of a credential never change."""

    async def audience(self, record: CertificateRecord) -> str:
        """Returns the audience that a token of the record's holder must have; "": no token needed. Raises UnavailableError."""
        demand, is_required = await self._demand(record)
        return ((demand.audience if demand is not None else "") or self._audience) if is_required else ""

    async def attested(self, record: CertificateRecord, cluster: ClusterName, token: str) -> Attested | None:
        """Returns what the token proves; None if no token is required. Raises AttestationError, UnavailableError (database)."""
        demand, is_required = await self._demand(record)
        if not is_required:
            return None
        if not token:
            raise AttestationError("a token of the cluster's issuer is required, and the request has none")
        if demand is None:
            demand = await self._known(cluster, token)
        elif not demand.keys and not self._policy.allowed.allow(demand.issuer):
            raise AttestationError(f"issuer {demand.issuer}: {NOT_ALLOWED}")
        header = read_header(token)
        if header is None or not header.algorithm.startswith(FAMILIES):
            raise AttestationError("it is not a signed JSON web token with an accepted algorithm (RS256, ES256 and longer)")
        claims = await self._verified(demand, token)
        check_claims(claims, demand, demand.audience or self._audience, self._clock.now())
        listed = json.loads(demand.keys).get("keys") or () if demand.keys else ()
        pinned = frozenset(str(key["kid"]) for key in listed if isinstance(key, Mapping) and key.get("kid"))
        return Attested(demand.issuer, str(claims["sub"]), header.key_id or "", pinned)

    async def _demand(self, record: CertificateRecord) -> tuple[AttestationRequirement | None, bool]:
        """Returns the demand of the peer's bootstrap credential, and whether a token is required."""
        if record.purpose is not Purpose.BOOTSTRAP or record.credential is None:
            return None, False
        if record.credential not in self._demands:
            credential = await self._store.read(lambda tx, name: tx.credentials.by_id(name), record.credential)
            if credential is None:
                return None, self._policy.required
            _remember(self._demands, credential.id, credential.bounds.attestation)
        demand = self._demands[record.credential]
        return demand, demand is not None or self._policy.required

    async def _known(self, cluster: ClusterName, token: str) -> AttestationRequirement:
        """Returns the demand for the token's `iss` claim and this cluster from the hub's own issuer list."""
        issuer = (unverified_claims(token) or {}).get("iss")
        try:
            listed = await asyncio.to_thread(self._policy.issuers)
        except MusterError as error:
            raise AttestationError(f"the list of issuers cannot be used: {error.message}") from error
        for known in listed:
            if known.demand.issuer == issuer and matches_names(cluster, known.patterns):
                return known.demand
        raise AttestationError(f'the hub knows no issuer {str(issuer)[:200]!r} for cluster "{cluster}"')

    async def _verified(self, demand: AttestationRequirement, token: str) -> Mapping[str, Any]:
        if demand.keys:
            found = KeySet.parse(json.loads(demand.keys)).verified(token)
            if found is None:
                raise AttestationError(f"its signature matches none of the keys of issuer {demand.issuer}")
            return found
        place = demand.issuer, demand.authority
        try:
            if place not in self._kept:
                allow_keys = partial(self._policy.allowed.allow_keys, demand.issuer)
                keys = IssuerKeys(demand.issuer, self._connect(demand.authority.encode()), self._clock, allow_keys)
                _remember(self._kept, place, keys)
            return await self._kept[place].verified(token)
        except MusterError as error:
            raise AttestationError(f"issuer {demand.issuer}: {error.message}") from error


def _remember(kept: dict[K, V], key: K, value: V) -> None:
    if len(kept) >= MAX_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def flaws(demand: AttestationRequirement, allowed: AllowedUrls | None = None) -> Iterator[tuple[str, str]]:
    """Yields field name and message for each problem of `demand`. `allowed`: URLs that may be an issuer; None: any."""
    if not demand.issuer or (not demand.keys and https_url_error(demand.issuer) is not None):
        yield "issuer", "it must be an https:// address, unless the keys are given"
    elif allowed is not None and not demand.keys and not allowed.allow(demand.issuer):
        yield "issuer", NOT_ALLOWED
    if not demand.subject.startswith(PREFIX):
        yield "subject", f"it must begin with {PREFIX}"
    if demand.keys:
        try:
            KeySet.parse(json.loads(demand.keys))
        except InvalidError as error:
            yield "keys", error.message
        except (ValueError, AttributeError):
            yield "keys", "they are not a JWKS document"
    if demand.authority:
        try:
            parse_certificate(demand.authority.encode())
        except InvalidError as error:
            yield "authority", error.message


def check_claims(claims: Mapping[str, Any], demand: AttestationRequirement, audience: str, now: datetime) -> None:
    """Raises AttestationError unless issuer, audience, times and ServiceAccount of the token match the demand."""
    if claims.get("iss") != demand.issuer:
        raise AttestationError(f"the token is of issuer {str(claims.get('iss'))[:200]!r} and not of {demand.issuer!r}")
    audience_claim = claims.get("aud")
    audiences = (
        [audience_claim] if isinstance(audience_claim, str) else audience_claim if isinstance(audience_claim, list) else []
    )
    if audience not in audiences:
        raise AttestationError(f"the token is for {str(audiences)[:200]} and not for {audience!r}")
    ends, begins, made = (_moment(claims, name) for name in ("exp", "nbf", "iat"))
    if ends is None or now >= ends:
        raise AttestationError("the token has expired" if ends is not None else "the token has no expiry")
    if any(moment is not None and now + SKEW < moment for moment in (begins, made)):
        raise AttestationError("the token is not valid yet")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(PREFIX) or not demand.includes(subject):
        raise AttestationError(f"the token is for {str(subject)[:200]!r}, which does not match {demand.subject!r}")


def _moment(claims: Mapping[str, Any], name: str) -> datetime | None:
    value = claims.get(name)
    if value is None:
        return None
    with suppress(OverflowError, ValueError, OSError):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    raise AttestationError(f'"{name}" of the token is not a time')
