"""The issuer chain: for each purpose an ordered list of issuers, of which the first that can signs.

Only the hub's own CA signs certificates of agents, add-ons, bootstrap credentials, the administrator and the doors: an API
server that trusts another CA would accept such certificates and could not revoke them. The types ensure this: other issuers are
`LoginIssuer`s, which have no `issue`. They sign logins, and the hub's own CA is the last in that list.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

import structlog

from hub.api.certificates import IssuedCertificate, Profile, Purpose
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
    """An issuer and its name."""

    name: str
    sign: Sign


class IssuerChain(Issuer):
    """Counts certificates in `signed` and failures in `failed`. Thread-safe."""

    def __init__(self, own: Issuer, logins: Sequence[LoginIssuer] = ()) -> None:
        self._own = own
        self._links: dict[Purpose, tuple[NamedIssuer, ...]] = {purpose: (NamedIssuer(OWN, own.issue),) for purpose in Purpose}
        for issuer in logins:
            self.add_login_issuer(issuer)
        self._lock = Lock()
        self.signed: Counter[tuple[Purpose, str]] = Counter()
        """Certificates since the start, by purpose and issuer."""
        self.failed: Counter[tuple[Purpose, str]] = Counter()
        self.seconds = Distribution()
        """Duration of a signature, including the lookups before and after it."""

    def add_login_issuer(self, issuer: LoginIssuer) -> None:
        """Sign logins with `issuer`, after those added before and before the hub's own CA."""
        *others, own = self._links[Purpose.LOGIN]
        self._links[Purpose.LOGIN] = (*others, NamedIssuer(issuer.name, issuer.issue_login), own)

    @property
    def trust_bundle(self) -> bytes:
        """The trust bundle of the hub's own CAs."""
        return self._own.trust_bundle

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Sign with the first issuer that can; a serial is signed only once. Raises the errors of `first_of`."""
        began = time.monotonic()
        issued = first_of(self._links[profile.purpose], profile, serial, now, self._count)
        with self._lock:
            self.seconds.observe(time.monotonic() - began)
        return issued

    def names(self, purpose: Purpose) -> str:
        """The names of a purpose's issuers in order, separated by commas."""
        return names_of(self._links[purpose])

    def snapshot(self) -> Mapping[str, object]:
        """Counters for the debug report."""
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
    """Return the first success. If all fail, the error lists each failure with its issuer's name.

    The error has the issuers' common type, or is an UnavailableError, also if there is no issuer. An issuer's unexpected error
    (not a MusterError) is logged with its stack trace, and becomes a RuntimeError if no issuer could sign.
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
