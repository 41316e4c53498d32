"""TokenCredentialRequests: exchange of a token for a client certificate.

All failures of a token (unknown authenticator, unreachable issuer, signature, claim, reserved name) have the same answer:
success without a credential, and one message. The hub sends this answer at the next multiple of `PAUSE` after the request. So
neither the answer nor its time reveals the cause, which is only in the audit log.

Only the authenticator gets the token: admission gets a request with a blank token, and the audit log the token's hash.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any

from hub.api.auditrecords import LOGIN_FAILURE
from hub.api.certificates import IssuedCertificate, Lifetimes
from hub.api.logins import ACCOUNT, KINDS, Reference, admit_user
from hub.api.meta import document as doc
from hub.audit.auditor import short, token_hash
from hub.extensions.token_login.authenticators import Authenticators
from hub.ports import Store
from hub.ports.identities import Issuer
from hub.registry import authenticators as logins
from hub.registry.generic import declared
from machinery import pki
from machinery.apiserver.http.limits import Rates, origin
from machinery.apiserver.resource import Answers, Question, Resource
from machinery.apiserver.storage import Admission, Admit, GroupResource
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import Cause, ErrorSubject, InvalidError, MusterError, TooLargeError, UnauthorizedError
from machinery.meta.objects import Document, Key, Page, Query
from machinery.meta.timestamps import format_time
from machinery.product import NAME
from machinery.runtime.clock import Clock

FAILED = "authentication failed"
PAUSE = timedelta(milliseconds=250)
TOKEN_HASH = "authentication.kubernetes.io/token-hash"  # noqa: S105 - the name of an annotation
AUTHENTICATOR, USER, GROUPS, LEFT_OUT, SERIAL, SIGNED_BY = (
    f"login.{NAME}/{each}" for each in ("authenticator", "user", "groups", "groups-left-out", "serial", "signed-by")
)

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoginTerms:
    """How logins are issued. `issuer` signs for users of external issuers.

    `own()` is the hub's CA, which signs names that the hub reserves.

    `rates`: limit per address. `names_people`: whether audit records contain the user and groups of a token.
    """

    issuer: Issuer
    own: Callable[[], Issuer]
    lifetimes: Lifetimes
    rates: Rates
    names_people: bool = False
    sleep: Sleep = asyncio.sleep


class Exchange:
    """Answers TokenCredentialRequests: verifies the token and issues a client certificate."""

    def __init__(
        self, store: Store, authenticators: Authenticators, admit: Admit, terms: LoginTerms, *, clock: Clock, group_suffix: str
    ) -> None:
        self._store = store
        self._authenticators = authenticators
        self._admit = admit
        self._terms = terms
        self._clock = clock
        self._group = f"login.{group_suffix}"
        self.outcomes: Counter[str] = Counter()
        """Number of successful and of failed exchanges, by kind of authenticator."""

    def resource(self) -> Resource:
        return token_credential_request(self._group, self.answers)

    def snapshot(self) -> dict[str, Any]:
        return {**self.outcomes, "rates": self._terms.rates.snapshot()}

    async def answers(self, question: Question) -> Document:
        """Exchanges a token. Raises InvalidError, TooManyRequestsError, and the errors of admission."""
        self._terms.rates.check(origin(question.peer))
        spec, notes = doc.mapping(question.document, "spec"), question.annotations
        public_key, key = self._keys(question, spec)
        notes[TOKEN_HASH] = token_hash(str(spec["token"]))
        blanked = deepcopy({**question.document, "spec": {**spec, "token": ""}})
        self._admit(
            Admission(GroupResource(self._group, "tokencredentialrequests"), Key("", ""), blanked, None, question.actor)
        )
        kind = str(doc.mapping(spec, "authenticator").get("kind") or "")
        counted = kind if kind in (*KINDS, ACCOUNT) else "unknown"
        began = self._clock.monotonic()
        try:
            issued = await self._issued(spec, public_key, notes)
        except MusterError as error:
            notes[LOGIN_FAILURE] = short(error.message)
            self.outcomes[f"{counted} failed"] += 1
            spent, span = self._clock.monotonic() - began, PAUSE.total_seconds()
            await self._terms.sleep(max(ceil(spent / span), 1) * span - spent)
            return _answer(message=FAILED)
        self.outcomes[f"{counted} given"] += 1
        notes.update({SERIAL: f"{issued.serial:x}", SIGNED_BY: issued.signed_by})
        credential = {
            "expirationTimestamp": format_time(pki.parse_certificate(issued.chain).not_after),
            "clientCertificateData": issued.chain.decode("ascii"),
        }
        return _answer(credential=credential | ({"clientKeyData": key.decode("ascii")} if key is not None else {}))

    def _keys(self, question: Question, spec: Document) -> tuple[bytes, bytes | None]:
        """Returns the public key for the certificate, and the private key if it is generated here. Raises InvalidError."""
        if question.dry_run:
            raise self._invalid(Cause("FieldValueNotSupported", "Unsupported value: dryRun is not supported", "dryRun"))
        if not spec.get("token"):
            raise self._invalid(Cause("FieldValueRequired", "Required value: token must be supplied", "spec.token"))
        if not spec.get("request"):
            key = pki.generate_key()
            return pki.public_key_of(key), key
        try:
            return pki.check_request(str(spec["request"]).encode()).public_key, None
        except (InvalidError, TooLargeError) as error:
            raise self._invalid(Cause("FieldValueInvalid", error.message, "spec.request")) from None

    def _invalid(self, cause: Cause) -> InvalidError:
        kind = "TokenCredentialRequest"
        text = f'{kind}.{self._group} "" is invalid: {cause.field}: {cause.message}'
        return InvalidError(text, subject=ErrorSubject(group=self._group, kind=kind), causes=[cause])

    async def _issued(self, spec: Document, public_key: bytes, notes: MutableMapping[str, str]) -> IssuedCertificate:
        """Verifies the token and signs a certificate for its user. Raises MusterError."""
        authenticator = doc.mapping(spec, "authenticator")
        kind, group = str(authenticator.get("kind") or ""), str(authenticator.get("apiGroup") or "")
        is_account = kind == ACCOUNT and not group
        if not is_account and (kind not in KINDS or group != self._group):
            raise UnauthorizedError(f'there is no kind of authenticators "{kind[:80]}" in the group "{group[:80]}"')
        reference = Reference(kind, "" if is_account else str(authenticator.get("name") or ""))
        notes[AUTHENTICATOR] = short(str(reference))
        identify, operator_groups = await self._authenticators.find(reference)
        named = await identify(str(spec["token"]))
        if named is not None and self._terms.names_people:
            notes.update({USER: short(named.user), GROUPS: short(", ".join(named.groups))})
        login = admit_user(named, operator_groups)
        if login.left_out and self._terms.names_people:
            notes[LEFT_OUT] = short(", ".join(login.left_out))
        signer = self._terms.own() if login.is_our_own_name else self._terms.issuer
        return await self._store.run(logins.admit, login, public_key, signer, self._terms.lifetimes)


def _answer(**status: Any) -> dict[str, Any]:
    """Returns an answer without any content of the request."""
    return {"metadata": {}, "spec": {"authenticator": {}}, "status": status}


class EmptyListStorage(MemoryStorage):
    """Storage with an empty list, so that `kubectl get` of a category works."""

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource, query
        return Page((), 0)


def token_credential_request(group: str, answers: Answers) -> Resource:
    return declared("tokencredentialrequests.login", group=group, storage=EmptyListStorage(), answers=answers)
