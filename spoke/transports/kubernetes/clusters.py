"""The ManagedCluster of this agent: creation at registration, reads for the session, and upkeep."""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from machinery.client.rest import Object
from machinery.errors import AlreadyExistsError, ConflictError, ForbiddenError, MusterError, NotFoundError, UnauthorizedError
from machinery.identity import ClusterName
from spoke.domain.report import ExternalEndpoint
from spoke.ports import HubLostError, RegistrationState, SessionEnd, loss_of
from spoke.transports.kubernetes.api import ApiDoor
from spoke.transports.kubernetes.documents import is_another, kept_cluster, new_cluster, own_annotations, section

ATTEMPTS = 8
PAUSE = 0.02
"""Seconds between the first two attempts; each further pause is longer."""

log = structlog.get_logger(__name__)


async def ensure_cluster(
    door: ApiDoor,
    name: ClusterName,
    cluster_uid: str,
    *,
    endpoints: Sequence[ExternalEndpoint],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
) -> RegistrationState:
    """Create or find it. Raises AlreadyExistsError when it is another cluster's; ForbiddenError when creation is denied.

    A bootstrap credential need not be allowed to read it (OCM's is, a stricter hub's is not).
    """
    present = await _seen(door, name)
    created = False
    if present is None:
        kube = await door.kube()
        body = new_cluster(door.clusters.group, name, own_annotations(annotations, cluster_uid), endpoints, labels)
        try:
            present, created = await kube.create(door.clusters.path(), body), True
        except AlreadyExistsError:
            present = await _seen(door, name) or {"metadata": {"name": name}}
    if is_another(present, cluster_uid):
        raise AlreadyExistsError(
            f'the cluster name "{name}" belongs to another cluster: register under another name, '
            "or have the other ManagedCluster deleted first"
        )
    accepted = section(present, "spec").get("hubAcceptsClient") is True
    return RegistrationState(created=created, accepted=accepted, uid=str(section(present, "metadata").get("uid") or ""))


async def look(door: ApiDoor, cluster: ClusterName) -> Object:
    """Our ManagedCluster. Raises ForbiddenError when it is unreadable, HubLostError when no session is possible."""
    try:
        return await (await door.kube()).get(door.clusters.path(cluster))
    except ForbiddenError:
        raise
    except UnauthorizedError as error:
        raise HubLostError(error.message, loss_of(error.verdict, SessionEnd.UNAUTHENTICATED)) from error
    except NotFoundError as error:
        raise HubLostError(error.message, SessionEnd.FORGOTTEN) from error
    except MusterError as error:
        raise HubLostError(error.message, SessionEnd.UNREACHABLE, retry_after=error.retry_after) from error


async def _seen(door: ApiDoor, name: ClusterName) -> Object | None:
    """None when it does not exist or is unreadable."""
    try:
        return await (await door.kube()).get(door.clusters.path(name))
    except (NotFoundError, ForbiddenError):
        return None


class ClusterKeeping:
    """Maintains annotations and client configs of an accepted cluster; gives up when the hub forbids it."""

    def __init__(self, door: ApiDoor, annotations: Mapping[str, str]) -> None:
        self._door = door
        self._annotations = annotations
        self._allowed = True

    async def keep(self, present: Object, endpoints: Sequence[ExternalEndpoint]) -> Object:
        """Write the differences; return the resulting document. Raises NotFoundError and the errors of calls."""
        kube, path = await self._door.kube(), self._door.clusters.path(str(present["metadata"]["name"]))
        for attempt in range(1, ATTEMPTS + 1):
            wanted = kept_cluster(present, self._annotations, endpoints)
            if wanted == present or not self._allowed:
                return present
            try:
                return await kube.update(path, wanted)
            except ConflictError:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(PAUSE * attempt)
                present = await kube.get(path)
            except ForbiddenError as error:
                self._allowed = False
                log.info("cluster.not_kept", why=error.message)
        return present
