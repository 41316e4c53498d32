"""The two kubeconfigs of an agent: the bootstrap file that it is given, and the hub kubeconfig secret that it keeps.

Here PEM and YAML become the values that `spoke.domain` judges and `spoke.ports` dials with.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.kubeconfig import ClusterEntry, HubEndpoint, Kubeconfig, parse_kubeconfig, write_hub_kubeconfig
from machinery.pki import CertificateFacts, parse_chain, public_key_of
from spoke.domain.credential import (
    AGENT_NAME,
    CERTIFICATE,
    CLUSTER_NAME,
    KEY,
    KUBECONFIG,
    HubEntry,
    StoredCredential,
    present_keys,
)
from spoke.ports import ClientIdentity, HubAddress


@dataclass(frozen=True, slots=True)
class Connection:
    """A hub and who we are there."""

    hub: HubEntry
    address: HubAddress
    identity: ClientIdentity
    chain: tuple[CertificateFacts, ...]
    kubeconfig: bytes
    """A hub kubeconfig for this hub: holds no key."""
    cluster_name: str = ""
    """The name that a bootstrap credential is bound to; empty: none is told."""

    @property
    def hub_id(self) -> HubId:
        return self.hub.hub_id

    @property
    def certificate(self) -> CertificateFacts:
        return self.chain[0]


def stored_connection(contents: Mapping[str, bytes]) -> Connection:
    """The connection of a stored credential that was judged to be good. Raises InvalidError."""
    return connection_of(_stored_kubeconfig(contents))


def view_stored(contents: Mapping[str, bytes]) -> StoredCredential:
    """What the rules need of the hub kubeconfig secret; what cannot be read is None."""
    hub: HubEntry | None = None
    chain: tuple[CertificateFacts, ...] | None = None
    public_key: bytes | None = None
    with suppress(InvalidError):
        chain = parse_chain(contents.get(CERTIFICATE, b""))
    with suppress(InvalidError):
        public_key = public_key_of(contents.get(KEY, b""))
    with suppress(InvalidError):
        hub = _hub_entry(_stored_kubeconfig(contents).cluster)
    return StoredCredential(
        present=present_keys(contents), hub=hub, chain=chain, public_key=public_key, names=stored_texts(contents)
    )


def stored_texts(contents: Mapping[str, bytes]) -> tuple[str, str]:
    """Cluster name and agent id as they stand in a secret; empty where there is none."""
    cluster, agent = (contents.get(key, b"").decode(errors="replace").strip() for key in (CLUSTER_NAME, AGENT_NAME))
    return cluster, agent


def _stored_kubeconfig(contents: Mapping[str, bytes]) -> Kubeconfig:
    return parse_kubeconfig(contents.get(KUBECONFIG, b""), source="in the hub kubeconfig secret", folder=contents)


def connection_of(kubeconfig: Kubeconfig) -> Connection:
    """The hub and the identity in a kubeconfig. Raises InvalidError, with what is missing and what to do."""
    endpoint, credential = kubeconfig.require_endpoint(), kubeconfig.require_credential()
    try:
        chain = parse_chain(credential.chain)
        paired = chain[0].public_key == public_key_of(credential.key)
    except InvalidError as error:
        raise InvalidError(f'kubeconfig {kubeconfig.source}: user "{kubeconfig.user}": {error.message}') from None
    if not paired:
        raise InvalidError(f'kubeconfig {kubeconfig.source}: user "{kubeconfig.user}": the certificate is not for the key')
    return Connection(
        hub=_hub_entry(kubeconfig.cluster),
        address=HubAddress(endpoint.grpc_server, endpoint.certificate_authority or kubeconfig.cluster.certificate_authority),
        identity=ClientIdentity(credential.chain, credential.key),
        chain=chain,
        kubeconfig=write_hub_kubeconfig(replace(kubeconfig.cluster, endpoint=replace(endpoint, cluster_name=None))),
        cluster_name=endpoint.cluster_name or "",
    )


def _hub_entry(cluster: ClusterEntry) -> HubEntry:
    endpoint = cluster.endpoint or HubEndpoint("", HubId(""))
    return HubEntry(
        cluster=cluster.name,
        server=cluster.server,
        ca=cluster.certificate_authority,
        grpc_server=endpoint.grpc_server,
        hub_id=endpoint.hub_id,
        grpc_ca=endpoint.certificate_authority or b"",
        proxy_url=cluster.proxy_url or "",
    )
