"""Builds the HTTPS door, which serves the Kubernetes API to operators."""

from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network

from hub.composition.core import HubCore
from hub.https_door.auditing import Auditing
from hub.https_door.callers.authentication import AuthenticationConfig, ExternalAuthenticator
from hub.https_door.callers.client_ca import ClientAuthorityFile
from hub.https_door.pages import LOG_LEVEL_PATH, LogLevel, RevocationLists
from hub.https_door.server import HttpsDoor, HttpsDoorConfig, HttpsServer, build_door
from hub.metrics.doors import add_requests
from hub.registry.bootstrapcredentials.documents import AdvertisedAddress
from hub.registry.certificateauthorities.resource import CERTIFICATE_AUTHORITY, authorities_of
from machinery.apiserver.authn.chain import TokenChecks
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.filters import Draining, Filters, Limiting, RefusalLimit
from machinery.apiserver.http.limits import REQUEST_LIMIT


@dataclass(frozen=True, slots=True)
class OperatorsDoor:
    """The HTTPS door. `draining`: counts requests, and refuses new ones at a stop. `authenticators`: of external users."""

    door: HttpsServer
    draining: Draining
    authenticators: tuple[ExternalAuthenticator, ...]


async def build_operators_door(core: HubCore) -> OperatorsDoor:
    """Build the HTTPS door, which serves the health checks. Register checks and hooks before the call. Raises MusterError."""
    context, certificates, access, resources = core.context, core.certificates, core.access, core.resources
    settings, clock, server, serving = context.settings, context.clock, context.server, certificates.doors.serving
    store, issuer, limits = resources.store, resources.issuer, access.limits
    draining = Draining(core.loopback.identity)
    authenticators = tuple(core.authenticators)
    if settings.client_ca_file is not None:
        file = ClientAuthorityFile(settings.client_ca_file, settings.client_ca_groups, serving, clock)
        authenticators = (file, *authenticators)
    authorities = partial(authorities_of, patience=settings.ca_rotation_patience, cannot=resources.key_places.cannot)
    door = build_door(
        store,
        issuer,
        AdvertisedAddress(resources.hub_id, certificates.cluster.server, str(context.addresses.grpc)),
        AuthenticationConfig(
            access.peers.identify,
            access.peers.listen,
            token_keys=resources.token_keys,
            external=authenticators,
            token_checks=TokenChecks(limits.refusals, clock),
            loopback=core.loopback.identity,
        ),
        HttpsDoorConfig(
            group_suffix=settings.api_group_suffix,
            lifetimes=context.lifetimes,
            clock_skew_limit=settings.clock_skew_limit,
            default_lease_duration=settings.default_lease_duration,
            attestation=core.attestation,
            join_labels=settings.join_labels,
        ),
        clock=clock,
        checks=server.health.checks(),
        filters=Filters(
            gate=(draining.gate,),
            in_flight=(draining.counted, RevocationLists(store, issuer, clock), *core.public_filters),
            audit=(Auditing(access.auditor), RefusalLimit(limits.refusals, clock)),
            limits=(Limiting(limits.place, limits.rates, clock, REQUEST_LIMIT, limits.watches),),
        ),
        others=(replace(CERTIFICATE_AUTHORITY, bind=authorities).served(store, settings.api_group_suffix),),
        api_resources=core.api_resources,
        changes=core.changes,
        metrics=context.metrics.scrape,
        pages={LOG_LEVEL_PATH: LogLevel(store, context.process.verbosity, resources.replica)},
    )
    await door.prepare()
    listening = settings.https_listen
    bounds = ConnectionBounds(each=settings.max_connections_per_address, proxies=tuple(map(ip_network, settings.https_proxies)))
    server.add_door(HttpsDoor(door, draining, listening.host, listening.port, serving.context, bounds=bounds))
    watches = door.server.watches
    context.add_task("watches", door.run)
    context.inspection.add("requests", lambda: {"in flight": draining.in_flight})
    context.inspection.add("watches", lambda: {"open": len(watches)} | watches.by_resource())
    add_requests(context.metrics, door, draining)
    return OperatorsDoor(door, draining, authenticators)
