"""Lists and watches the ManagedCluster and, while it is accepted, its add-ons. Computes the state that the hub wants.

An unreadable ManagedCluster counts as not accepted, because OCM's hub grants an agent no rights before the acceptance. Add-ons
that cannot be read are reported as unknown, not as missing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from random import Random

from machinery.client.reflector import FIRST_PAUSE, ObjectKey, Reflector, mirrored
from machinery.client.rest import Object, RestResource
from machinery.errors import ForbiddenError, MusterError, NotFoundError
from machinery.identity import ClusterName
from machinery.runtime.backoff import Backoff
from spoke.domain.addon import AddOn
from spoke.ports.hub import Desired
from spoke.transports.kubernetes.addons import add_on_of
from spoke.transports.kubernetes.api import ApiDoor
from spoke.transports.kubernetes.documents import desired_of

LONGEST_PAUSE = timedelta(seconds=10)
"""Longest pause between attempts to read. While the agent may read nothing, it detects an acceptance within this time."""
ADD_ON_VERSIONS = ("v1beta1", "v1alpha1")
NOT_SERVED = timedelta(minutes=5)
"""If a hub does not serve add-ons, the agent checks again after this time."""


@dataclass(eq=False)
class HubMirror:
    """Mirrors one ManagedCluster and its add-ons. Calls `changed` after a change, `failed` with errors of lists or watches."""

    door: ApiDoor
    cluster: ClusterName
    seen: Object | None
    _: KW_ONLY
    changed: Callable[[], None]
    failed: Callable[[MusterError], None]

    def __post_init__(self) -> None:
        self._hidden = self.seen is None
        self.gone = False
        """Whether the ManagedCluster was deleted."""
        self._add_ons: tuple[AddOn, ...] | None = None
        self._accepted = asyncio.Event()
        self._denied = asyncio.Event()
        self.add_on_resource: RestResource = self.door.add_ons(ADD_ON_VERSIONS[0])
        """The resource of add-ons, in the API version that the hub serves. Before the first check: v1beta1."""
        self._sort()

    @property
    def document(self) -> Object | None:
        """The ManagedCluster; None if it is unreadable or deleted."""
        return None if self._hidden else self.seen

    @property
    def desired(self) -> Desired:
        return desired_of(self.document, self._add_ons)

    def hide(self) -> None:
        """Record that the hub no longer lets the agent read the ManagedCluster."""
        if not self._hidden:
            self._hidden = True
            self._update()

    def show(self, document: Object) -> None:
        if self._hidden:
            self._hidden, self.seen = False, document
            self._update()

    async def run(self) -> None:
        kube = await self.door.kube()
        clusters = Reflector(
            kube,
            self.door.clusters.path(),
            self._keep,
            query={"fieldSelector": f"metadata.name={self.cluster}"},
            on_change=self._take,
            on_failure=self.failed,
            backoff=_watch_backoff(),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(clusters.run(), name="hub/cluster")
            group.create_task(self._mirror_add_ons(), name="hub/add-ons")

    def _keep(self, document: Object) -> Object:
        if self._hidden:  # the reflector reports only changes, and the object may be unchanged since it was readable
            self._hidden = False
            asyncio.get_running_loop().call_soon(self._update)
        return document

    def _take(self, _key: ObjectKey, document: Object | None) -> None:
        self.gone = document is None
        self.seen = document
        self._update()

    def _update(self) -> None:
        self._sort()
        self.changed()

    def _sort(self) -> None:
        on, off = (self._accepted, self._denied) if self.desired.accepted else (self._denied, self._accepted)
        on.set()
        off.clear()

    async def _mirror_add_ons(self) -> None:
        pauses = _watch_backoff()
        while True:
            await self._accepted.wait()
            try:
                served = await self._served()
            except MusterError as error:
                self._add_ons_failed(error)
                await asyncio.sleep(pauses.next().total_seconds())
                continue
            pauses.reset()
            if served:
                await self._follow_add_ons()
            else:
                self._set_add_ons(())
                await asyncio.sleep(NOT_SERVED.total_seconds())

    async def _served(self) -> bool:
        kube = await self.door.kube()
        for version in ADD_ON_VERSIONS:
            self.add_on_resource = self.door.add_ons(version)
            try:
                await kube.get(self.add_on_resource.path(namespace=self.cluster), {"limit": 1})
            except NotFoundError:
                continue
            return True
        return False

    async def _follow_add_ons(self) -> None:
        """Publish the add-ons after the first complete list and each change, until the cluster is no longer accepted."""
        changed = asyncio.Event()
        held = Reflector(
            await self.door.kube(),
            self.add_on_resource.path(namespace=self.cluster),
            add_on_of,
            on_change=lambda _key, _value: changed.set(),
            on_failure=self._add_ons_failed,
            backoff=_watch_backoff(),
        )

        async def publish() -> None:
            await held.synced.wait()
            while True:
                self._set_add_ons(tuple(sorted(held.items.values(), key=lambda addon: addon.name)))
                await changed.wait()
                changed.clear()

        async with mirrored(held) as wait, asyncio.TaskGroup() as group:
            publishing = group.create_task(publish())
            await wait(self._denied)
            publishing.cancel()

    def _set_add_ons(self, add_ons: tuple[AddOn, ...]) -> None:
        if self._add_ons != add_ons:
            self._add_ons = add_ons
            self.changed()

    def _add_ons_failed(self, error: MusterError) -> None:
        if not isinstance(error, (ForbiddenError, NotFoundError)):  # the ManagedCluster shows whether the cluster is accepted
            self.failed(error)


def _watch_backoff() -> Backoff:
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE, random=Random())  # noqa: S311 - spreads load
