"""Opens the parts that both doors need: database, certificates, authentication and limits. Extensions add to them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from hub.access.attestations import AttestationPolicy
from hub.access.limits import AccessLimits
from hub.access.peers import Peers
from hub.audit import Auditor, auditing
from hub.composition.context import BuildContext
from hub.composition.resources import Resources, open_resources
from hub.election.fence import FencedStore
from hub.grpc_door.session.drain import Cordon
from hub.https_door.callers.authentication import ExternalAuthenticator
from hub.https_door.server import DoorChanges, HttpsServer, MakeResource
from hub.issuer.local import ServingNames
from hub.issuer.rotating import RotatingIssuer
from hub.metrics.doors import add_limits
from hub.metrics.replica import add_audit, add_certificates
from hub.replica.admin_kubeconfig import AdminKubeconfig, AdminSecret
from hub.replica.installation import entry
from hub.replica.serving_certificate import DoorsCertificate, doors_certificate
from machinery.apiserver.http.filters import Draining, Filter
from machinery.apiserver.http.loopback import Loopback, LoopbackClient
from machinery.client.kubeconfig import ClusterEntry
from machinery.runtime.health import LIVENESS, READINESS


@dataclass(frozen=True, slots=True)
class CertificateSection:
    """The issuer, the certificate of both doors and the admin kubeconfig. `cluster`: the hub's entry in kubeconfigs."""

    issuer: RotatingIssuer
    doors: DoorsCertificate
    cluster: ClusterEntry
    admin_path: Path


async def _open_certificates(context: BuildContext, resources: Resources) -> CertificateSection:
    """Opens the doors' certificate and writes the admin kubeconfig. Raises InvalidError, UnavailableError."""
    settings, lifetimes, clock, addresses = context.settings, context.lifetimes, context.clock, context.addresses
    issuer, folder = resources.issuer, resources.directory.path
    context.inspection.add("issuers", issuer.counts)
    # the serving certificate of both doors
    names = ServingNames(addresses.dns_names, addresses.ip_addresses)
    doors = doors_certificate(settings, folder, names, issuer, lifetimes=lifetimes, clock=clock)
    context.server.health.add("serving-certificate", doors.check, endpoints=READINESS)
    context.add_task("serving certificate", doors.run)
    add_certificates(context.metrics, issuer, doors)
    # the admin kubeconfig, in the data directory and in a Secret
    cluster = entry(resources.hub_id, addresses, issuer.trust_bundle, settings.api_group_suffix)
    admin = AdminKubeconfig(resources.directory, resources.store, issuer, cluster, lifetimes=lifetimes, clock=clock)
    issuer.listen(admin.look)
    context.add_task("admin kubeconfig", admin.run)
    if settings.admin_kubeconfig_secret is not None:
        from hub.replica.host_secrets import open_secret  # noqa: PLC0415 - 60 MB that only such a hub needs

        secret = AdminSecret(await open_secret(settings.admin_kubeconfig_secret, settings, context.stack), admin)
        issuer.listen(secret.wake)
        context.add_task("admin secret", secret.run)
    return CertificateSection(issuer, doors, cluster, await admin.keep())


@dataclass(frozen=True, slots=True)
class Access:
    peers: Peers
    auditor: Auditor
    limits: AccessLimits


@dataclass(frozen=True, slots=True)
class LoopbackAccess:
    """Access of the hub to its own API. Only this process's HTTPS door accepts `identity`, which `client` uses."""

    identity: Loopback
    client: LoopbackClient


@dataclass(slots=True)
class HubCore:
    """The parts that both doors need, and fields that extensions change before the doors are built.

    For the HTTPS door: `api_resources` are served in addition to the hub's own; `changes` change resources and authorization;
    `public_filters` run before authentication and audit; `authenticators` are tried before the hub's own. `on_lead`: called
    with a term's fenced store when this replica begins to lead. `attestation`: policy for the first registration of
    clusters. `more_doors`: called when the hub's own doors are built, with the cordon of the gRPC door, the server of the HTTPS
    door and the HTTPS door's `Draining`.
    """

    context: BuildContext
    resources: Resources
    certificates: CertificateSection
    access: Access
    loopback: LoopbackAccess
    api_resources: list[MakeResource] = field(default_factory=list)
    changes: DoorChanges = field(default_factory=DoorChanges)
    public_filters: list[Filter] = field(default_factory=list)
    authenticators: list[ExternalAuthenticator] = field(default_factory=list)
    on_lead: list[Callable[[FencedStore], None]] = field(default_factory=list)
    attestation: AttestationPolicy = field(default_factory=AttestationPolicy)
    more_doors: list[Callable[[Cordon, HttpsServer, Draining], None]] = field(default_factory=list)


Extension = Callable[[HubCore], Awaitable[None]]
"""Installs an optional part, if its settings enable it. Raises StartError, MusterError."""


async def open_core(context: BuildContext) -> HubCore:
    """Open the parts that the doors need: store, certificates, access, loopback client. Raises StartError, MusterError."""
    resources = await open_resources(context)
    certificates = await _open_certificates(context, resources)
    access = await _open_access(context, resources)
    identity = Loopback.fresh(context.clock.now())
    identity.shown_by(certificates.doors.serving.context)
    context.server.health.add("loopback-serving-certificate", identity.check(context.clock), endpoints=LIVENESS)
    listening = context.settings.https_listen
    client = await context.stack.enter_async_context(LoopbackClient(identity, listening.host, listening.port))
    return HubCore(context, resources, certificates, access, LoopbackAccess(identity, client))


async def _open_access(context: BuildContext, resources: Resources) -> Access:
    """Opens authentication, audit and limits. When the stack closes, the auditor stores queued records. Raises MusterError."""
    clock, issuer, settings = context.clock, resources.issuer, context.settings
    peers = Peers(resources.store, clock, signers=lambda: issuer.snapshot.authorities)
    audit = auditing(settings, resources.store, resources.replica, clock, on_end=context.process.shutdown.failed)
    auditor = await context.stack.enter_async_context(audit)
    limits = AccessLimits(clock, settings, write_delay=lambda: resources.store.write_delay)
    context.server.flush.add("audit", auditor.flush)
    context.add_task("revocations", peers.run)
    context.inspection.add("audit", lambda: {str(trail["sink"]): trail for trail in auditor.snapshot()})
    context.inspection.add("limits", limits.snapshot)
    add_audit(context.metrics, auditor)
    add_limits(context.metrics, limits)
    return Access(peers, auditor, limits)
