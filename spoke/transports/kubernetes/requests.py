"""CertificateSigningRequests whose name derives from their bytes, so that a restarted agent finds its own.

The name comes from the request's hash instead of the hub. A request sent before a crash is found again, and no second one is
created. The prefix is that of OCM's names.
"""

import asyncio
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from hashlib import sha256

from machinery.client.rest import Object
from machinery.errors import AlreadyExistsError, ConflictError, ExpiredError, NotFoundError
from machinery.identity import AddOnName, ClusterName
from machinery.pki import check_request
from machinery.runtime.backoff import Backoff
from spoke.domain.addon import KUBE_SIGNER
from spoke.ports import CSRState
from spoke.transports.kubernetes.api import ApiDoor
from spoke.transports.kubernetes.documents import (
    ADDON_LABEL,
    CLUSTER_LABEL,
    RECOVERY,
    REQUESTS,
    new_request,
    request_state,
    section,
)

HASHED = 10
NAMES = 4
"""Names to try when another request has ours."""
WATCH = timedelta(minutes=4)
MARGIN = timedelta(seconds=30)
FINAL = frozenset(("issued", "denied", "failed"))


async def submit(
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
    for attempt in range(NAMES):
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


async def follow(door: ApiDoor, name: str) -> AsyncGenerator[CSRState, None]:
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
        revision, seconds = listed[-1].resource_version, round(WATCH.total_seconds())
        asked: dict[str, str | int | bool] = {
            **query,
            "resourceVersion": revision,
            "allowWatchBookmarks": True,
            "timeoutSeconds": seconds,
        }
        try:
            async with kube.watch(REQUESTS.path(), asked, within=WATCH + MARGIN) as events:
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
