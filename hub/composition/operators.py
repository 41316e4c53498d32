"""The HTTPS door of operators, and the hub's loopback client."""

from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network

from hub.composition.access import Access
from hub.composition.authenticators import ExternalAuthenticators
from hub.composition.certificates import CertificateSection
from hub.composition.context import BuildContext
from hub.composition.resources import Resources
from hub.https_door.auditing import Auditing
from hub.https_door.callers.authenticator_chain import ExternalAuthenticator
from hub.https_door.callers.token_exchange import LoginSettings
from hub.https_door.listener import HttpsDoor
from hub.https_door.pages import log_level as verbosity
from hub.https_door.pages.revocation_lists import RevocationLists
from hub.https_door.server import HttpsServer, build_door
from hub.registry.bootstrapcredentials.documents import AdvertisedAddress
from hub.registry.certificateauthorities.resource import CERTIFICATE_AUTHORITY, authorities_of
from hub.replica.debug_endpoints import checks_of
from machinery.apiserver.authn.chain import TokenChecks
from machinery.apiserver.authn.issuer_keys import AllowedUrls
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.draining import Draining, not_yet
from machinery.apiserver.http.filters import Filters
from machinery.apiserver.http.limit_filter import Limiting, RefusalLimit
from machinery.apiserver.http.limits import REQUEST_LIMIT
from machinery.apiserver.http.loopback import Loopback, LoopbackClient


@dataclass(frozen=True, slots=True)
class LoopbackAccess:
    """`identity`: accepted only by the HTTPS door of this process. `client` uses it."""

    identity: Loopback
    client: LoopbackClient


@dataclass(frozen=True, slots=True)
class OperatorsDoor:
    door: HttpsServer
    draining: Draining
    authenticators: tuple[ExternalAuthenticator, ...]


async def open_loopback(context: BuildContext, certificates: CertificateSection) -> LoopbackAccess:
    identity = Loopback.fresh(context.clock.now())
    identity.shown_by(certificates.doors.serving.context)
    listening = context.settings.https_listen
    client = await context.stack.enter_async_context(LoopbackClient(identity, listening.host, listening.port))
    return LoopbackAccess(identity, client)


async def build_operators_door(
    context: BuildContext,
    resources: Resources,
    certificates: CertificateSection,
    access: Access,
    loopback: LoopbackAccess,
    *,
    authenticators: ExternalAuthenticators,
) -> OperatorsDoor:
    """Call it after every health check and hook is registered, because the door serves them. Raises MusterError."""
    settings, clock, server = context.settings, context.clock, context.server
    store, issuer, limits = resources.store, resources.issuer, access.limits
    installed = server.paths.expect("api groups")
    draining = Draining(loopback.identity)
    external = tuple(await authenticators(context, certificates, access))
    authorities = partial(authorities_of, patience=settings.ca_rotation_patience, cannot=resources.ring.cannot)
    door = build_door(
        store,
        certificates.signing,
        access.peers.identify,
        AdvertisedAddress(resources.hub_id, certificates.cluster.server, str(context.addresses.grpc)),
        clock=clock,
        lifetimes=context.lifetimes,
        checks=checks_of(server.health),
        group_suffix=settings.api_group_suffix,
        clock_skew_limit=settings.clock_skew_limit,
        default_lease_duration=settings.default_lease_duration,
        revocations=access.peers.listen,
        filters=Filters(
            paths=(not_yet(lambda: server.signals.mux_and_discovery_complete.signaled),),
            gate=(draining.gate,),
            in_flight=(draining.counted, RevocationLists(store, issuer, clock)),  # revocation lists are public
            audit=(Auditing(access.auditor), RefusalLimit(limits.refusals, clock)),
            limits=(Limiting(limits.place, limits.rates, clock, REQUEST_LIMIT, limits.watches),),
        ),
        loopback=loopback.identity,
        token_keys=resources.token_keys,
        external_authenticators=external,
        token_checks=TokenChecks(limits.refusals, clock),
        login=LoginSettings(settings.login_rate, settings.login_burst, settings.audit_login_names, issuer),
        others=(replace(CERTIFICATE_AUTHORITY, bind=authorities).served(store, settings.api_group_suffix),),
        attests=settings.attestation == "required",
        allowed_issuers=AllowedUrls(settings.attestation_allowed_issuers),
        join_labels=settings.join_labels,
        metrics=context.metrics.scrape,
        pages={verbosity.PATH: verbosity.LogLevel(store, context.process.verbosity, resources.replica)},
    )
    await door.prepare()
    installed()
    listening = settings.https_listen
    context_of_tls = certificates.doors.serving.context
    bounds = ConnectionBounds(each=settings.max_connections_per_address, proxies=tuple(map(ip_network, settings.https_proxies)))
    server.add_door(HttpsDoor(door, draining, listening.host, listening.port, context_of_tls, bounds=bounds))
    return OperatorsDoor(door, draining, external)
