"""The certificates of a hub: its issuers, the serving certificate and the admin kubeconfig."""

from dataclasses import dataclass
from pathlib import Path

from hub.composition.context import BuildContext
from hub.composition.resources import Resources
from hub.issuer import IssuerChain, ServingNames
from hub.metrics.replica import add_certificates
from hub.replica.admin_kubeconfig import AdminKubeconfig, AdminSecret
from hub.replica.installation import entry
from hub.replica.serving_certificate import DoorsCertificate, doors_certificate
from machinery.client.kubeconfig import ClusterEntry
from machinery.lifecycle.health import READINESS


@dataclass(frozen=True, slots=True)
class CertificateSection:
    """`signing`: the hub's CA, and for logins those of extensions. `cluster`: the hub's entry in kubeconfigs."""

    signing: IssuerChain
    doors: DoorsCertificate
    cluster: ClusterEntry
    admin_path: Path


async def open_certificates(context: BuildContext, resources: Resources) -> CertificateSection:
    """Opens the issuers and writes the admin kubeconfig. Raises InvalidError, UnavailableError."""
    settings, lifetimes, clock, addresses = context.settings, context.lifetimes, context.clock, context.addresses
    issuer, folder = resources.issuer, resources.directory.path
    signing = IssuerChain(issuer)
    context.inspection.add("issuers", signing.snapshot)
    # the serving certificate of both doors
    names = ServingNames(addresses.dns_names, addresses.ip_addresses)
    doors = doors_certificate(settings, folder, names, issuer, lifetimes=lifetimes, clock=clock)
    context.server.health.add("serving-certificate", doors.check, endpoints=READINESS)
    context.add_task("serving certificate", doors.run)
    add_certificates(context.metrics, issuer, signing, doors)
    # the admin kubeconfig, in the data directory and in a Secret
    cluster = entry(resources.hub_id, addresses, issuer.trust_bundle, settings.api_group_suffix)
    admin = AdminKubeconfig(resources.directory, resources.store, signing, cluster, lifetimes=lifetimes, clock=clock)
    issuer.listen(admin.look)
    context.add_task("admin kubeconfig", admin.run)
    if settings.admin_kubeconfig_secret is not None:
        from hub.replica.host_secrets import open_secret  # noqa: PLC0415 - 60 MB that only such a hub needs

        secret = AdminSecret(await open_secret(settings.admin_kubeconfig_secret, settings, context.stack), admin)
        issuer.listen(secret.wake)
        context.add_task("admin secret", secret.run)
    return CertificateSection(signing, doors, cluster, await admin.keep())
