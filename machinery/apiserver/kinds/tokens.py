"""authentication.k8s.io/v1: TokenReview, and TokenRequest as the subresource `token` of ServiceAccounts.

Sources: Kubernetes' registries of both, and their validation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from machinery.apiserver.authn.chain import INVALID_TOKEN, Identity, TokenAuthenticator, authenticated
from machinery.apiserver.authn.service_accounts import Accounts, ServiceAccountTokenIssuer
from machinery.apiserver.http.status_errors import forbidden, invalid_value
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Actor, Document
from machinery.errors import BadRequestError, Cause, UnauthorizedError
from machinery.meta.timestamps import format_time

GROUP, VERSION = "authentication.k8s.io", "v1"
DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 2**32
LONGEST = timedelta(days=366)
"""Longest lifetime of a token; longer requests are reduced to it, as in Kubernetes."""

TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}
USER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "username": TEXT,
        "uid": TEXT,
        "groups": TEXTS,
        "extra": {"type": "object", "additionalProperties": TEXTS},
    },
}
REVIEW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "TokenReview attempts to authenticate a token to a known user.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "token": {**TEXT, "description": "The opaque bearer token."},
                "audiences": {**TEXTS, "description": "For whom the token must be meant; absent: this API server."},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "authenticated": {"type": "boolean"},
                "user": USER,
                "audiences": {**TEXTS, "description": "Of those asked for, the ones that the token is meant for."},
                "error": {**TEXT, "description": "Why the token could not be checked, or is not good."},
            },
        },
    },
}
REQUEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "TokenRequest requests a token for a given service account.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "audiences": {**TEXTS, "description": "For whom the token is meant; absent: this API server."},
                "expirationSeconds": {"type": "integer", "format": "int64", "default": DEFAULT_SECONDS},
                "boundObjectRef": {
                    "type": "object",
                    "description": "An object that the token would end with; not supported by this server.",
                    "properties": {"apiVersion": TEXT, "kind": TEXT, "name": TEXT, "uid": TEXT},
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {"token": TEXT, "expirationTimestamp": {"type": "string", "format": "date-time"}},
        },
    },
}


def token_review(tokens: TokenAuthenticator, audiences: Sequence[str]) -> Resource:
    """`audiences`: this API server's audiences, for reviews without audiences."""

    async def answers(question: Question) -> Document:
        spec = question.document.get("spec", {})
        if not spec.get("token"):
            raise BadRequestError("token is required for TokenReview in authentication")
        status = await _reviewed(tokens, spec["token"], spec.get("audiences") or audiences)
        return {**question.document, "status": status}

    return Resource(
        group=GROUP,
        version=VERSION,
        name="tokenreviews",
        kind="TokenReview",
        custom=False,
        verbs=("create",),
        schema=REVIEW_SCHEMA,
        answers=answers,
    )


async def _reviewed(tokens: TokenAuthenticator, token: str, audiences: Sequence[str]) -> dict[str, Any]:
    try:
        found = await tokens.identify(token, audiences)
    except UnauthorizedError as error:
        return {"user": {}, "error": error.message}
    if found is None:
        return {"user": {}, "error": INVALID_TOKEN}
    return _status(found)


def _status(found: Identity) -> dict[str, Any]:
    status: dict[str, Any] = {"authenticated": True, "user": user_info(authenticated(found.actor))}
    return {**status, "audiences": list(found.audiences)} if found.audiences else status


def user_info(actor: Actor) -> dict[str, Any]:
    """authentication.k8s.io's UserInfo without empty fields."""
    parts = {
        "username": actor.user,
        "uid": actor.uid,
        "groups": list(actor.groups),
        "extra": {key: list(values) for key, values in actor.extra.items()},
    }
    return {name: value for name, value in parts.items() if value}


@dataclass(frozen=True, slots=True)
class _Requests:
    """Answers TokenRequests."""

    issuer: ServiceAccountTokenIssuer
    accounts: Accounts

    async def answers(self, question: Question) -> Document:
        spec = question.document.get("spec", {})
        account = await self.accounts.find(question.namespace, question.name)
        metadata = question.document["metadata"]
        if metadata.get("name", account.name) != account.name:
            raise BadRequestError(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({account.name})"
            )
        if reference := spec.get("boundObjectRef"):
            kind = f"{reference.get('apiVersion', '')}, Kind={reference.get('kind', '')}"
            raise BadRequestError(f"cannot bind token to object of type {kind}: tokens here end with their account alone")
        audiences = spec.get("audiences") or list(self.issuer.audiences)
        begin = question.now.replace(microsecond=0)
        end = begin + min(timedelta(seconds=spec["expirationSeconds"]), LONGEST)
        token = "" if question.dry_run else self.issuer.token(account, audiences, begin, end)
        return {
            "metadata": {"name": account.name, "namespace": account.namespace, "creationTimestamp": format_time(begin)},
            "spec": {"audiences": list(audiences), "expirationSeconds": spec["expirationSeconds"], "boundObjectRef": None},
            "status": {"token": token, "expirationTimestamp": format_time(end)},
        }


def _request_violations(new: Document, _old: Document | None) -> list[Cause]:
    spec: Mapping[str, Any] = new.get("spec", {})
    seconds, path = spec.get("expirationSeconds", DEFAULT_SECONDS), "spec.expirationSeconds"
    causes = []
    if seconds < MIN_SECONDS:
        causes.append(invalid_value(path, seconds, "may not specify a duration less than 10 minutes"))
    if seconds > MAX_SECONDS:
        causes.append(invalid_value(path, seconds, "may not specify a duration larger than 2^32 seconds"))
    if any(not audience for audience in spec.get("audiences", ())):
        causes.append(forbidden("spec.audiences", "an audience has a name"))
    return causes


def service_account(issuer: ServiceAccountTokenIssuer, accounts: Accounts) -> Resource:
    """The ServiceAccount with its subresource `token`."""
    request = Resource(
        group=GROUP,
        version=VERSION,
        name="tokenrequests",
        kind="TokenRequest",
        namespaced=True,
        custom=False,
        verbs=("create",),
        schema=REQUEST_SCHEMA,
        validate=_request_violations,
        answers=_Requests(issuer, accounts).answers,
    )
    token = Subresource("token", verbs=("create",), question=request)
    return replace(SERVICE_ACCOUNT, subresources=(*SERVICE_ACCOUNT.subresources, token))
