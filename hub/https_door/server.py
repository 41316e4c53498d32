"""The HTTPS door: the hub's API groups on the generic API server, and the listener in the life cycle of the process."""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from functools import partial

import structlog
from aiohttp import web
from structlog.contextvars import bound_contextvars

from hub.access.attestations import AttestationPolicy, flaws
from hub.access.cluster_acceptance import ClusterAcceptanceCache
from hub.access.rbac_cache import RBACCache
from hub.api.certificates import Lifetimes
from hub.api.clusterroles import ApiGroups
from hub.api.liveness import DEFAULT_LEASE_DURATION
from hub.api.namespaces import STANDING
from hub.https_door.callers.authentication import AuthenticationConfig, AuthenticatorChain
from hub.https_door.callers.authorization import HubAuthorizer, OwnRoles, named_actor
from hub.https_door.groups import groups_of
from hub.https_door.storage.admission import HubAdmission
from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.leases import LeaseStorage
from hub.https_door.storage.past import with_past
from hub.https_door.storage.storage import EventStorage, ServiceStorage
from hub.ports import Store
from hub.ports.identities import Issuer
from hub.registry import namespaces
from hub.registry.bootstrapcredentials.documents import AdvertisedAddress
from hub.registry.bootstrapcredentials.resource import CredentialStorage
from hub.registry.clusterroles import reconcile
from machinery.apiserver.access import Attributes
from machinery.apiserver.authn.chain import TokenAuthenticator
from machinery.apiserver.authn.impersonation import Impersonation
from machinery.apiserver.authz.escalation import EscalationCheck, wait_until_seen
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.filters import Draining, Filters, Incoming, Inner
from machinery.apiserver.http.listener import DEFAULT_BOUNDS, Listening, serve
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.kinds.reviews import Reviewer, access_reviews
from machinery.apiserver.resource import ApiGroup, Resource
from machinery.apiserver.routes import Scrape
from machinery.apiserver.server import ApiServer, Page
from machinery.apiserver.storage import Admit, GroupResource, Storage
from machinery.identity import is_reserved
from machinery.lifecycle.server import Door
from machinery.lifecycle.startup import listening_failed
from machinery.product import GROUP_SUFFIX, NAME, version
from machinery.runtime.clock import Clock
from machinery.runtime.health import HealthCheck

KUBERNETES = ("1", "36")
"""The Kubernetes version that this door emulates."""

MakeResource = Callable[[TokenAuthenticator, Admit], Resource]
"""Makes a resource for the door. Arguments: the door's authenticator of ServiceAccount tokens, the door's admission."""

