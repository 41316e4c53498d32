"""Status conditions of authenticators, found by connecting to the issuer or webhook.

Condition types and their order of dependence are Pinniped's. A condition that depends on a failed one is Unknown.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hub.api.logins import JWT, authorities_of
from hub.api.meta import document as doc
from machinery.apiserver.authn.issuer_keys import Discovered, JsonDocuments, check_https, discover, fetch_keys
from machinery.errors import MusterError
from machinery.meta.conditions import FALSE, TRUE, UNKNOWN, Condition
from machinery.meta.objects import Document

SUCCESS, UNABLE, NOT_READY = "Success", "UnableToValidate", "NotReady"
READY = "Ready"
_WAITS = "Not looked at: what stands before it is not good."

Connect = Callable[[bytes], JsonDocuments]
"""Returns a client for servers that these CA certificates verify (PEM; b"": the system's CAs). Raises InvalidError."""


@dataclass(slots=True)
class _Looking:
    """The conditions found so far. After a failure, the remaining checks are not run."""

    found: list[Condition] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return all(each.status == TRUE for each in self.found)

    async def look(self, kind: str, failure: str, success: str, step: Callable[[], Awaitable[None]]) -> None:
        self.found.append(await self._looked(kind, failure, success, step))

    async def _looked(self, kind: str, failure: str, success: str, step: Callable[[], Awaitable[None]]) -> Condition:
        if not self.good:
            return Condition(kind, UNKNOWN, UNABLE, _WAITS)
        try:
            await step()
        except MusterError as error:
            return Condition(kind, FALSE, failure, error.message)
        return Condition(kind, TRUE, SUCCESS, success)

    def ready(self) -> list[Condition]:
        """Returns all conditions and the summary condition Ready."""
        if self.good:
            return [*self.found, Condition(READY, TRUE, SUCCESS, "The authenticator is ready.")]
        return [*self.found, Condition(READY, FALSE, NOT_READY, "The authenticator is not ready: see the other conditions.")]


async def examine(kind: str, document: Document, connect: Connect) -> list[Condition]:
    """Returns the conditions of a JWTAuthenticator or a WebhookAuthenticator."""
    looking, trusted = _Looking(), _Trusted(document, connect)
    await looking.look("TLSConfigurationValid", "InvalidTLSConfig", trusted.told, trusted.load)
    await (_issuer if kind == JWT else _webhook)(document, looking, trusted)
    return looking.ready()


class _Trusted:
    """The client for the authenticator's server, verified with the CAs of its spec."""

    def __init__(self, document: Document, connect: Connect) -> None:
        self._document = document
        self._connect = connect
        named = doc.mapping(document, "spec", "tls").get("certificateAuthorityData")
        self.told = "The CAs can be read." if named else "No CA is named: those that the hub's machine trusts count."

    async def load(self) -> None:
        self._loaded = self._connect(authorities_of(self._document))

    @property
    def documents(self) -> JsonDocuments:
        return self._loaded


async def _issuer(document: Document, looking: _Looking, trusted: _Trusted) -> None:
    issuer = str(doc.mapping(document, "spec").get("issuer") or "")
    found: list[Discovered] = []

    async def address() -> None:
        check_https("the issuer", issuer)

    async def discovery() -> None:
        found.append(await discover(issuer, trusted.documents))

    async def keys() -> None:
        await fetch_keys(found[0], trusted.documents)

    await looking.look("IssuerURLValid", "InvalidIssuerURL", "The issuer is an https:// address.", address)
    await looking.look("DiscoveryURLValid", "InvalidDiscovery", "The issuer was discovered, and names its keys.", discovery)
    await looking.look("JWKSFetchValid", "InvalidCouldNotFetchJWKS", "The issuer's keys were fetched.", keys)


async def _webhook(document: Document, looking: _Looking, trusted: _Trusted) -> None:
    endpoint = str(doc.mapping(document, "spec").get("endpoint") or "")

    async def address() -> None:
        check_https("the endpoint", endpoint)

    async def connection() -> None:
        await trusted.documents.reach(endpoint)

    await looking.look("EndpointURLValid", "InvalidEndpointURL", "The endpoint is an https:// address.", address)
    await looking.look("WebhookConnectionValid", "UnableToDialServer", "The endpoint was reached over TLS.", connection)


def phase_of(conditions: list[Condition]) -> str:
    return "Ready" if all(each.status == TRUE for each in conditions) else "Error"
