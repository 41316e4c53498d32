"""The certificates of a hub: its issuers, the serving certificate and the admin kubeconfig."""

from dataclasses import dataclass
from pathlib import Path

from hub.composition.context import BuildContext
from hub.composition.host_cluster import HostClusterSection
from hub.composition.resources import Resources
from hub.issuer import IssuerChain, ServingNames
from hub.replica.installation import AdminKubeconfig, entry
from hub.replica.serving_certificate import DoorsCertificate, doors_certificate
from machinery.client.kubeconfig import ClusterEntry


@dataclass(frozen=True, slots=True)
class CertificateSection:
    """`signing`: the hub's CA and, for logins, the host cluster's if enabled. `cluster`: the hub's entry in kubeconfigs."""

    host: HostClusterSection
    signing: IssuerChain
    doors: DoorsCertificate
    cluster: ClusterEntry
    admin_kubeconfig: AdminKubeconfig
    admin_path: Path


async def open_certificates(context: BuildContext, resources: Resources) -> CertificateSection:
    """Opens the issuers and writes the admin kubeconfig. Raises InvalidError, UnavailableError."""
    settings, lifetimes, clock, addresses = context.settings, context.lifetimes, context.clock, context.addresses
    host = HostClusterSection(settings, clock)
    signing = IssuerChain(resources.issuer, host.issuers)
    names = ServingNames(addresses.dns_names, addresses.ip_addresses)
    folder = resources.directory.path
    doors = doors_certificate(settings, folder, names, resources.issuer, lifetimes=lifetimes, clock=clock)
    cluster = entry(resources.hub_id, addresses, resources.issuer.trust_bundle, settings.api_group_suffix)
    admin = AdminKubeconfig(resources.directory, resources.store, signing, cluster, lifetimes=lifetimes, clock=clock)
    resources.issuer.listen(admin.look)
    return CertificateSection(host, signing, doors, cluster, admin, await admin.keep())
