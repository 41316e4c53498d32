"""Authentication behind a kube-apiserver: the proxy's headers name the user, its client certificate identifies the proxy.

Sources: the aggregation layer's ConfigMap `kube-system/extension-apiserver-authentication`, k8s.io/apiserver's request header
authenticator.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from machinery.apiserver.access import peer_certificate
from machinery.apiserver.authn.authorities import TrustedAuthorities, mark_of_authority
from machinery.apiserver.authn.identity import Identity, RequestAuthenticator
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError, UnauthorizedError
from machinery.identity import is_reserved
from machinery.runtime.clock import Clock
from machinery.sanitize import is_plain


class Origin(Enum):
    """`Actor.holder` of a user whose rights another API server decides."""

    DELEGATED = "delegated"


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted proxies and their headers. Without `names`, any certificate of these CAs is a proxy's."""

    authorities: bytes = b""
    names: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    uids: tuple[str, ...] = ()
    extras: tuple[str, ...] = field(default=())
    """Prefixes of headers; the rest of a header's name is the key."""

    @classmethod
    def of_config_map(cls, config_map: Mapping[str, Any]) -> "Trust":
        """Raises InvalidError that names the missing entries."""
        entries = config_map.get("data") or {}
        authorities = str(entries.get("requestheader-client-ca-file", ""))
        users = _names(entries, "requestheader-username-headers")
        if not authorities or not users:
            raise InvalidError("the ConfigMap names no requestheader-client-ca-file or no requestheader-username-headers")
        return cls(
            authorities.encode(),
            frozenset(_names(entries, "requestheader-allowed-names")),
            users,
            _names(entries, "requestheader-group-headers"),
            _names(entries, "requestheader-uid-headers"),
            _names(entries, "requestheader-extra-headers-prefix"),
        )


def _names(entries: Mapping[str, Any], key: str) -> tuple[str, ...]:
    try:
        names = json.loads(entries.get(key) or "[]")
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidError(f"{key} is no list of names")
    return tuple(names)


class FrontProxy(RequestAuthenticator):
    """Trusts no proxy until `believe` is called."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._trust = Trust()
        self._authorities = TrustedAuthorities()

    @property
    def trust(self) -> Trust:
        return self._trust

    def believe(self, trust: Trust) -> frozenset[str]:
        """Set the trusted proxies; return the fingerprints of removed CAs. Raises InvalidError; then nothing changes."""
        gone = self._authorities.replace(trust.authorities)
        self._trust = trust
        return gone

    async def identify(self, request: web.Request) -> Identity | None:
        certificate = peer_certificate(request)
        signed = self._authorities.signed(certificate) if certificate is not None else None
        if signed is None:
            return None
        facts, name = signed.facts, signed.facts.subject.common_name
        if not facts.not_before <= self._clock.now() <= facts.not_after:
            raise UnauthorizedError("the proxy's certificate is not valid now")
        if self._trust.names and name not in self._trust.names:
            raise UnauthorizedError(f"x509: subject with cn={name[:80]} is not in the allowed list")
        actor = self._named(request)
        if actor is None:
            return None
        if is_reserved(actor.user, actor.groups):
            raise UnauthorizedError(f'a proxy cannot speak for "{actor.user[:80]}": agents come by themselves')
        return Identity(actor, f"{mark_of_authority(signed.authority)}{facts.fingerprint}", facts.not_after)

    def _named(self, request: web.Request) -> Actor | None:
        """The user in the headers; None: no user. Raises UnauthorizedError."""
        headers, trust = request.headers, self._trust
        user = next((headers[name] for name in trust.users if headers.get(name)), "")
        if not user:
            return None
        groups = tuple(value for name in trust.groups for value in headers.getall(name, ()) if value)
        uid = next((headers[name] for name in trust.uids if headers.get(name)), "")
        extra: dict[str, tuple[str, ...]] = {}
        for name, value in headers.items():
            for prefix in (each for each in trust.extras if name.lower().startswith(each.lower())):
                key = unquote(name[len(prefix) :].lower())
                extra[key] = (*extra.get(key, ()), value)
        told = (user, uid, *groups, *extra, *(value for values in extra.values() for value in values))
        if not all(is_plain(text) for text in told):
            raise UnauthorizedError("the proxy's headers hold what is no text")
        return Actor(user, groups, uid, extra, holder=Origin.DELEGATED)
