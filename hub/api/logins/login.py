"""Who comes out of a token of others: from its claims to a user name and groups, and which names can never come out of one.

A token of others can name nobody whom the hub itself names: no user and no group that begins with `system:`, and so no agent,
no add-on, no bootstrap credential, no ServiceAccount, no operator with all rights. Such a user is refused; such groups are left
out, because other clusters put everybody into `system:authenticated`. The one way to all rights is `operator_groups` of an
authenticator: groups, as they come out of the mapping, whose members are operators.

Sources: Pinniped's TokenCredentialRequest (what it refuses of an authenticator's answer), OpenID Connect Core 1.0 (claims),
Kubernetes' structured authentication (`email` counts when it is verified).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from machinery.errors import UnauthorizedError
from machinery.identity import OPERATOR_GROUP, CertificateSubject

RESERVED = "system:"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""The one extra that says nothing of its user, and so does not keep a token from being exchanged."""
MAX_NAME, MAX_GROUPS = 512, 250
SKEW = timedelta(minutes=1)
"""How far in the future a token may begin: clocks differ."""
LATEST = 9999 * 366 * 86_400
"""Of instants in claims: what lies beyond is no time."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What a token must say, and which claims name its user."""

    issuer: str
    audience: str
    username: str = "sub"
    username_prefix: str = ""
    groups: str = "groups"
    groups_prefix: str = ""
    required: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named:
    """Whom an authenticator names. `account`: the uid of the ServiceAccount of this hub that it is; None: somebody else."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    account: str | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """Who may have a certificate. `left_out`: groups of the token that do not count here."""

    user: str
    groups: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    account: str | None = None

    @property
    def subject(self) -> CertificateSubject:
        return CertificateSubject(self.user, frozenset(self.groups))

    @property
    def is_our_own_name(self) -> bool:
        """Whether it has a name that this hub gives: to anybody else who trusts the signer it would mean somebody of theirs."""
        return any(name.startswith(RESERVED) for name in (self.user, *self.groups))


def named_by_claims(claims: Mapping[str, Any], rules: ClaimRules, now: datetime) -> Named:
    """The user of a token whose signature is the issuer's. Raises UnauthorizedError that says why it is not good."""
    if claims.get("iss") != rules.issuer:
        raise UnauthorizedError("it is of another issuer")
    if rules.audience not in _texts(claims.get("aud"), "aud"):
        raise UnauthorizedError(f'it is not meant for the audience "{rules.audience}"')
    _check_time(claims, now)
    for claim, wanted in sorted(rules.required.items()):
        if claims.get(claim) != wanted:
            raise UnauthorizedError(f'its claim "{claim}" is not the one that is required')
    user = claims.get(rules.username)
    if not isinstance(user, str) or not user:
        raise UnauthorizedError(f'it has no claim "{rules.username}" that is a text')
    if rules.username == "email" and claims.get("email_verified", True) is not True:
        raise UnauthorizedError("its email is not verified")
    groups = _texts(claims.get(rules.groups), rules.groups) if rules.groups else ()
    return Named(rules.username_prefix + user, tuple(rules.groups_prefix + group for group in groups if group))


def admitted(named: Named | None, operator_groups: Iterable[str] = ()) -> Login:
    """Who it is here. Raises UnauthorizedError that says why nobody."""
    if named is None:
        raise UnauthorizedError("the authenticator names no user")
    if named.account is not None:
        return Login(named.user, named.groups, account=named.account)
    if not named.user:
        raise UnauthorizedError("the user name is empty")
    if named.uid:
        raise UnauthorizedError("the user has a UID, which a certificate cannot say")
    if set(named.extra) - {CREDENTIAL_ID}:
        raise UnauthorizedError("the user has extra fields, which a certificate cannot say")
    _check_name("the user name", named.user)
    if named.user.startswith(RESERVED):
        raise UnauthorizedError(f'user names that begin with "{RESERVED}" are given by the hub alone')
    return _with_groups(Login(named.user), named.groups, frozenset(operator_groups))


def _with_groups(login: Login, groups: Sequence[str], operators: frozenset[str]) -> Login:
    if len(groups) > MAX_GROUPS:
        raise UnauthorizedError(f"it is in {len(groups)} groups, and a certificate holds {MAX_GROUPS} at most")
    for group in groups:
        _check_name("a group's name", group)
    counted = tuple(dict.fromkeys(group for group in groups if group and not group.startswith(RESERVED)))
    left_out = tuple(dict.fromkeys(group for group in groups if group.startswith(RESERVED)))
    masters = (OPERATOR_GROUP,) if operators.intersection(counted) else ()
    return replace(login, groups=(*counted, *masters), left_out=left_out)


def _check_name(what: str, name: str) -> None:
    """Raises UnauthorizedError for what a certificate cannot say, or a log would show as something else."""
    if len(name) > MAX_NAME:
        raise UnauthorizedError(f"{what} is longer than {MAX_NAME} characters")
    if not name.isprintable() or name != name.strip():
        raise UnauthorizedError(f"{what} holds characters that are not shown, or begins or ends with a space")


def _check_time(claims: Mapping[str, Any], now: datetime) -> None:
    ends, begins = _instant(claims, "exp"), _instant(claims, "nbf")
    if ends is None:
        raise UnauthorizedError("it has no end (exp)")
    if now.timestamp() >= ends:
        raise UnauthorizedError("it has expired")
    if begins is not None and (now + SKEW).timestamp() < begins:
        raise UnauthorizedError("it is not valid yet")


def _instant(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise UnauthorizedError(f'its claim "{claim}" is no time')
    return float(value)


def _texts(value: object, claim: str) -> tuple[str, ...]:
    """A claim that is a text or a list of texts. Raises UnauthorizedError for anything else."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise UnauthorizedError(f'its claim "{claim}" is neither a text nor a list of texts')
