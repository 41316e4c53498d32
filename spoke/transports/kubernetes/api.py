"""One Kubernetes API, called with one identity. The Date header of answers to /version sets the hub's time."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from machinery.client.errors import from_answer
from machinery.client.kubeconfig_documents import encoded, with_one_context
from machinery.client.proxy import shown_proxy
from machinery.client.rest import KubeClient, Object, Response, RestResource
from machinery.errors import ForbiddenError, MusterError, NotFoundError, UnauthorizedError, UnavailableError
from machinery.identity import AgentId, ClusterName, parse_agent_user
from machinery.pki import parse_chain
from machinery.runtime.clock import Clock, OffsetClock
from spoke.domain.next_step import SessionLoss, loss_of
from spoke.ports.hub import ClientIdentity, HubAddress, HubLostError

WITHIN = timedelta(seconds=10)
"""A call without an answer fails after this time."""
_OK = 200
_UNAUTHORIZED = 401
_FAILURES = 500
DATE_STEP = timedelta(seconds=1)
"""A Date header has a resolution of one second."""


class ApiDoor:
    """A hub's API with its address, the agent's identity and the hub's time. Raises the errors of KubeClient."""

    def __init__(self, address: HubAddress, identity: ClientIdentity, clock: Clock) -> None:
        self.address = address
        self._identity = identity
        self._own = clock
        self._time = OffsetClock(clock)
        self._opened: KubeClient | None = None

    @property
    def clusters(self) -> RestResource:
        return RestResource(f"cluster.{self.address.group_suffix}", "v1", "managedclusters")

    def add_ons(self, version: str) -> RestResource:
        return RestResource(f"addon.{self.address.group_suffix}", version, "managedclusteraddons")

    def now(self) -> datetime:
        return self._time.now()

    @property
    def offset(self) -> timedelta:
        """How far the hub's clock is ahead of the agent's clock."""
        return self._time.offset or timedelta()

    def agent(self) -> tuple[ClusterName, AgentId]:
        """Return the names in the agent's certificate. Raises UnauthorizedError if the certificate is not an agent's."""
        names = parse_agent_user(parse_chain(self._identity.certificate)[0].subject.common_name)
        if names is None:
            raise UnauthorizedError("the certificate is not that of a cluster's agent")
        return names

    @property
    def left(self) -> timedelta:
        """Return the remaining validity of the agent's certificate, by the hub's time."""
        return parse_chain(self._identity.certificate)[0].not_after - self.now()

    async def kube(self) -> KubeClient:
        if self._opened is None:
            self._opened = await KubeClient.from_document(
                self._kubeconfig(), origin="of the hub", within=WITHIN, environment_proxies=False
            )
        return self._opened

    async def ask_version(self) -> str:
        """Query /version and set the hub's time. Return the version; empty: the API server hides it.

        Raises UnauthorizedError, UnavailableError.
        """
        try:
            answer = await (await self.kube()).raw("GET", "/version")
        except UnavailableError as error:
            if not self.address.proxy:
                raise
            raise UnavailableError(f"{error.message} (through the proxy {shown_proxy(self.address.proxy)})") from error
        self._learn(answer)
        if answer.status == _UNAUTHORIZED or answer.status >= _FAILURES:
            raise from_answer(answer.status, answer.body, retry_after=answer.headers.get("Retry-After"))
        with suppress(ValueError):
            document = json.loads(answer.body) if answer.status == _OK else None
            return str(document.get("gitVersion") or "") if isinstance(document, dict) else ""
        return ""

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def _learn(self, answer: Response) -> None:
        """Set the hub's time from the Date header. Within DATE_STEP of this machine's time, the offset is zero."""
        try:
            date = parsedate_to_datetime(answer.headers.get("Date", "")).astimezone(UTC)
        except ValueError:
            return
        now = self._own.now()
        self._time.set_time(now if date - DATE_STEP <= now <= date + 2 * DATE_STEP else date + DATE_STEP / 2)

    def _kubeconfig(self) -> Mapping[str, Any]:
        address, identity, token = self.address, self._identity, self._identity.token
        cluster: dict[str, Any] = {"server": address.target, "certificate-authority-data": encoded(address.ca)}
        named = {"proxy-url": address.proxy, "tls-server-name": address.tls_server_name}
        cluster.update({name: value for name, value in named.items() if value})
        if token is None:
            user = {"client-certificate-data": encoded(identity.certificate), "client-key-data": encoded(identity.key)}
        else:
            user = {"token": token.text} if token.text else {"tokenFile": str(token.file)}
        return with_one_context("hub", cluster, user)


def lost_error(error: MusterError) -> HubLostError:
    """Return the error with which a failed call ends the session."""
    if isinstance(error, HubLostError):
        return error
    if isinstance(error, UnauthorizedError):
        return HubLostError(error.message, loss_of(error.denial_cause, SessionLoss.UNAUTHENTICATED))
    end = SessionLoss.FORGOTTEN if isinstance(error, NotFoundError) else SessionLoss.UNREACHABLE
    return HubLostError(error.message, end, retry_after=error.retry_after)


async def read_cluster(door: ApiDoor, cluster: ClusterName) -> Object:
    """Read the agent's ManagedCluster. Raises ForbiddenError if it is unreadable, HubLostError if no session is possible."""
    try:
        return await (await door.kube()).get(door.clusters.path(cluster))
    except ForbiddenError:
        raise
    except MusterError as error:
        raise lost_error(error) from error
