"""The issuer chain: each purpose has an ordered list of issuers; the first that can sign does so.

Only the hub's own CA signs certificates of agents, add-ons, bootstrap credentials, the administrator and the doors: an API
server that trusts another CA would accept such certificates and could not revoke them. The types ensure this: other issuers are
`LoginIssuer`s, which sign only logins. The hub's own CA is the last of these.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import Lock

import structlog

from hub.api.certificates import IssuedCertificate, Profile, Purpose
from hub.ports.identities import Issuer, LoginIssuer
from machinery.errors import MusterError, UnavailableError
from machinery.identity import SerialNumber
from machinery.observability.metrics import Distribution

OWN = "hub"

Sign = Callable[[Profile, SerialNumber, datetime], IssuedCertificate]

log = structlog.get_logger(__name__)


class IssuerChain(Issuer):
    """Signs with the issuers of a purpose. `signed` counts certificates, `failed` counts failures. Thread-safe."""

    def __init__(self, own: Issuer, logins: Sequence[LoginIssuer] = ()) -> None:
        self._own = own
        self._logins = tuple(logins)
        self._lock = Lock()
        self.signed: Counter[tuple[Purpose, str]] = Counter()
        """Certificates since the start, by purpose and issuer."""
        self.failed: Counter[tuple[Purpose, str]] = Counter()
        self.seconds = Distribution()
        """Duration of a signature, including the lookups before and after it."""

    def add_login_issuer(self, issuer: LoginIssuer) -> None:
        """Sign logins with `issuer` if the login issuers added before fail, and before the hub's own CA."""
        self._logins = (*self._logins, issuer)

    @property
    def trust_bundle(self) -> bytes:
        """The trust bundle of the hub's own CAs."""
        return self._own.trust_bundle

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """Sign with the first issuer that can sign. A serial number is signed only once.

        If all fail, the error lists each failure with its issuer's name. Its type is that of all failures, or UnavailableError.
        An unexpected error (not a MusterError) is logged with its stack trace, and becomes a RuntimeError if no issuer could
        sign.
        """
        began, purpose = time.monotonic(), profile.purpose
        failures: list[tuple[str, Exception]] = []
        for name, sign in self._issuers(purpose):
            try:
                issued = sign(profile, serial, now)
            except Exception as error:
                failures.append((name, error))
                with self._lock:
                    self.failed[purpose, name] += 1
                if isinstance(error, MusterError):
                    log.warning("issuer could not sign", issuer=name, purpose=str(purpose), error=error.message)
                else:
                    log.exception("issuer failed", issuer=name, purpose=str(purpose))
            else:
                with self._lock:
                    self.signed[purpose, name] += 1
                    self.seconds.observe(time.monotonic() - began)
                return issued
        raise _all_failed(failures)

    def _issuers(self, purpose: Purpose) -> list[tuple[str, Sign]]:
        logins = self._logins if purpose is Purpose.LOGIN else ()
        return [*((issuer.name, issuer.issue_login) for issuer in logins), (OWN, self._own.issue)]

    def snapshot(self) -> Mapping[str, object]:
        with self._lock:
            counts = (("signed", dict(self.signed)), ("failed", dict(self.failed)))
        return {f"{what} {purpose} by {name}": number for what, each in counts for (purpose, name), number in each.items()}


def _all_failed(failures: Sequence[tuple[str, Exception]]) -> Exception:
    texts = [f"{name}: {error.message if isinstance(error, MusterError) else error}" for name, error in failures]
    message = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    kinds = {type(error) for _, error in failures}
    if not all(issubclass(kind, MusterError) for kind in kinds):
        failed: Exception = RuntimeError(message)
    elif len(kinds) == 1 and (kind := kinds.pop()) is not MusterError:
        failed = kind(message)
    else:
        failed = UnavailableError(message)
    failed.__cause__ = failures[-1][1]
    return failed
