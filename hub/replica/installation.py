"""The hub's identity, made at the first start, and its addresses.

The hub's id and the suffix of its API groups are in the database, which all replicas share. `hub.replica.keys` has the hub's
keys.
"""

from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from uuid import uuid4

from hub.api.certificates import Lifetimes
from hub.ports import HUB_ID, Store, Transaction
from hub.replica.admin_kubeconfig import ADMIN_FILE, KUBECONFIG
from hub.settings import HubSettings
from hub.settings.fields import Address, parse_ip
from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, parse_kubeconfig
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX, NAME
from machinery.runtime.directory import DataDirectory

SUFFIX = "group-suffix"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses at which peers reach the doors."""

    grpc: Address
    https: Address
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]

    @classmethod
    def of(cls, settings: HubSettings) -> "Addresses":
        """Return the addresses. A door that listens on all addresses and advertises none gets a loopback address."""
        grpc = _seen(settings.grpc_listen, settings.grpc_advertised)
        https = _seen(settings.https_listen, settings.https_advertised)
        hosts = {"localhost", "127.0.0.1", "::1", grpc.host, https.host, *settings.serving_names}
        hosts |= {each.host for each in (settings.grpc_listen, settings.https_listen) if not each.is_wildcard}
        addresses = {host for host in hosts if parse_ip(host) is not None}
        return cls(grpc, https, tuple(sorted(hosts - addresses)), tuple(sorted(addresses)))


def _seen(listening: Address, advertised: Address | None) -> Address:
    return listening.local if advertised is None else Address(advertised.host, advertised.port or listening.port)


def lifetimes_of(settings: HubSettings) -> Lifetimes:
    return Lifetimes(
        agent=settings.agent_lifetime,
        recovery=settings.recovery_lifetime,
        bootstrap=settings.bootstrap_lifetime,
        serving=settings.serving_lifetime,
        ca=settings.ca_lifetime,
    )


async def check_first_start(store: Store, directory: DataDirectory, settings: HubSettings) -> None:
    """Raises InvalidError if the database has no hub, but there is an admin kubeconfig of a hub: the database was replaced.

    A new hub would have no records of the former hub's agents and would refuse all of them. Raises UnavailableError.
    """
    if await _has_hub(store):
        return
    found = {f"the data directory {directory.path}": directory.read(ADMIN_FILE)}
    if settings.admin_kubeconfig_secret is not None:
        from hub.replica.host_secrets import open_secret  # noqa: PLC0415 - 60 MB that only such a hub needs

        async with AsyncExitStack() as stack:
            secret = await open_secret(settings.admin_kubeconfig_secret, settings, stack)
            found[f"the Secret {settings.admin_kubeconfig_secret}"] = (await secret.read()).get(KUBECONFIG)
    for place, content in found.items():
        hub = _hub_of(content, place)
        if hub is not None and not await _has_hub(store):  # another replica may have begun in the meantime
            raise InvalidError(
                f"the database is empty, but {place} has the admin kubeconfig of hub {hub}, whose agents a new hub would "
                "refuse: correct the database URL, or move or restore that hub into the database (hub backup, hub restore); "
                "to begin a new hub, remove that kubeconfig"
            )


async def _has_hub(store: Store) -> bool:
    return await store.read(lambda tx: tx.facts.get(HUB_ID)) is not None


def _hub_of(content: bytes | None, source: str) -> HubId | None:
    """Return the hub of an admin kubeconfig; None if there is no kubeconfig, or it is damaged."""
    with suppress(InvalidError):
        return None if content is None else parse_kubeconfig(content, source=source).require_endpoint().hub_id
    return None


def settle(tx: Transaction, group_suffix: str = GROUP_SUFFIX) -> HubId:
    """Return the hub's id, which the first start makes. Raises InvalidError if the database has another API group suffix."""
    suffix = tx.facts.settle(SUFFIX, group_suffix)
    if suffix != group_suffix:
        raise InvalidError(
            f'the database belongs to a hub whose API groups end in "{suffix}", this one\'s end in "{group_suffix}": '
            f"the suffix is fixed at the first start, so start this hub with --api-group-suffix={suffix}"
        )
    return HubId(tx.facts.settle(HUB_ID, str(uuid4())))


def entry(hub: HubId, addresses: Addresses, trust: bytes, group_suffix: str = GROUP_SUFFIX) -> ClusterEntry:
    return ClusterEntry(
        name=NAME,
        server=f"https://{addresses.https}",
        certificate_authority=trust,
        endpoint=HubEndpoint(grpc_server=str(addresses.grpc), hub_id=hub, group_suffix=group_suffix),
    )
