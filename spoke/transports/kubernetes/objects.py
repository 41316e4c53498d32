"""The agent's objects at the hub's API: its ManagedCluster and its CertificateSigningRequests.

The name of a request derives from its bytes instead of coming from the hub. A request sent before a crash is found again, and
no second one is created. The prefix is that of OCM's names.
"""

import asyncio
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from hashlib import sha256

import structlog

from machinery.client.rest import Object
from machinery.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    MusterError,
    NotFoundError,
    UnauthorizedError,
)
from machinery.identity import AddOnName, ClusterName
from machinery.pki import check_request
from machinery.runtime.backoff import Backoff
from spoke.domain.addon import KUBE_SIGNER
from spoke.domain.next_step import SessionEnd, loss_of
from spoke.domain.report import ExternalEndpoint
from spoke.ports.hub import CSRState, HubLostError, RegistrationState
from spoke.transports.kubernetes.api import ApiDoor
from spoke.transports.kubernetes.documents import (
    ADDON_LABEL,
    CLUSTER_LABEL,
    RECOVERY,
    REQUESTS,
    is_another,
    maintained_cluster,
    new_cluster,
    new_request,
    own_annotations,
    request_state,
    section,
)

log = structlog.get_logger(__name__)


ATTEMPTS = 8
PAUSE = 0.02
"""Seconds between the first two attempts; each further pause is longer."""


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


class ClusterMaintenance:
    """Maintains annotations and client configs of an accepted cluster; gives up when the hub forbids it."""

    def __init__(self, door: ApiDoor, annotations: Mapping[str, str]) -> None:
        self._door = door
        self._annotations = annotations
        self._allowed = True

    async def keep(self, present: Object, endpoints: Sequence[ExternalEndpoint]) -> Object:
        """Write the differences; return the resulting document. Raises NotFoundError and the errors of calls."""
        kube, path = await self._door.kube(), self._door.clusters.path(str(present["metadata"]["name"]))
        for attempt in range(1, ATTEMPTS + 1):
            wanted = maintained_cluster(present, self._annotations, endpoints)
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


HASHED = 10
NAME_ATTEMPTS = 4
"""Names to try when another request has ours."""
WATCH_PERIOD = timedelta(minutes=4)
MARGIN = timedelta(seconds=30)
FINAL = frozenset(("issued", "denied", "failed"))


async def submit_request(
    door: ApiDoor,
    cluster: ClusterName,
    request: bytes,
    *,
    duration: timedelta | None,
    addon: tuple[AddOnName, str] | None,
) -> str:
    """Create the request, or find the one with the same bytes; return its name. Raises InvalidError for an invalid request."""
    check_request(request)
    kube = await door.kube()
    prefix, labels, signer = f"{cluster}-", {CLUSTER_LABEL: str(cluster)}, KUBE_SIGNER
    if addon is not None:
        prefix, signer = f"addon-{cluster}-{addon[0]}-", addon[1]
        labels[ADDON_LABEL] = str(addon[0])
    digest = sha256(request).hexdigest()
    for attempt in range(NAME_ATTEMPTS):
        name = prefix + digest[attempt * HASHED : (attempt + 1) * HASHED]
        body = new_request(name, labels, request, signer, duration)
        try:
            await kube.create(REQUESTS.path(), body)
        except AlreadyExistsError:
            found = await kube.get(REQUESTS.path(name))
            if _decoded(section(found, "spec").get("request")) != request:
                continue
        return name
    raise ConflictError(f"the names for this certificate signing request are taken by others ({prefix}...): delete those")


async def follow_request(door: ApiDoor, name: str) -> AsyncGenerator[CSRState, None]:
    """Yield the state now and at each change, until it is final. Raises NotFoundError, ForbiddenError, UnavailableError, ..."""
    told = ""
    async with aclosing(_documents(door, name)) as documents:
        async for document in documents:
            status = section(document, "status")
            certificate = _decoded(status.get("certificate"))
            recovery = str(section(document, "metadata", "annotations").get(RECOVERY) or "")
            if certificate:
                await door.ask_version()  # for the hub's time: an expired certificate is useless
            state = request_state(document, certificate, recovery.encode(), door.now())
            if state.state != told:
                told = state.state
                yield state
            if told in FINAL:
                return


async def _documents(door: ApiDoor, name: str) -> AsyncGenerator[Object, None]:
    """Yield the request now and after each change; list again after an interrupted watch."""
    kube, pauses = await door.kube(), Backoff()
    document = await kube.get(REQUESTS.path(name))
    cluster = section(document, "metadata", "labels").get(CLUSTER_LABEL)
    query = {"fieldSelector": f"metadata.name={name}", **({"labelSelector": f"{CLUSTER_LABEL}={cluster}"} if cluster else {})}
    while True:
        yield document
        listed = [page async for page in kube.pages(REQUESTS.path(), query)]
        found = [item for page in listed for item in page.items]
        if not found:
            raise NotFoundError(f'the certificate signing request "{name}" is gone')
        yield found[0]
        revision, seconds = listed[-1].resource_version, round(WATCH_PERIOD.total_seconds())
        asked: dict[str, str | int | bool] = {
            **query,
            "resourceVersion": revision,
            "allowWatchBookmarks": True,
            "timeoutSeconds": seconds,
        }
        try:
            async with kube.watch(REQUESTS.path(), asked, within=WATCH_PERIOD + MARGIN) as events:
                async for event in events:
                    if event.type == "DELETED":
                        raise NotFoundError(f'the certificate signing request "{name}" was deleted')
                    if event.type != "BOOKMARK":
                        pauses.reset()
                        yield event.object
        except ExpiredError:
            pass  # the next round lists again
        await asyncio.sleep(pauses.next().total_seconds())
        document = await kube.get(REQUESTS.path(name))


def _decoded(text: object) -> bytes:
    """Decode base64; empty when invalid."""
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except Base64Error:
        return b""
