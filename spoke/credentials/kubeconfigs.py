"""Parses the agent's kubeconfigs: bootstrap kubeconfigs of the operator, and kubeconfigs in the agent's own secrets."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from machinery.client.kubeconfig import (
    HUB_USER,
    ClusterEntry,
    HubEndpoint,
    Kubeconfig,
    parse_kubeconfig,
    parsed,
    write_hub_kubeconfig,
)
from machinery.client.kubeconfig_documents import encoded, parse_document
from machinery.errors import InvalidError
from machinery.identity import HubId, recovery_subject
from machinery.meta import bounded_yaml as boundedyaml
from machinery.pki import CertificateFacts, parse_chain, public_key_of
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION
from spoke.domain.credential import (
    AGENT_NAME,
    CERTIFICATE,
    CLUSTER_NAME,
    KEY,
    KUBECONFIG,
    ORIGIN,
    RECOVERY,
    HubEntry,
    StoredCredential,
    present_keys,
    validity,
)
from spoke.domain.names import AgentNames
from spoke.domain.route import Driver, Reach, over_grpc
from spoke.ports.hub import ClientIdentity, HubAddress

ANY_REACH = Reach()
"""Selects the driver and the proxy by the kubeconfig alone: no options, no environment."""


@dataclass(frozen=True, slots=True)
class HubConnection:
    hub: HubEntry
    address: HubAddress
    identity: ClientIdentity
    chain: tuple[CertificateFacts, ...]
    kubeconfig: bytes = field(repr=False)
    """The kubeconfig to store for this hub. It contains no private key. It may contain the password of a proxy."""
    cluster_name: str = ""
    """The cluster name to which a bootstrap credential is bound; empty: not stated."""
    source: str = ""

    @property
    def hub_id(self) -> HubId:
        """The hub's id. If the kubeconfig has none, a UUID derived from the server's URL and the name of the cluster entry."""
        return _hub_id(self.hub)

    @property
    def trust(self) -> Mapping[str, bytes]:
        """The entries of a secret (content by name) from which the agent reads the CAs of the hub."""
        origin = self.hub.grpc_ca or self.hub.ca
        return {KUBECONFIG: self.kubeconfig, **({ORIGIN: origin} if origin != self.address.ca else {})}

    @property
    def certificate(self) -> CertificateFacts:
        return self.chain[0]


def stored_connection(contents: Mapping[str, bytes], reach: Reach = ANY_REACH) -> HubConnection:
    """Return the connection of a complete stored credential. Raises InvalidError."""
    return replace(connection_of(_stored_kubeconfig(contents), reach), hub=_stored_entry(contents))


def stored_hub(contents: Mapping[str, bytes]) -> HubId:
    """Return the hub's id in a stored credential, usable or not. Raises InvalidError if the kubeconfig is unreadable."""
    return _hub_id(_hub_entry(_stored_kubeconfig(contents).cluster))


def recovery_connection(
    contents: Mapping[str, bytes], names: AgentNames, now: datetime, reach: Reach = ANY_REACH
) -> HubConnection | None:
    """Return the connection with a stored recovery certificate; None if there is none, or it is not usable now.

    Only hubs with a gRPC door support recovery.
    """
    if not contents.get(RECOVERY):
        return None
    with suppress(InvalidError):
        connection = stored_connection({**contents, CERTIFICATE: contents[RECOVERY]}, reach)
        own = connection.certificate.subject == recovery_subject(names.cluster, names.agent)
        over = connection.address.driver is Driver.GRPC
        if own and over and validity(connection.chain, now) is None:
            return replace(connection, identity=replace(connection.identity, recovers=True))
    return None


def recovery_obstacle(contents: Mapping[str, bytes], reach: Reach = ANY_REACH) -> str:
    """Return why the agent needs a bootstrap credential to replace an expired credential; empty: no reason is known.

    This function does not check the recovery certificate; `recovery_connection` does.
    """
    with suppress(InvalidError):
        if stored_connection(contents, reach).address.driver is Driver.CSR:
            return (
                "recovery is not possible over the Kubernetes API (driver csr): the agent needs a valid bootstrap credential "
                "and the approval of its request"
            )
    return "" if contents.get(RECOVERY) else "it has no recovery certificate, so it needs a valid bootstrap credential"


def view_stored(contents: Mapping[str, bytes]) -> StoredCredential:
    """Parse the hub kubeconfig secret. Parts that cannot be parsed are None."""
    hub: HubEntry | None = None
    chain: tuple[CertificateFacts, ...] | None = None
    public_key: bytes | None = None
    with suppress(InvalidError):
        chain = parse_chain(contents.get(CERTIFICATE, b""))
    with suppress(InvalidError):
        public_key = public_key_of(contents.get(KEY, b""))
    with suppress(InvalidError):
        hub = _stored_entry(contents)
    return StoredCredential(
        present=present_keys(contents), hub=hub, chain=chain, public_key=public_key, names=stored_texts(contents)
    )


def stored_texts(contents: Mapping[str, bytes]) -> tuple[str, str]:
    """Return the cluster name and the agent id in a secret; empty: missing."""
    cluster, agent = (contents.get(key, b"").decode(errors="replace").strip() for key in (CLUSTER_NAME, AGENT_NAME))
    return cluster, agent


