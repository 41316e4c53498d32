"""Authorization attributes of a request, and the interfaces for authentication and authorization."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, DenialCause
from machinery.meta.selectors import Operator, parse_field_selector

ANONYMOUS = Actor("system:anonymous", ("system:unauthenticated",))
OPEN_PATHS = frozenset(("/healthz", "/livez", "/readyz", "/version"))


@dataclass(frozen=True, slots=True)
class Attributes:
    """Authorization attributes of a request. Attributes without a `resource` describe the path. Verbs are lower case."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    selected_name: str = ""
    """The only name that the field selector of a list or watch selects, as Kubernetes' authorizers use it."""
    label_selector: str = ""
    """Label selector of a list, watch or deletecollection, as requested."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of an authorization. `reason`: for messages and access reviews; it may be empty."""

    allowed: bool
    reason: str = ""
    denial_cause: DenialCause | None = None
    """Machine-readable reason, if the refusal concerns the caller itself."""


class Authenticator(Protocol):
    """Determines the user of a request."""

    async def authenticate(self, request: web.Request) -> Actor:
        """Return the user; ANONYMOUS if the request has no credential. Raises UnauthorizedError for an invalid credential."""


class Authorizer(Protocol):
    """Decides whether a user may make a request."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision: ...


def peer_certificate(request: web.Request) -> bytes | None:
    """Return the verified client certificate (DER); None if the client sent none, or the connection is not TLS."""
    transport = request.transport
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    certificate: bytes | None = connection.getpeercert(binary_form=True) if connection is not None else None
    return certificate or None


_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SELECTING = ("list", "watch", "deletecollection")
_NAMESPACE_PARTS = ("status", "finalize")


def attributes(method: str, path: str, query: Mapping[str, str]) -> Attributes:
    """Return the attributes of a request. Paths outside `/api/<version>/` and `/apis/<group>/<version>/` have no resource."""
    parts = [part for part in path.split("/") if part]
    prefix = {"api": 2, "apis": 3}.get(parts[0], len(parts)) if parts else 0
    rest = parts[prefix:]
    if not rest:
        return Attributes(method.lower(), path)
    watched, namespace = rest[0] == "watch" and len(rest) > 1, ""
    rest = rest[1:] if watched else rest
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _NAMESPACE_PARTS:  # noqa: PLR2004 - namespaces, name, resource
            rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    watched = method == "GET" and (watched or is_true(query.get("watch", "")))  # a HEAD of a watch would never end
    verb = "watch" if watched else _VERBS.get(method, "")
    if not name:
        verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
    return Attributes(
        verb=verb,
        path=path,
        group=parts[1] if parts[0] == "apis" else "",
        version=parts[prefix - 1],
        resource=resource,
        subresource=subresource,
        namespace=namespace,
        name=name,
        selected_name="" if name else _selected_name(query.get("fieldSelector", "")),
        label_selector=query.get("labelSelector", "") if verb in _SELECTING else "",
    )


def _selected_name(field_selector: str) -> str:
    """Return the name in `metadata.name=NAME`; "" if there is none, or the selector is malformed.

    Authorization and selection use the same parser, so that they agree on the name.
    """
    try:
        requirements = parse_field_selector(field_selector)
    except BadRequestError:
        return ""
    named = [term.values[0] for term in requirements if (term.name, term.operator) == ("metadata.name", Operator.EQUALS)]
    return named[0] if named else ""


def is_true(text: str) -> bool:
    """Whether a boolean query parameter is present and not a spelling of false."""
    return text not in ("", "0", "false", "False", "F", "f")
