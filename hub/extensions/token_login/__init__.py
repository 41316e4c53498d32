"""Logins of operators: exchange of tokens of other issuers for client certificates (TokenCredentialRequest).

Without a JWTAuthenticator or WebhookAuthenticator only tokens of this hub's ServiceAccounts are accepted.
"""

from hub.composition.core import HubCore
from hub.extensions.settings import TokenLoginSettings
from hub.extensions.token_login.authenticators import Authenticators
from hub.extensions.token_login.exchange import Exchange, LoginTerms
from hub.metrics.doors import add_logins
from machinery.apiserver.authn.chain import TokenAuthenticator
from machinery.apiserver.authn.issuer_keys import HttpsDocuments
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Admit


async def install(core: HubCore) -> None:
    settings, context, store = core.context.settings, core.context, core.resources.store
    if not isinstance(settings, TokenLoginSettings):
        return
    clock, names_people = context.clock, settings.audit_login_names
    rates = Rates(settings.login_rate, settings.login_burst, clock)
    issuer = core.resources.issuer
    terms = LoginTerms(issuer, lambda: issuer.current, context.lifetimes, rates, names_people=names_people)

    def resource(accounts: TokenAuthenticator, admit: Admit) -> Resource:
        authenticators = Authenticators(store, accounts, HttpsDocuments.with_authorities, clock)
        exchange = Exchange(store, authenticators, admit, terms, clock=clock, group_suffix=settings.api_group_suffix)
        context.inspection.add("logins", exchange.snapshot)
        add_logins(context.metrics, exchange.outcomes)
        return exchange.resource()

    core.api_resources.append(resource)