def _stored_kubeconfig(contents: Mapping[str, bytes]) -> Kubeconfig:
    return parse_kubeconfig(contents.get(KUBECONFIG, b""), source="in the hub kubeconfig secret", folder=contents)


def _stored_entry(contents: Mapping[str, bytes]) -> HubEntry:
    """Return the hub as named at registration, with the present CAs added. Raises InvalidError."""
    entry, origin = _hub_entry(_stored_kubeconfig(contents).cluster), contents.get(ORIGIN, b"")
    entry = replace(entry, known=b"\n".join((entry.ca, entry.grpc_ca)))
    if not origin.strip():
        return entry
    return replace(entry, grpc_ca=origin) if entry.grpc_ca else replace(entry, ca=origin)


def connection_of(kubeconfig: Kubeconfig, reach: Reach = ANY_REACH) -> HubConnection:
    """Return the hub and the identity of a kubeconfig. Raises InvalidError with what is missing and the remedy."""
    cluster, endpoint = kubeconfig.cluster, kubeconfig.cluster.endpoint
    driver = reach.driver_for(
        source=kubeconfig.source, endpoint=endpoint is not None, certificate=kubeconfig.credential is not None
    )
    identity, chain = _identity(kubeconfig, driver)
    endpoint = replace(endpoint, cluster_name=None) if endpoint is not None else None
    bound = cluster.endpoint.cluster_name if cluster.endpoint is not None else cluster.cluster_name
    return HubConnection(
        hub=_hub_entry(cluster),
        address=_address(kubeconfig, driver, reach),
        identity=identity,
        chain=chain,
        kubeconfig=write_hub_kubeconfig(replace(cluster, endpoint=endpoint, cluster_name=None)),
        cluster_name=bound or "",
        source=kubeconfig.source,
    )


def _identity(kubeconfig: Kubeconfig, driver: Driver) -> tuple[ClientIdentity, tuple[CertificateFacts, ...]]:
    """Return the client certificate if there is one, else the token, which only the driver `csr` accepts."""
    if kubeconfig.credential is None and kubeconfig.token is not None and driver is Driver.CSR:
        return ClientIdentity(token=kubeconfig.token), ()
    credential = kubeconfig.require_credential()
    try:
        chain = parse_chain(credential.chain)
        paired = chain[0].public_key == public_key_of(credential.key)
    except InvalidError as error:
        raise InvalidError(f'kubeconfig {kubeconfig.source}: user "{kubeconfig.user}": {error.message}') from None
    if not paired:
        raise InvalidError(f'kubeconfig {kubeconfig.source}: user "{kubeconfig.user}": the certificate is not for the key')
    return ClientIdentity(credential.chain, credential.key), chain


def _address(kubeconfig: Kubeconfig, driver: Driver, reach: Reach) -> HubAddress:
    cluster, named = kubeconfig.cluster, kubeconfig.cluster.proxy_url or ""
    try:
        if driver is Driver.GRPC:
            endpoint = kubeconfig.require_endpoint()
            proxy = over_grpc(reach.proxy_for(endpoint.grpc_server, named=named))
            return HubAddress(
                endpoint.grpc_server, endpoint.certificate_authority or cluster.certificate_authority, proxy=proxy
            )
        proxy = reach.proxy_for(cluster.server, named=named)
    except InvalidError as error:
        raise InvalidError(f"kubeconfig {kubeconfig.source}: {error.message}") from None
    return HubAddress(
        cluster.server,
        cluster.certificate_authority,
        driver,
        proxy,
        cluster.tls_server_name or "",
        cluster.endpoint.group_suffix if cluster.endpoint is not None else GROUP_SUFFIX,
    )


def _hub_id(hub: HubEntry) -> HubId:
    return hub.hub_id or HubId(str(uuid5(NAMESPACE_URL, f"{hub.server}#{hub.cluster}")))


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


def by_token_file(kubeconfig: bytes) -> bytes:
    """Return `kubeconfig` with a user that reads the file `token` in the same folder, as for OCM's token driver."""
    document = parse_document(kubeconfig, "that is to have a token")
    document["users"] = [{"name": HUB_USER, "user": {"tokenFile": "token"}}]
    return boundedyaml.write(document).encode()


def with_authority(kubeconfig: bytes, authority: bytes) -> bytes:
    """Return the kubeconfig with these CAs (PEM) for the gRPC door. Raises InvalidError.

    If the kubeconfig has no separate CAs for the gRPC door, these CAs also apply to the HTTPS door.
    """
    source = "that is to know its hub by another CA"
    document = parse_document(kubeconfig, source)
    entry = parsed(document, source=source, folder={}).cluster
    (cluster,) = (each["cluster"] for each in document["clusters"] if each["name"] == entry.name)
    if entry.endpoint is not None and entry.endpoint.certificate_authority is not None:
        for each in cluster["extensions"]:
            if each["name"] == KUBECONFIG_EXTENSION:
                each["extension"]["certificateAuthorityData"] = encoded(authority)
    else:
        cluster.pop("certificate-authority", None)
        cluster["certificate-authority-data"] = encoded(authority)
    return boundedyaml.write(document).encode()


def is_same_but_for_trust(one: bytes, other: bytes) -> bool:
    """Whether two kubeconfigs differ at most in the CAs that `with_authority` sets. False if one of them is unreadable."""
    try:
        return with_authority(one, b"") == with_authority(other, b"")
    except InvalidError:
        return False
