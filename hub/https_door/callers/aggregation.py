"""The hub as an aggregated API server: trusts the front proxy of a management cluster and asks that cluster for authorization.

The front proxy's CA and names are read from the cluster every few seconds. After a failed read the previous ones stay; before
the first successful read the front proxy is not trusted.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import structlog

from hub.https_door.callers.authenticator_chain import ExternalAuthenticator
from hub.https_door.callers.authorization import HubAuthorizer
from hub.ports import Management
from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authn.aggregation import DelegatedAuthorizer, DelegatedTokens, FrontProxy, Origin, Review, Trust
from machinery.apiserver.authn.authorities import mark_of_authority
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.authz.rbac import HeldRules, RbacAuthorizer
from machinery.apiserver.kinds.reviews import Reviewer
from machinery.apiserver.storage import Actor
from machinery.errors import MusterError
from machinery.identity import OPERATOR_GROUP
from machinery.runtime.clock import Clock
from machinery.runtime.tls import Serving

LOOK_EVERY = timedelta(seconds=5)
SOURCE = "front-proxy"

log = structlog.get_logger(__name__)


class Aggregation(ExternalAuthenticator):
    """Authentication and authorization by one management cluster."""

    def __init__(self, management: Management, serving: Serving, clock: Clock) -> None:
        self._management = management
        self._serving = serving
        self._presence: Presence | None = None
        self._trouble = ""
        self.authenticator = FrontProxy(clock)
        self.tokens = DelegatedTokens(management.review, clock)
        self.review = management.review

    def bind(self, presence: Presence) -> None:
        self._presence = presence

    async def run(self) -> None:
        """Reads the cluster's configuration periodically until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def look(self) -> None:
        """Applies the cluster's current configuration, and writes the hub's CA bundle into the cluster."""
        try:
            self._believe(Trust.of_config_map(await self._management.config_map()))
            await self._management.keep_bundle(self._serving.material.trust)
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("the management cluster cannot be followed: what was known stays", error=error.message)
            self._trouble = error.message
        else:
            self._trouble = ""

    def _believe(self, trust: Trust) -> None:
        if trust == self.authenticator.trust:
            return
        self._serving.trust_clients(SOURCE, trust.authorities)
        gone = self.authenticator.believe(trust)
        presence = self._presence
        log.info("front proxy believed", names=sorted(trust.names))
        if presence is None:
            return
        for fingerprint in gone:
            presence.end_under(mark_of_authority(fingerprint))


class OwnRoles(RbacAuthorizer):
    """RBAC for users of the hub. Users of another API server may have the same names, so roles do not apply to them."""

    def decide(self, actor: Actor, asked: Attributes) -> Decision:
        if actor.holder is Origin.DELEGATED and OPERATOR_GROUP not in actor.groups:
            return Decision(allowed=False, reason="roles of the hub are not for identities of the management cluster")
        return super().decide(actor, asked)

    def held(self, actor: Actor, namespace: str) -> HeldRules:
        if actor.holder is Origin.DELEGATED and OPERATOR_GROUP not in actor.groups:
            return HeldRules((), ("the rights of this user are the management cluster's to tell",))
        return super().held(actor, namespace)


def delegating(own: HubAuthorizer, external_authenticators: Sequence[ExternalAuthenticator], clock: Clock) -> Reviewer:
    """Returns an authorizer that asks the management cluster about its own users, and `own` about all others."""
    asked = next((way.review for way in external_authenticators if way.review is not None), None)
    return own if asked is None else DelegatingReviewer(own, asked, clock)


class DelegatingReviewer(DelegatedAuthorizer):
    """Answers access reviews too; the rules that it lists are the hub's own."""

    def __init__(self, own: HubAuthorizer, review: Review, clock: Clock) -> None:
        super().__init__(own, review, clock)
        self._reviewer = own

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        return await self._reviewer.rules(actor, namespace)
