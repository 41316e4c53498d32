"""authentication.k8s.io/v1: TokenReview, and TokenRequest as the subresource `token` of ServiceAccounts.

Sources: Kubernetes' registries of both, and their validation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from machinery.apiserver.authn.chain import INVALID_TOKEN, TokenAuthenticator, authenticated
from machinery.apiserver.authn.service_accounts import Accounts, ServiceAccountTokenIssuer
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.kinds.declaration import BOOLEAN, EXTRA, TEXT, TEXTS, builtin, record
from machinery.apiserver.resource import Question, Resource, Subresource
from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, Cause, UnauthorizedError, forbidden, invalid_value
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

GROUP = "authentication.k8s.io"
DEFAULT_SECONDS = 3600
MIN_SECONDS = 600
MAX_SECONDS = 2**32
LONGEST = timedelta(days=366)
"""Longest lifetime of a token; longer requests are reduced to it, as in Kubernetes."""

USER_INFO = record(username=TEXT, uid=TEXT, groups=TEXTS, extra=EXTRA)
_REVIEW_SCHEMA = record(
    "TokenReview attempts to authenticate a token to a known user.",
    ("spec",),
    spec=record(
        token={**TEXT, "description": "The opaque bearer token."},
        audiences={**TEXTS, "description": "For whom the token must be meant; absent: this API server."},
    ),
    status=record(
        authenticated=BOOLEAN,
        user=USER_INFO,
        audiences={**TEXTS, "description": "Of those asked for, the ones that the token is meant for."},
        error={**TEXT, "description": "Why the token could not be checked, or is not good."},
    ),
)
_REQUEST_SCHEMA = record(
    "TokenRequest requests a token for a given service account.",
    ("spec",),
    spec=record(
        audiences={**TEXTS, "description": "For whom the token is meant; absent: this API server."},
        expirationSeconds={"type": "integer", "format": "int64", "default": DEFAULT_SECONDS},
        boundObjectRef=record(
            "An object that the token would end with; not supported by this server.",
            **dict.fromkeys(("apiVersion", "kind", "name", "uid"), TEXT),
        ),
    ),
    status=record(token=TEXT, expirationTimestamp={"type": "string", "format": "date-time"}),
)


def token_review(tokens: TokenAuthenticator, audiences: Sequence[str]) -> Resource:
    """`audiences`: this API server's audiences, for reviews without audiences."""

    async def answers(question: Question) -> Document:
        spec = question.document.get("spec", {})
        if not spec.get("token"):
            raise BadRequestError("token is required for TokenReview in authentication")
        status: dict[str, Any] = {"user": {}, "error": INVALID_TOKEN}
        try:
            found = await tokens.identify(spec["token"], spec.get("audiences") or audiences)
        except UnauthorizedError as error:
            status["error"], found = error.message, None
        if found is not None:
            status = {"authenticated": True, "user": user_info(authenticated(found.actor))}
            status |= {"audiences": list(found.audiences)} if found.audiences else {}
        return {**question.document, "status": status}

    return builtin(
        group=GROUP,
        name="tokenreviews",
        kind="TokenReview",
        verbs=("create",),
        schema=_REVIEW_SCHEMA,
        answers=answers,
    )


def user_info(actor: Actor) -> dict[str, Any]:
    """authentication.k8s.io's UserInfo without empty fields."""
    parts = {
        "username": actor.user,
        "uid": actor.uid,
        "groups": list(actor.groups),
        "extra": {key: list(values) for key, values in actor.extra.items()},
    }
    return {name: value for name, value in parts.items() if value}


def _request_violations(new: Document, _old: Document | None) -> Iterator[Cause]:
    spec: Mapping[str, Any] = new.get("spec", {})
    seconds, path = spec.get("expirationSeconds", DEFAULT_SECONDS), "spec.expirationSeconds"
    if seconds < MIN_SECONDS:
        yield invalid_value(path, seconds, "may not specify a duration less than 10 minutes")
    if seconds > MAX_SECONDS:
        yield invalid_value(path, seconds, "may not specify a duration larger than 2^32 seconds")
    if any(not audience for audience in spec.get("audiences", ())):
        yield forbidden("spec.audiences", "an audience has a name")


def service_account(issuer: ServiceAccountTokenIssuer, accounts: Accounts) -> Resource:
    """The ServiceAccount with its subresource `token`."""

    async def answers(question: Question) -> Document:
        spec = question.document.get("spec", {})
        account = await accounts.find(question.namespace, question.name)
        metadata = question.document["metadata"]
        if metadata.get("name", account.name) != account.name:
            raise BadRequestError(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({account.name})"
            )
        if reference := spec.get("boundObjectRef"):
            kind = f"{reference.get('apiVersion', '')}, Kind={reference.get('kind', '')}"
            raise BadRequestError(f"cannot bind token to object of type {kind}: tokens here end with their account alone")
        audiences = spec.get("audiences") or list(issuer.audiences)
        begin = question.now.replace(microsecond=0)
        end = begin + min(timedelta(seconds=spec["expirationSeconds"]), LONGEST)
        token = "" if question.dry_run else issuer.token(account, audiences, begin, end)
        return {
            "metadata": {"name": account.name, "namespace": account.namespace, "creationTimestamp": format_time(begin)},
            "spec": {"audiences": list(audiences), "expirationSeconds": spec["expirationSeconds"], "boundObjectRef": None},
            "status": {"token": token, "expirationTimestamp": format_time(end)},
        }

    request = builtin(
        group=GROUP,
        name="tokenrequests",
        kind="TokenRequest",
        namespaced=True,
        verbs=("create",),
        schema=_REQUEST_SCHEMA,
        validate=_request_violations,
        answers=answers,
    )
    token = Subresource("token", verbs=("create",), question=request)
    return replace(SERVICE_ACCOUNT, subresources=(*SERVICE_ACCOUNT.subresources, token))
