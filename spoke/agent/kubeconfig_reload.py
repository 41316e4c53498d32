"""Reloads a kubeconfig that is replaced on disk, if it still names the same cluster.

An agent in hosted mode gets the managed cluster's kubeconfig as a file, whose credential another program renews.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import structlog

from machinery.client.rest import KubeClient
from machinery.errors import InvalidError, MusterError
from machinery.observability.log_once import LogOnce
from spoke.cluster import KubeCluster

LOOK = timedelta(seconds=10)

log = structlog.get_logger(__name__)


class FollowedKubeconfig:
    """One client and the file that it was made from. `run` must be running."""

    def __init__(self, client: KubeClient, path: Path) -> None:
        self._client = client
        self._path = path
        self._seen = _signature(path), _content(path)
        self._uid = ""
        self._log = LogOnce(log)

    async def run(self, every: timedelta = LOOK) -> None:
        """Poll the file until cancelled."""
        while True:
            await asyncio.sleep(every.total_seconds())
            signature, known = _signature(self._path), self._seen
            if signature == known[0]:
                continue  # a cheap check, because the agent is idle most of the time
            content = await asyncio.to_thread(_content, self._path)
            if content == known[1] or await self.turned():
                self._seen = signature, content

    async def turned(self) -> bool:
        """Try to load the file; return whether it was handled. An unusable file or unreachable cluster changes nothing."""
        try:
            new = await KubeClient.from_file(self._path)
        except InvalidError as error:
            self._tell("kubeconfig.unusable", error.message, "the one before stays in use")
            return False
        try:
            before = await self._known_uid()
            found = await KubeCluster(new).uid()
        except MusterError as error:
            await new.close()
            self._tell("kubeconfig.not_reached", error.message, "trying again; the one before stays in use")
            return False
        if before not in ("", found):
            await new.close()
            why = "it names another cluster: its kube-system namespace has another uid"
            self._tell("kubeconfig.another_cluster", why, "the agent stays with its own; another cluster is another agent's")
            return True
        await self._client.turn_to(new)
        self._uid = found
        self._log.reset()
        log.info("kubeconfig.replaced", file=str(self._path))
        return True

    async def _known_uid(self) -> str:
        """The UID of the present cluster; empty when its credential cannot read it any more."""
        if not self._uid:
            try:
                self._uid = await KubeCluster(self._client).uid()
            except MusterError:
                return ""
        return self._uid

    def _tell(self, event: str, why: str, following: str) -> None:
        self._log.warning(event, why, file=str(self._path), next=following)


def _signature(path: Path) -> tuple[int, ...]:
    """Changes whenever the file is written or replaced."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