ChangeResource = Callable[[Resource, Storage, Reviewer], Resource]
"""Returns a changed resource of the door. Arguments: the resource, its storage, the door's authorizer."""
CLUSTERS = "managedclusters"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HttpsServer:
    """The parts of the HTTPS door. `run` must run while the door serves."""

    server: ApiServer
    feed: ChangeFeed
    entrance: AuthenticatorChain
    roles: RBACCache
    store: Store
    groups: ApiGroups

    async def prepare(self) -> None:
        """Creates missing default roles and reads all roles. Raises UnavailableError."""
        await self.store.run(reconcile, self.groups)
        await self.roles.load()

    async def run(self) -> None:
        """Until cancelled, follows the change log for watches and roles, and follows revoked credentials."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.feed.run(), name="watches")
            tasks.create_task(self.entrance.run(), name="entrance")
            tasks.create_task(self.roles.run(), name="roles")


@dataclass(frozen=True, slots=True)
class HttpsDoorConfig:
    """The settings that the resources of the HTTPS door use."""

    group_suffix: str = GROUP_SUFFIX
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    clock_skew_limit: timedelta = timedelta()
    default_lease_duration: timedelta = DEFAULT_LEASE_DURATION
    attestation: AttestationPolicy = field(default_factory=AttestationPolicy)
    join_labels: tuple[str, ...] = ()
    """Labels that a registering cluster may set."""


@dataclass(slots=True)
class DoorChanges:
    """Changes by extensions. `authorizers`: functions; each wraps an authorizer and passes some requests on to it."""

    authorizers: list[Callable[[Reviewer], Reviewer]] = field(default_factory=list)
    resources: dict[GroupResource, ChangeResource] = field(default_factory=dict)

    def changed(self, groups: Iterable[ApiGroup], objects: Storage, authorizer: Reviewer) -> list[ApiGroup]:
        """Returns the groups with the changes of `self.resources`. `objects`: storage of resources that declare none."""

        def one(resource: Resource) -> Resource:
            change = self.resources.get(resource.key)
            return resource if change is None else change(resource, resource.storage or objects, authorizer)

        return [replace(group, resources=tuple(map(one, group.resources))) for group in groups]


def build_door(
    store: Store,
    issuer: Issuer,
    address: AdvertisedAddress,
    authentication: AuthenticationConfig,
    config: HttpsDoorConfig,
    *,
    clock: Clock,
    checks: Iterable[HealthCheck] = (),
    filters: Filters | None = None,
    others: Sequence[Resource] = (),
    api_resources: Sequence[MakeResource] = (),
    changes: DoorChanges | None = None,
    metrics: Scrape | None = None,
    pages: Mapping[str, Page] | None = None,
) -> HttpsServer:
    """Builds the HTTPS door, which serves the objects of `store`.

    `others`: resources that replace resources with the same key. `api_resources`: functions that make more resources.
    `metrics`: the scrape function. `pages`: handlers of more paths, which serve no objects.
    """
    group_suffix = config.group_suffix
    feed = ChangeFeed(store)
    objects = ServiceStorage(store, feed, group_suffix)
    flaws_of, api_version = partial(flaws, allowed=config.attestation.allowed), f"hub.{group_suffix}/v1alpha1"
    credentials = CredentialStorage(store, issuer, address, config.lifetimes, api_version, flaws=flaws_of)
    roles, standings, own = RBACCache(store, clock), ClusterAcceptanceCache(store, clock), ApiGroups(group_suffix)
    roles.watch(standings.apply)
    rbac = OwnRoles(roles)
    authorizer: Reviewer = HubAuthorizer(store, rbac, standings, own)
    for external in authentication.external:
        authorizer = external.authorizer(authorizer)
    changes = changes or DoorChanges()
    for change in changes.authorizers:
        authorizer = change(authorizer)
    entrance = AuthenticatorChain(store, objects, feed, address.hub_id, authentication, clock=clock)
    standings.on_end = entrance.presence.end_under
    admission = HubAdmission(rbac.decide, own, attests=config.attestation.required, join_labels=config.join_labels)
    escalation, seen = EscalationCheck(rbac), wait_until_seen(roles)
    groups = groups_of(
        store,
        group_suffix,
        credentials,
        LeaseStorage(store, feed, objects, clock, config.clock_skew_limit),
        EventStorage(store, feed, group_suffix, clock),
        *entrance.resources,
        *(replace(resource, admit=escalation, written=seen) for resource in ROLES_AND_BINDINGS),
        *access_reviews(authorizer, named_actor),
        *(make(entrance.accounts, admission) for make in api_resources),
        *others,
        admit=admission,
        lease_duration=config.default_lease_duration,
    )

    async def namespace_exists(name: str) -> bool:
        """Runs before a write. The write's transaction then checks whether the namespace is terminating."""
        return await store.read(namespaces.get, name) is not None

    # reserved names cannot be impersonated: only the hub's records make an actor an agent, add-on or bootstrap credential
    impersonation = Impersonation(authorizer, lambda actor: is_reserved(actor.user, actor.groups))
    added = filters or Filters()
    server = ApiServer(
        changes.changed(with_past(groups, store, group_suffix, clock), objects, authorizer),
        objects,
        authenticator=entrance.authenticator,
        authorizer=authorizer,
        clock=clock,
        version=version_document(),
        checks=checks,
        namespaces=namespace_exists,
        metrics=metrics,
        pages=pages,
        filters=replace(added, log_context=(named, *added.log_context), impersonation=(entrance.presence, impersonation)),
    )
    return HttpsServer(server, feed, entrance, roles, store, own)


def version_document() -> dict[str, str]:
    """Returns the answer of /version: the emulated Kubernetes version and the hub's own."""
    major, minor = KUBERNETES
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.0+{NAME}.{version().replace('+', '.')}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


@dataclass(eq=False)
class HttpsDoor(Door):
    """The HTTPS door. While the door refuses requests, clients get a retry delay. It serves health and metrics until it closes.

    A subclass is another listener of the same server. `setting`: name of the setting with the address of the listener.
    """

    name = "https"
    setting = "https_listen"
    opened = "HTTPS door open"

    served: HttpsServer
    draining: Draining
    host: str
    port: int
    context: ssl.SSLContext
    _: KW_ONLY
    bounds: ConnectionBounds = DEFAULT_BOUNDS

    def __post_init__(self) -> None:
        self._listening: Listening | None = None

    async def start(self) -> None:
        """Listen and serve. Raises StartError if the server cannot listen on the address."""
        try:
            app = self.served.server.application(self.name)
            self._listening = await serve(app, self.host, self.port, self.context, bounds=self.bounds)
        except OSError as error:
            raise listening_failed(self.setting, self.host, self.port, error) from error
        log.info(self.opened, address=_shown(self.host, self.port))

    async def set_ready(self, *, ready: bool) -> None:
        """Does nothing: at this door /readyz reports readiness."""

    async def refuse(self) -> None:
        self.draining.refuse()

    async def stop_listening(self) -> None:
        if self._listening is not None:
            await self._listening.stop_listening()
            self._listening.connections.leave()

    async def drain(self, grace: timedelta) -> None:
        await asyncio.gather(self.draining.drained(), self.served.server.watches.drain(grace))

    async def close(self, grace: timedelta) -> None:
        if self._listening is not None:
            await self._listening.close(grace)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def named(incoming: Incoming, inner: Inner) -> web.StreamResponse:
    cluster = cluster_of(incoming.attributes)
    if not cluster:
        return await inner(incoming)
    with bound_contextvars(cluster=cluster):
        return await inner(incoming)


def cluster_of(asked: Attributes) -> str:
    """Returns the cluster of a request: the named ManagedCluster, or the cluster of the namespace; "": neither."""
    if asked.resource == CLUSTERS:
        return asked.name
    return "" if asked.namespace in STANDING else asked.namespace
