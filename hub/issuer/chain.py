"""Who signs what: for each purpose some issuers in their order, of which the first that can signs.

Agents, add-ons, bootstrap credentials, the administrator and the doors' certificates are signed by the hub's own CA alone:
another CA's API server would accept such certificates, and could not revoke them. That is so by type: what is not the hub's
own is a `LoginIssuer`, which has no `issue`. Logins are signed by the first of these that can, and by the hub's own CA last.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

import structlog

from hub.api.certificates.certificate import IssuedCertificate, Profile, Purpose
from hub.ports import Issuer, LoginIssuer
from machinery.errors import MusterError, UnavailableError
from machinery.identity import SerialNumber
from machinery.observability.metrics import Distribution

OWN = "hub"
NOBODY = "no issuer signs certificates of this kind"

Sign = Callable[[Profile, SerialNumber, datetime], IssuedCertificate]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NamedIssuer:
    """One issuer by its name."""

    name: str
    sign: Sign


class IssuerChain(Issuer):
    """Counts in `signed` who signed what, and in `failed` whose turn it was in vain. Safe to call from several threads."""

    def __init__(self, own: Issuer, logins: Sequence[LoginIssuer] = ()) -> None:
        self._own = own
        mine = NamedIssuer(OWN, own.issue)
        others = tuple(NamedIssuer(each.name, each.issue_login) for each in logins)
        self._links: Mapping[Purpose, tuple[NamedIssuer, ...]] = {
            purpose: (*others, mine) if purpose is Purpose.LOGIN else (mine,) for purpose in Purpose
        }
        self._lock = Lock()
        self.signed: Counter[tuple[Purpose, str]] = Counter()
        """By purpose and issuer: how many certificates since the start."""
        self.failed: Counter[tuple[Purpose, str]] = Counter()
        self.seconds = Distribution()
        """How long a signature took, the looks at it before and after included."""

    @property
    def trust_bundle(self) -> bytes:
        """The hub's own."""
        return self._own.trust_bundle

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """By the first issuer that can; the serial has one signature. Raises what `first_of` raises."""
        began = time.monotonic()
        issued = first_of(self._links[profile.purpose], profile, serial, now, self._count)
        with self._lock:
            self.seconds.observe(time.monotonic() - began)
        return issued

    def names(self, purpose: Purpose) -> str:
        """The issuers for a purpose in their order, joined by commas."""
        return names_of(self._links[purpose])

    def snapshot(self) -> Mapping[str, object]:
        """What a metric would show."""
        with self._lock:
            told = (("signed", dict(self.signed)), ("failed", dict(self.failed)))
        return {f"{what} {purpose} by {name}": count for what, counted in told for (purpose, name), count in counted.items()}

    def _count(self, purpose: Purpose, name: str, *, done: bool) -> None:
        with self._lock:
            (self.signed if done else self.failed)[purpose, name] += 1


def names_of(links: Sequence[NamedIssuer]) -> str:
    return ",".join(link.name for link in links)


def first_of(
    links: Sequence[NamedIssuer],
    profile: Profile,
    serial: SerialNumber,
    now: datetime,
    count: Callable[..., None] = lambda *_told, **_how: None,
) -> IssuedCertificate:
    """The first success. Each failure bears its issuer's name; where all failed, all of them are told.

    The error is of the issuers' kind where they agree, else an UnavailableError; that too where there is no issuer. A defect of
    an issuer (no MusterError) is logged with its stack, and is a RuntimeError when nobody else could sign.
    """
    failures: list[tuple[str, Exception]] = []
    for link in links:
        try:
            issued = link.sign(profile, serial, now)
        except Exception as error:  # noqa: BLE001 - told below, when nobody signs
            failures.append((link.name, error))
            count(profile.purpose, link.name, done=False)
            _tell(link.name, error, profile.purpose)
        else:
            count(profile.purpose, link.name, done=True)
            return issued
    raise _all_failed(failures)


def _tell(name: str, error: Exception, purpose: Purpose) -> None:
    if isinstance(error, MusterError):
        log.warning("issuer could not sign", issuer=name, purpose=str(purpose), error=error.message)
    else:
        log.error("issuer failed", issuer=name, purpose=str(purpose), exc_info=error)


def _all_failed(failures: Sequence[tuple[str, Exception]]) -> Exception:
    if not failures:
        return UnavailableError(NOBODY)
    told = [f"{name}: {error.message if isinstance(error, MusterError) else error}" for name, error in failures]
    message = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    kinds = {type(error) for _name, error in failures}
    if not all(issubclass(kind, MusterError) for kind in kinds):
        failed: Exception = RuntimeError(message)
    elif len(kinds) == 1 and (kind := kinds.pop()) is not MusterError:
        failed = kind(message)
    else:
        failed = UnavailableError(message)
    failed.__cause__ = failures[-1][1]
    return failed
