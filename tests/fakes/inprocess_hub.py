"""Whole hubs in the test's own process: the product's composition root over a copy of a prepared data directory."""

import asyncio
import socket
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hub.composition.context import ProcessContext, ShutdownReason
from hub.composition.core import Extension
from hub.extensions.settings import Settings, load
from hub.issuer.rotating import RotatingIssuer
from hub.ports import HUB_ID
from hub.replica.admin_kubeconfig import ADMIN_FILE
from hub.serve import EXTENSIONS, Hub, build
from hub.settings import HubSettings
from hub.settings.fields import Address
from hub.store import SqlStore
from machinery.identity import ClusterName, HubId
from machinery.lifecycle.debug import Inspection
from machinery.lifecycle.hooks import HookError
from machinery.lifecycle.process import Verbosity
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock, SystemClock
from machinery.runtime.tls import Serving
from tests.fakes.databases import migrated
from tests.fakes.registration import set_accepted

HUB = HubId("b2f1d5a0-0000-4000-8000-000000000001")
OTHER_HUB = HubId("b2f1d5a0-0000-4000-8000-000000000002")
ANY_PORT = Address("127.0.0.1", 0)
FAST: Mapping[str, Any] = {
    "grpc_listen": ANY_PORT,
    "https_listen": ANY_PORT,
    "flush_window": timedelta(milliseconds=50),
    "shutdown_grace": timedelta(milliseconds=10),
}
NOT_COPIED = ("hub.lock", "hub.db.hub", "replica")  # locks, and the name that identifies a data directory


class InProcessHub:
    """A hub over a data directory; it can be started and stopped again and keeps its ports. `settings` are by name.

    `hub_id`: hubs of one id have the same CA and keys. `leads`: whether it runs its controllers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hub_id: HubId = HUB,
        leads: bool = False,
        clock: Clock | None = None,
        extensions: Sequence[Extension] = EXTENSIONS,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.verbosity = Verbosity("info", lambda _level: None)
        self.extensions = extensions
        self._id = hub_id
        self._leads = leads
        self._clock = clock or SystemClock()
        self._settings = load({"data_dir": folder}, None, {})
        self._hub: Hub | None = None
        self._task: asyncio.Task[None] | None = None
        self.configure(**{**FAST, **settings})

    def configure(self, **settings: Any) -> None:
        """Settings from the next start on."""
        assert set(settings) <= set(Settings.model_fields), settings
        self._settings = self._settings.model_copy(update=settings)

    @property
    def hub(self) -> Hub:
        """The one that was started last."""
        assert self._hub is not None
        return self._hub

    @property
    def store(self) -> SqlStore:
        return self.hub.core.resources.store

    @property
    def issuer(self) -> RotatingIssuer:
        return self.hub.core.resources.issuer

    @property
    def serving(self) -> Serving:
        return self.hub.core.certificates.doors.serving

    async def accept(self, cluster: str, *, accepted: bool = True) -> None:
        await self.store.run(set_accepted, ClusterName(cluster), accepted, "admin")

    async def start(self) -> Hub:
        """Returns when it is ready. Raises what keeps it from starting."""
        self.folder.mkdir(exist_ok=True)
        for name, content in (await _prepared(self._id, self._settings.api_group_suffix)).items():
            if not (self.folder / name).exists() and (name != ADMIN_FILE or self._settings.database_url is None):
                (self.folder / name).write_bytes(content)
        return await self.start_as_it_is()

    async def start_as_it_is(self) -> Hub:
        """As `start`, and nothing is put into the data directory."""
        built: asyncio.Future[Hub] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(built), name="hub")
        self._hub = await self._unless_it_ends(built)
        await self._unless_it_ends(asyncio.ensure_future(self._hub.core.context.server.signals.has_been_ready.wait()))
        return self._hub

    async def stop(self) -> None:
        """Returns when everything is closed. Raises the error of a hub that has failed.

        What a busy machine could not flush in the time that a stop has for it does not fail a test that is over.
        """
        if self._task is not None:
            task, self._task = self._task, None
            self.hub.core.context.process.shutdown.requested.set()
            with suppress(HookError):
                await task

    async def _unless_it_ends(self, awaited: "asyncio.Future[Any]") -> Any:
        assert self._task is not None
        await asyncio.wait({self._task, awaited}, return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            awaited.cancel()
            task, self._task = self._task, None
            await task
        return awaited.result()

    async def _run(self, built: "asyncio.Future[Hub]") -> None:
        shutdown = ShutdownReason(asyncio.Event())
        process = ProcessContext(shutdown, Inspection(asyncio.get_running_loop()), self.verbosity)
        async with AsyncExitStack() as stack:
            hub = await build(self._settings, self._clock, process, stack, leads=self._leads, extensions=self.extensions)
            self._keep_ports(hub.core.context.settings)
            built.set_result(hub)
            await hub.core.context.server.run(shutdown.wait)

    def _keep_ports(self, chosen: HubSettings) -> None:
        """Hold the ports also while the hub is stopped: a socket that is bound and does not listen keeps others from them."""
        for name in ("grpc_listen", "https_listen"):
            address: Address = getattr(chosen, name)
            if not getattr(self._settings, name).port:
                held = socket.socket()
                weakref.finalize(self, held.close)
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((address.host, address.port))
                self.configure(**{name: address})


@asynccontextmanager
async def hub_in_process(folder: Path, **options: Any) -> AsyncIterator[Hub]:
    """A hub for the length of the block; `options` as of InProcessHub."""
    running = InProcessHub(folder, **options)
    yield await running.start()
    await running.stop()


_directories: dict[tuple[HubId, str], Mapping[str, bytes]] = {}


async def _prepared(hub_id: HubId, group_suffix: str = GROUP_SUFFIX) -> Mapping[str, bytes]:
    """The files that a first start leaves behind; made once in this process, because keys and roles cost half a second."""
    if (hub_id, group_suffix) not in _directories:
        with TemporaryDirectory() as folder:
            path = Path(folder)
            store = SqlStore(f"sqlite:///{migrated(path / 'hub.db')}")
            await store.open()
            await store.run(lambda tx: tx.facts.settle(HUB_ID, hub_id))
            await store.close()
            first = InProcessHub(path, hub_id=hub_id, api_group_suffix=group_suffix)
            await first.start_as_it_is()
            await first.stop()
            _directories[hub_id, group_suffix] = _files_in(path)
    return _directories[hub_id, group_suffix]


def _files_in(folder: Path) -> Mapping[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name not in NOT_COPIED}
