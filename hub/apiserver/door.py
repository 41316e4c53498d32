"""The HTTPS door put together: which groups it serves, from which storages, for whom."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUESTS
from machinery.apiserver.kinds.coordination import LEASES

from hub.apiserver.authentication import CertificateAuthenticator, Resolve
from hub.apiserver.authorization import StaticAuthorizer
from hub.apiserver.credentials import CredentialStorage, Entrance
from hub.apiserver.feed import ChangeFeed
from hub.apiserver.kinds.addon import managed_cluster_addons
from hub.apiserver.kinds.bootstrapcredential import VERSION as HUB_VERSION
from hub.apiserver.kinds.bootstrapcredential import bootstrap_credentials
from hub.apiserver.kinds.managedcluster import managed_clusters
from hub.apiserver.leases import LeaseStorage
from hub.apiserver.storage import ServiceStorage, shelves
from hub.domain.certificate import Lifetimes
from hub.domain.heartbeat import LastBeat
from hub.ports import Issuer, Store, Transaction
from machinery.apiserver.health import HealthCheck
from machinery.apiserver.resource import Group
from machinery.apiserver.server import ApiServer
from machinery.apiserver.storage import Key
from machinery.clock import Clock
from machinery.product import GROUP_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorParts:
    """What the door is made of."""

    store: Store
    issuer: Issuer
    resolve: Resolve
    entrance: Callable[[], Entrance]
    lifetimes: Lifetimes
    flush_window: timedelta
    clock: Clock
    version: Mapping[str, Any]
    checks: Iterable[HealthCheck] = ()
    suffix: str = GROUP_SUFFIX


def build_door(parts: DoorParts, feed: ChangeFeed) -> ApiServer:
    """The API server. `feed` has to run while it serves."""
    storage = ServiceStorage(parts.store, feed, shelves(parts.suffix))
    return ApiServer(
        groups(parts, storage),
        storage,
        authenticator=CertificateAuthenticator(parts.resolve),
        authorizer=StaticAuthorizer(),
        clock=parts.clock,
        version=parts.version,
        checks=parts.checks,
    )


def groups(parts: DoorParts, storage: ServiceStorage) -> tuple[Group, ...]:
    """The API groups, in the order of discovery."""
    hub_group = f"hub.{parts.suffix}"
    credentials = CredentialStorage(parts.store, parts.issuer, parts.entrance, parts.lifetimes, f"{hub_group}/{HUB_VERSION}")
    leases = LeaseStorage(parts.store, storage, parts.flush_window)
    return (
        Group(f"cluster.{parts.suffix}", (replace(managed_clusters(parts.suffix), extras=_last_beats(parts.store)),)),
        Group(f"addon.{parts.suffix}", (managed_cluster_addons(parts.suffix),)),
        Group(hub_group, (bootstrap_credentials(credentials, parts.suffix),)),
        Group("certificates.k8s.io", (CERTIFICATE_SIGNING_REQUESTS,)),
        Group("coordination.k8s.io", (replace(LEASES, storage=leases),)),
    )


def _last_beats(store: Store) -> Callable[[Sequence[Key]], Awaitable[Mapping[Key, Mapping[str, Any]]]]:
    """Cells of the wide table that no document holds: when a cluster was last heard, and whether its session is open."""

    async def look_up(keys: Sequence[Key]) -> Mapping[Key, Mapping[str, Any]]:
        beats = await store.read(_beats)
        return {key: _cells(beats[key.name]) for key in keys if key.name in beats}

    return look_up


def _beats(tx: Transaction) -> dict[str, LastBeat]:
    return {last.cluster: last for last in tx.heartbeats.all()}


def _cells(last: LastBeat) -> dict[str, Any]:
    return {"last_beat": last.at, "session": last.session, "agent_version": last.agent_version}
